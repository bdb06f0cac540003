"""Files that hold inputs which are neither images nor videos."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from fastvideo_core.errors import MediaError

__all__ = ["read_actions"]

_MAX_BYTES = 64 << 20
_ALLOWED = ".json with a list of lists of numbers"


def read_actions(path: str) -> Any:
    """Return the actions of a JSON file; whether they are numbers in rows of one width is looked at later.

    Raises:
        MediaError: It cannot be read, or is no JSON list.
    """
    try:
        with Path(path).open("rb") as file:
            content = json.loads(file.read(_MAX_BYTES), parse_constant=_read_finite, parse_float=_read_finite)
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or "not JSON"
        raise MediaError(f"actions cannot be read: {reason}", field="actions", value=path, allowed=_ALLOWED) from None
    if not isinstance(content, list):
        raise MediaError("not actions", field="actions", value=path, allowed=_ALLOWED)
    return content


def _read_finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is no finite number")
    return value
