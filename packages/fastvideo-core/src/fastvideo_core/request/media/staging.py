"""Files appear whole or not at all, and never in the place of another.

Everything is written into a hidden folder beside the target, flushed to the disk, and then linked to its final name.
A link fails if the name exists, whoever made it and when, so two processes cannot write over each other.
"""

from __future__ import annotations

import errno
import os
import platform
import re
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType

__all__ = ["Staging", "remove_stale", "replace_file"]

_PREFIX = ".fastvideo-"
_SUFFIX = ".part"
_MACHINE = re.sub(r"[^\w.]", "", platform.node())[:64] or "here"
_OWNED = re.compile(rf"{re.escape(_PREFIX)}(\d+)-{re.escape(_MACHINE)}-.*{re.escape(_SUFFIX)}")
# What file systems without hard links answer.
_NO_LINKS = frozenset(
    {errno.EPERM, errno.EACCES, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV}
)


class Staging:
    """A hidden folder for the files of one result; a context manager that leaves nothing behind.

    What earlier processes of this machine have left in the folder, because they were killed, is removed first.

    Args:
        folder: Where the files will be; made with its parents if missing, and removed again if nothing is published.
    """

    def __init__(self, folder: Path) -> None:
        self._made = _make_folders(folder)
        _remove_abandoned(folder)
        self._published = False
        try:
            # The name says whose it is, so that another process can tell when nobody needs it any more.
            prefix = f"{_PREFIX}{os.getpid()}-{_MACHINE}-"
            self.path = Path(tempfile.mkdtemp(prefix=prefix, suffix=_SUFFIX, dir=folder))
        except BaseException:
            self._remove_made()
            raise

    def __enter__(self) -> Staging:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def sync(self, staged: Iterable[Path]) -> None:
        """Wait until the bytes of staged files are on the disk, so that a name never stands for half a file."""
        for path in staged:
            _sync(path, os.O_RDWR)

    def publish(self, names: Mapping[Path, Path]) -> None:
        """Give every staged file its final name, all of them or none.

        Args:
            names: Staged file → final path, in the order in which they appear; the files are synced.

        Raises:
            FileExistsError: One of the names is taken; none of the files has appeared.
        """
        placed: list[Path] = []
        try:
            for staged, final in names.items():
                _place(staged, final)
                placed.append(final)
        except BaseException:
            for final in placed:
                final.unlink(missing_ok=True)
            raise
        self._published = True
        for folder in {final.parent for final in names.values()}:
            _sync_folder(folder)

    def close(self) -> None:
        """Remove the hidden folder with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        if not self._published:
            self._remove_made()

    def _remove_made(self) -> None:
        for folder in reversed(self._made):
            # Somebody else may use it by now.
            with suppress(OSError):
                folder.rmdir()


def remove_stale(folder: Path, process: int) -> None:
    """Remove what a process that was killed has left in a folder, as far as that is possible; nothing if it still runs.

    Args:
        folder: The folder, which need not be there.
        process: The process. The present one must not be writing anything.
    """
    if process != os.getpid() and _is_running(process):
        return
    for path in folder.glob(f"{_PREFIX}{process}-*{_SUFFIX}"):
        shutil.rmtree(path, ignore_errors=True)


def _remove_abandoned(folder: Path) -> None:
    """Remove hidden folders whose process has ended; those of other machines, which may share the disk, stay."""
    with suppress(OSError):
        for path in list(folder.iterdir()):
            owner = _OWNED.fullmatch(path.name)
            if owner and not path.is_symlink() and path.is_dir() and not _is_running(int(owner.group(1))):
                shutil.rmtree(path, ignore_errors=True)


def replace_file(path: Path, data: bytes) -> None:
    """Give a file new content, whole or not at all, in place of what was there.

    For files that one program keeps up to date, such as states; a result that a person gets is published instead.

    Args:
        path: The file; its folder is made if missing.
        data: The content.

    Raises:
        OSError: It cannot be written; the old content is still there.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=_PREFIX, suffix=_SUFFIX, dir=path.parent)
    staged = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        staged.replace(path)
    except BaseException:
        staged.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_folder(folder: Path) -> None:
    # Windows cannot open folders; its file systems log new names themselves.
    with suppress(OSError):
        _sync(folder, os.O_RDONLY)


def _make_folders(folder: Path) -> list[Path]:
    missing = []
    for candidate in (folder, *folder.parents):
        if candidate.exists():
            break
        missing.append(candidate)
    made = []
    for candidate in reversed(missing):
        with suppress(FileExistsError):
            candidate.mkdir()
            made.append(candidate)
    return made


def _place(staged: Path, final: Path) -> None:
    try:
        final.hardlink_to(staged)
    except FileExistsError:
        raise
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        _claim_and_replace(staged, final)


def _claim_and_replace(staged: Path, final: Path) -> None:
    # The claim is what keeps others away; only this process replaces its own empty file.
    os.close(os.open(final, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    try:
        staged.replace(final)
    except BaseException:
        final.unlink(missing_ok=True)
        raise
