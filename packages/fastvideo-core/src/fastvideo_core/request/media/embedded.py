"""Reads the provenance back out of a file that was written here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from PIL import Image

from fastvideo_core.errors import MediaError
from fastvideo_core.request.media.stills import EXIF_DESCRIPTION, PNG_KEY
from fastvideo_core.request.provenance import Provenance

__all__ = ["SAFETENSORS_KEY", "read_provenance"]

SAFETENSORS_KEY = "fastvideo"


def read_provenance(path: str | Path) -> Provenance | None:
    """Return how a file was made, from its metadata or, for a sidecar, from its JSON.

    Args:
        path: A video, an image, a `.safetensors` file, or a sidecar.

    Returns:
        The provenance, or None if the file holds none.

    Raises:
        MediaError: The file cannot be read as what its extension says.
        StateError: Its metadata is no provenance, or of another schema version.
    """
    path = Path(path)
    readers = {
        ".mp4": _from_container,
        ".webm": _from_container,
        ".gif": _from_image,
        ".png": _from_image,
        ".jpg": _from_image,
        ".jpeg": _from_image,
        ".webp": _from_image,
        ".safetensors": _from_safetensors,
        ".json": _from_sidecar,
    }
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise MediaError("holds no provenance", field="path", value=str(path), allowed=", ".join(readers))
    try:
        text = reader(path)
    except (OSError, ValueError, SyntaxError) as error:
        raise MediaError(f"cannot be read: {error}", field="path", value=str(path)) from error
    return Provenance.from_json(text) if text else None


def _from_container(path: Path) -> str | None:
    import av

    with path.open("rb") as file, av.open(file, "r", options={"format_whitelist": "mov,matroska,webm"}) as container:
        # Matroska writes tag names in capitals.
        tags = {key.lower(): value for key, value in container.metadata.items()}
    return tags.get("comment")


def _from_image(path: Path) -> str | None:
    with Image.open(path, formats=("PNG", "JPEG", "WEBP", "GIF")) as image:
        found: Any = image.info.get(PNG_KEY) or image.info.get("comment") or image.getexif().get(EXIF_DESCRIPTION)
    return found.decode("ascii", "replace") if isinstance(found, bytes) else found


def _from_safetensors(path: Path) -> str | None:
    with path.open("rb") as file:
        num_header_bytes = int.from_bytes(file.read(8), "little")
        if num_header_bytes > path.stat().st_size:
            raise ValueError("not a safetensors file")
        header = json.loads(file.read(num_header_bytes))
    found = header.get("__metadata__", {}).get(SAFETENSORS_KEY)
    return found if isinstance(found, str) else None


def _from_sidecar(path: Path) -> str | None:
    content = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict) or "schema_version" not in content:
        return None
    return json.dumps({key: value for key, value in content.items() if key != "file"})
