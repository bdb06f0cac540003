"""Turns what the operating system says into errors that name the path and the remedy."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fastvideo_core.errors import FastVideoError, OutputError, ResourceError

__all__ = ["writing"]

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_DENIED = {
    errno.EACCES: "no permission to write there",
    errno.EPERM: "no permission to write there",
    errno.EROFS: "the file system is read-only",
    errno.ENOTDIR: "a part of the path is a file, not a folder",
    errno.EISDIR: "is a folder",
    errno.ENAMETOOLONG: "the name is too long for the file system",
    errno.ELOOP: "the path runs in a circle of links",
    errno.ENOENT: "the folder is gone",
    errno.EINVAL: "the file system does not take this name",
    errno.EILSEQ: "the file system does not take this name",
}


@contextmanager
def writing(path: Path, *, field: str = "output") -> Iterator[None]:
    """Raise typed errors for what goes wrong while a file is written.

    Args:
        path: The file that is being written, for the message.
        field: Name of the parameter that holds the path.

    Raises:
        ResourceError: The disk is full, or broken.
        OutputError: The path cannot be written.
    """
    try:
        yield
    except FastVideoError:
        raise
    except OSError as error:
        if error.errno in _FULL:
            raise ResourceError(f"no space left to write {path}: free some, or choose another disk") from error
        if error.errno in _DENIED:
            raise OutputError(_DENIED[error.errno], field=field, value=str(path)) from error
        raise ResourceError(f"cannot write {path}: {error.strerror or error}") from error
