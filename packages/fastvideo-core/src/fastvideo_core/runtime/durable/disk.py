"""The few things that a store does to the disk, each done when it returns, whatever happens afterwards.

A file appears under its name whole or not at all: it is written under another name, brought to the disk, and renamed.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

__all__ = ["STALE_PREFIX", "Buffer", "Disk"]

_ResultT = TypeVar("_ResultT")

Buffer = bytes | memoryview

STALE_PREFIX = "."
"""Names that begin so are of no use to anybody once the process is gone that made them."""

_MAX_WRITE_BYTES = 16 << 20


class Disk:
    """A local disk.

    Every call that changes it goes through `_do`, so that a test can stop the world before and after any of them.
    """

    def write(self, path: Path, parts: Iterable[Buffer]) -> int:
        """Make a file; its bytes are on the disk when this returns, its name only after `sync_folder`.

        Returns:
            The bytes written.

        Raises:
            OSError: It cannot be written, or there is such a file; nothing is left of it.
        """
        descriptor = self._do(os.open, path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
        try:
            num_bytes = sum(self._write_all(descriptor, part) for part in parts)
            self._do(os.fsync, descriptor)
        except Exception:
            os.close(descriptor)
            self.remove(path)
            raise
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
        return num_bytes

    def replace(self, path: Path, parts: Iterable[Buffer]) -> int:
        """Give a file new content, whole or not at all, in place of what was there; durable when it returns.

        Returns:
            The bytes written.

        Raises:
            OSError: It cannot be written; what was there still is.
        """
        staged, num_bytes = self.stage(path, parts)
        self.rename(staged, path)
        return num_bytes

    def stage(self, path: Path, parts: Iterable[Buffer]) -> tuple[Path, int]:
        """Write what a file is going to hold beside it.

        Returns:
            Where it is, to be renamed, and the bytes written.

        Raises:
            OSError: It cannot be written; nothing is left of it.
        """
        staged = path.with_name(f"{STALE_PREFIX}{path.name}.new")
        self.remove(staged)
        return staged, self.write(staged, parts)

    def make_folder(self, path: Path) -> None:
        """Make a folder; nothing is done if it is there."""
        with suppress(FileExistsError):
            self._do(os.mkdir, path)

    def rename(self, old: Path, new: Path) -> None:
        """Rename a file or folder within its folder or to another one; durable when it returns."""
        self._do(os.rename, old, new)
        self.sync_folder(new.parent)
        if old.parent != new.parent:
            self.sync_folder(old.parent)

    def sync_folder(self, path: Path) -> None:
        """Bring the names in a folder to the disk."""
        descriptor = os.open(path, os.O_RDONLY)
        try:
            self._do(os.fsync, descriptor)
        finally:
            os.close(descriptor)

    def remove(self, path: Path) -> None:
        """Remove a file, if it is there; not necessarily for good if the machine stops right now."""
        with suppress(FileNotFoundError):
            self._do(os.unlink, path)

    def discard(self, folder: Path) -> None:
        """Remove a folder with all that is in it, so that it is gone at once and for good, or still there whole."""
        stale = folder.with_name(f"{STALE_PREFIX}{folder.name}.gone")
        self.sweep(stale)
        self.rename(folder, stale)
        self.sweep(stale)

    def sweep(self, path: Path) -> None:
        """Remove what is of no use any more, as far as that is possible."""
        if path.is_dir():
            self._do(shutil.rmtree, path, True)
        else:
            with suppress(OSError):
                self.remove(path)

    def _write_all(self, descriptor: int, part: Buffer) -> int:
        view = memoryview(part)
        done = 0
        while done < len(view):
            done += self._do(os.write, descriptor, view[done : done + _MAX_WRITE_BYTES])
        return done

    def _do(self, call: Callable[..., _ResultT], *args: object) -> _ResultT:
        return call(*args)
