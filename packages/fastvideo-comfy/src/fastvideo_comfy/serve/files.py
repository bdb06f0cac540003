"""Files that clients send and fetch: nothing outside of the folders, and nothing that a browser would run."""

from __future__ import annotations

import hashlib
import io
import mimetypes
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from PIL import Image

from fastvideo_comfy.files import name_problem
from fastvideo_core.errors import InputError, MediaError
from fastvideo_core.request.media.images import load_image

__all__ = ["KINDS", "FileRoom", "Uploaded", "media_type", "place_below", "preview_of"]

KINDS = ("input", "output", "temp")
"""ComfyUI's folders of files, by the name that `type` gives."""

_SHOWN = ("image/", "video/", "audio/")
_ACTIVE = ("image/svg+xml",)
_PREVIEWS = {"webp": "WEBP", "jpeg": "JPEG"}


@dataclass(frozen=True, slots=True)
class Uploaded:
    """Where an uploaded file is.

    Attributes:
        name: Its name.
        subfolder: Folder below that of its kind; "" for none.
        kind: "input" or "temp".
    """

    name: str
    subfolder: str
    kind: str

    def to_json(self) -> dict[str, str]:
        """Return it as ComfyUI answers."""
        return {"name": self.name, "subfolder": self.subfolder, "type": self.kind}


def place_below(root: Path, subfolder: str, name: str) -> Path:
    """Return the path of a file below a folder, whether or not it is there.

    Raises:
        InputError: It would be outside of the folder, or the name is none.
    """
    allowed = f"a name below {root.name}"
    for field, text in (("filename", name), ("subfolder", subfolder)):
        if (text or field == "filename") and (problem := name_problem(text)) is not None:
            raise InputError(problem, field=field, value=text, allowed=allowed)
    try:
        path = (root / subfolder.replace("\\", "/") / name.replace("\\", "/")).resolve()
    except (OSError, RuntimeError, ValueError):
        raise InputError("no file name", field="filename", value=name, allowed=allowed) from None
    if not path.is_relative_to(root.resolve()) or path == root.resolve():
        raise InputError("a path that leaves its folder", field="filename", value=name, allowed=allowed)
    return path


class FileRoom:
    """The files of one owner.

    Args:
        folder: The owner's folder; made if it is not there.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for kind in KINDS:
            (folder / kind).mkdir(parents=True, exist_ok=True)

    def folder(self, kind: str) -> Path:
        """Return the folder of a kind.

        Raises:
            InputError: There is no such kind.
        """
        if kind not in KINDS:
            raise InputError("no such folder", field="type", value=kind, allowed=", ".join(KINDS))
        return self._folder / kind

    def place(self, kind: str, subfolder: str, name: str) -> Path:
        """Return the path of a file, whether or not it is there.

        Raises:
            InputError: It would be outside of the folder, or the name is none.
        """
        return place_below(self.folder(kind), subfolder, name)

    def find(self, kind: str, subfolder: str, name: str) -> Path | None:
        """Return a file, or None if it is not there.

        Raises:
            InputError: See `place`.
        """
        path = self.place(kind, subfolder, name)
        try:
            return path if path.is_file() else None
        except OSError:  # a name that is too long
            return None

    def images(self) -> list[str]:
        """Return the names of the uploaded files."""
        root = self.folder("input")
        return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())

    def store(
        self, data: bytes, name: str, *, kind: str, subfolder: str, is_replacing: bool, max_pixels: int
    ) -> Uploaded:
        """Keep an image.

        Args:
            data: The file's bytes.
            name: Its name.
            kind: Which folder.
            subfolder: Folder below that.
            is_replacing: Whether a file of the same name is written over; else the next free name is taken, unless
                that file is the same.
            max_pixels: Most pixels.

        Raises:
            InputError: It is no image, or the name is not allowed.
        """
        if kind == "output":
            raise InputError("nothing is uploaded there", field="type", value=kind, allowed="input, temp")
        load_image(data, max_pixels=max_pixels)
        place = self.place(kind, subfolder, name)
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            place = self._write(place, data, is_replacing=is_replacing)
        except OSError as error:
            raise MediaError(f"cannot be kept: {error.strerror}", field="image", value=name[:100]) from None
        root = self.folder(kind).resolve()
        below = place.parent.relative_to(root).as_posix()
        return Uploaded(place.name, "" if below == "." else below, kind)

    def _write(self, place: Path, data: bytes, *, is_replacing: bool) -> Path:
        if is_replacing:
            staged = place.with_name(f".{hashlib.sha256(data).hexdigest()[:16]}.part")
            staged.write_bytes(data)
            staged.replace(place)
            return place
        for number in count():
            path = place if number == 0 else place.with_name(f"{place.stem} ({number}){place.suffix}")
            try:
                with path.open("xb") as file:
                    file.write(data)
            except FileExistsError:
                if path.is_file() and path.read_bytes() == data:
                    return path
            else:
                return path
        raise AssertionError("numbers do not end")


def media_type(name: str) -> str:
    """Return what a file is sent as: pictures, sound and videos as such, everything else as bytes to be saved."""
    kind = mimetypes.guess_type(name)[0] or ""
    return kind if kind.startswith(_SHOWN) and kind not in _ACTIVE else "application/octet-stream"


def preview_of(path: Path, form: str) -> tuple[bytes, str]:
    """Return an image made smaller to send: its bytes and their media type.

    Args:
        path: The image.
        form: `webp;90` or `jpeg;75`: format and quality.

    Raises:
        InputError: It is of another form, or the file is no image.
    """
    kind, _, quality = form.partition(";")
    if kind not in _PREVIEWS or not (quality or "90").isdecimal() or not 1 <= int((quality or "90")[:4]) <= 100:
        raise InputError("no such preview", field="preview", value=form, allowed="webp;90 or jpeg;90")
    buffer = io.BytesIO()
    Image.fromarray(load_image(path)).save(buffer, format=_PREVIEWS[kind], quality=int(quality or 90))
    return buffer.getvalue(), f"image/{kind}"
