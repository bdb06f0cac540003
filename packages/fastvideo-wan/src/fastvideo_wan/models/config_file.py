"""What configuration files of a diffusers folder have in common: reading one, and refusing what is not understood."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from fastvideo_core.errors import CheckpointError

METADATA_KEYS = ("_class_name", "_diffusers_version", "_name_or_path")
"""Keys of a config file that say where it came from, not what the model is."""


def config_fields(
    raw: Mapping[str, Any], *, label: str, class_names: Sequence[str], known: Iterable[str]
) -> dict[str, Any]:
    """Return the entries of a config file that say what the model is.

    Args:
        raw: The parsed file.
        label: What the file describes, for messages.
        class_names: Values of `_class_name` that are understood; an absent one is the first.
        known: Keys that are understood.

    Raises:
        CheckpointError: If the file describes another class or has an unknown key.
    """
    class_name = raw.get("_class_name", class_names[0])
    if class_name not in class_names:
        raise CheckpointError(f"{label} config is for {class_name!r}; allowed: {', '.join(class_names)}")
    fields = {key: value for key, value in raw.items() if key not in METADATA_KEYS}
    names = list(known)
    if unknown := sorted(set(fields) - set(names)):
        near = [match for key in unknown for match in get_close_matches(key, names, n=1)]
        hint = f"; nearest: {', '.join(near)}" if near else ""
        message = f"{label} config has unknown keys: {', '.join(unknown)}{hint}"
        raise CheckpointError(message, unexpected=tuple(unknown))
    return fields


def read_config(folder: Path, *, label: str) -> dict[str, Any]:
    """Read `config.json` from a component's folder.

    Raises:
        CheckpointError: If the file is absent, not JSON, or no object.
    """
    path = folder / "config.json"
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} does not exist; a {label} folder needs it") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path} is not JSON: {error}") from error
    if not isinstance(raw, dict):
        raise CheckpointError(f"{path} holds a {type(raw).__name__}; allowed: an object")
    return raw
