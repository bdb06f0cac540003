"""Opens input files: ordinary files of a sane size only, so that neither a pipe nor a device can stall a request."""

from __future__ import annotations

import io
import stat
from pathlib import Path
from typing import BinaryIO

from fastvideo_core.errors import MediaError

__all__ = ["open_input"]


def open_input(source: str | Path | bytes, *, what: str, field: str, max_bytes: int) -> BinaryIO:
    """Open a file, or bytes that hold one, for reading.

    Args:
        source: A path, or the bytes.
        what: What it should be, with its article, for messages.
        field: Name of the parameter, for messages.
        max_bytes: Limit of the size.

    Raises:
        MediaError: Missing, a folder, a device, unreadable, empty or too large.
    """
    if isinstance(source, bytes):
        _check_size(len(source), "bytes", what, field, max_bytes)
        return io.BytesIO(source)
    name = str(source)
    try:
        info = Path(source).stat()
        if stat.S_ISDIR(info.st_mode):
            raise MediaError(f"is a folder, not the file of {what}", field=field, value=name)
        if not stat.S_ISREG(info.st_mode):
            raise MediaError("is no ordinary file", field=field, value=name)
        _check_size(info.st_size, name, what, field, max_bytes)
        return Path(source).open("rb")
    except FileNotFoundError:
        raise MediaError("no such file", field=field, value=name, allowed="a path on this machine") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise MediaError(f"cannot be read: {reason}", field=field, value=name) from error


def _check_size(size: int, name: str, what: str, field: str, max_bytes: int) -> None:
    if size == 0:
        raise MediaError(f"an empty file, not {what}", field=field, value=name)
    if size > max_bytes:
        raise MediaError(
            f"too large for {what}: {size / (1 << 20):.0f} MiB",
            field=field,
            value=name,
            allowed=f"{max_bytes / (1 << 20):.0f} MiB",
        )
