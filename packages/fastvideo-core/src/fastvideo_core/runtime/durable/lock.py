"""One process at a time: a lock on a folder that ends with the process that holds it, however that ends."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from fastvideo_core.errors import ResourceError, StateError

__all__ = ["FolderLock"]

_NAME = "lock"


class FolderLock:
    """Holds a folder until `release`.

    Args:
        folder: The folder, which is there.

    Raises:
        StateError: Another process holds it, or this one already does.
        ResourceError: The system has no locks on files.
        OSError: The folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        try:
            import fcntl
        except ImportError:
            raise ResourceError("a state directory needs locks on files, which this system does not have") from None
        # Not inherited by programs that this one starts, so that none of them keeps it.
        self._descriptor = os.open(folder / _NAME, os.O_CREAT | os.O_RDWR, 0o666)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _read(self._descriptor)
            os.close(self._descriptor)
            raise StateError(
                f"the state directory {folder} is in use by process {holder}; wait until it ends, or choose another"
            ) from None
        except OSError:
            os.close(self._descriptor)
            raise
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, str(os.getpid()).encode(), 0)

    def release(self) -> None:
        """Let go of the folder. The file stays: were it removed, two processes could lock two files of its name."""
        with suppress(OSError):
            os.ftruncate(self._descriptor, 0)
        os.close(self._descriptor)


def _read(descriptor: int) -> str:
    text = os.pread(descriptor, 20, 0).decode("ascii", "replace").strip()
    return text or "(unknown)"
