"""What the configuration files of a checkpoint have in common: reading one, and refusing what is not understood."""

from __future__ import annotations

import json
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from fastvideo_core.errors import CheckpointError

__all__ = ["parse_config", "read_json_object"]

ConfigT = TypeVar("ConfigT", bound=BaseModel)

_METADATA = ("_class_name", "_diffusers_version", "_name_or_path", "dtype", "torch_dtype")
"""Keys that say where a file came from, not what the model is."""


def read_json_object(path: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        CheckpointError: The file is missing, or is no JSON object.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(data, dict):
        raise CheckpointError(f"{path} holds a JSON {type(data).__name__}, not an object")
    return data


def parse_config(cls: type[ConfigT], raw: Mapping[str, Any], *, label: str, class_name: str) -> ConfigT:
    """Return a configuration of a class from the content of its file.

    Args:
        cls: The class, which forbids unknown keys.
        raw: The parsed file.
        label: What the file describes, for messages.
        class_name: The `_class_name` that is understood; an absent one is taken for it.

    Raises:
        CheckpointError: The file is of another class, has an unknown key, or a value that is not supported.
    """
    found = raw.get("_class_name", class_name)
    if found != class_name:
        raise CheckpointError(f"{label} config is for {found!r}; allowed: {class_name}")
    fields = {key: value for key, value in raw.items() if key not in _METADATA}
    if unknown := sorted(set(fields) - set(cls.model_fields)):
        near = [match for key in unknown for match in get_close_matches(key, cls.model_fields, n=1)]
        hint = f"; nearest: {', '.join(near)}" if near else ""
        raise CheckpointError(f"{label} config has unknown keys: {', '.join(unknown)}{hint}", unexpected=tuple(unknown))
    try:
        return cls.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        what = first["msg"].removeprefix("Value error, ")  # of checks of our own
        raise CheckpointError(f"{label} config: {where + ': ' if where else ''}{what}") from error
