"""JSON files that know what they are and whether they are whole: a format's name, a digest, the content."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from fastvideo_core.errors import StateError, describe_failure

__all__ = ["seal", "unseal"]


def seal(file_format: str, content: Mapping[str, Any]) -> bytes:
    """Return the bytes of a file.

    Raises:
        StateError: The content holds something that JSON cannot.
    """
    text = _canonical(content)
    return f'{{"format": {json.dumps(file_format)}, "sha256": "{_digest(text)}", "content": {text}}}\n'.encode()


def unseal(file_format: str, data: bytes) -> dict[str, Any]:
    """Return the content of a file.

    Raises:
        StateError: It is corrupt, cut short, or of another format or version.
    """
    try:
        document = json.loads(data)
        found, digest, content = document["format"], document["sha256"], document["content"]
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise StateError(f"is corrupt or something else ({len(data)} bytes): {describe_failure(error)}") from error
    if found != file_format:
        raise StateError(f"is of format {found!r}; this version reads {file_format!r}")
    if not isinstance(content, dict) or _digest(_canonical(content)) != digest:
        raise StateError(f"is corrupt ({len(data)} bytes): its digest differs")
    return content


def _canonical(content: Mapping[str, Any]) -> str:
    try:
        return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise StateError(f"cannot be stored as JSON: {describe_failure(error)}") from error


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
