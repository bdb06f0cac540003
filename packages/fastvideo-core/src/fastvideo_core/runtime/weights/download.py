"""Large files over HTTP, resumed where they stopped, also by a later process.

The hub's own client resumes within a call and drops what it had when the call ends. Here the part that has arrived
stays beside the file's final place, and the file gets its final name only once its SHA-256 is right.
"""

from __future__ import annotations

import errno
import hashlib
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from fastvideo_core.errors import DownloadError, ResourceError

_TIMEOUT_S = 10.0
_MAX_FAILURES = 5  # in a row, without a byte between them
_MAX_WORKERS = 4
_TRANSPORT_PACKAGES = {"httpcore", "httpcore2", "httpx", "httpx2", "requests", "urllib3"}
_PASSING_STATUSES = {408, 429, 500, 502, 503, 504}


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """One file to fetch.

    Attributes:
        url: Where it is.
        target: Where it goes.
        lock: Lock file that other processes which fetch it take too.
        num_bytes: Its size.
        sha256: Its SHA-256, in hexadecimal.
    """

    url: str
    target: Path
    lock: Path
    num_bytes: int
    sha256: str

    @property
    def part(self) -> Path:
        """What has arrived so far."""
        return self.target.with_name(f"{self.target.name}.resume.incomplete")


class _StoppedError(Exception):
    """Another file failed, or the user interrupted: leave the part as it is."""


def fetch_files(
    files: Sequence[RemoteFile],
    headers: Mapping[str, str],
    on_bytes: Callable[[int], None],
    *,
    retry_wait_s: float = 1.0,
) -> None:
    """Fetch files, several at a time; resumes parts that are there.

    Args:
        files: What to fetch; files that are there already are left alone.
        headers: Sent with every request, for instance the token.
        on_bytes: Told the bytes of each piece, from any thread; parts that were there count.
        retry_wait_s: First wait after a broken connection; doubles up to eight times that.

    Raises:
        DownloadError: If a file has another content than it should, or the connection keeps breaking.
        ResourceError: If the disk is full.
        Exception: What the HTTP client raises when the server refuses.
    """
    stop = threading.Event()
    with ThreadPoolExecutor(_MAX_WORKERS, thread_name_prefix="fastvideo-fetch") as pool:
        try:
            futures = [pool.submit(_fetch, file, headers, on_bytes, stop, retry_wait_s) for file in files]
            done, _ = wait(futures, return_when=FIRST_EXCEPTION)
        finally:
            # Also after Ctrl-C: the threads end at their next piece.
            stop.set()
    errors = [error for future in futures if future in done and (error := future.exception()) is not None]
    for error in errors:
        if not isinstance(error, _StoppedError):
            raise error


def is_transport_error(error: BaseException) -> bool:
    """Return whether an error is the connection's: refused, dropped, timed out, no such host."""
    return any(cls.__module__.partition(".")[0] in _TRANSPORT_PACKAGES for cls in type(error).__mro__) and (
        getattr(error, "response", None) is None
    )


def _fetch(
    file: RemoteFile,
    headers: Mapping[str, str],
    on_bytes: Callable[[int], None],
    stop: threading.Event,
    retry_wait_s: float,
) -> None:
    from huggingface_hub.utils import WeakFileLock  # type: ignore[attr-defined]

    if stop.is_set():
        raise _StoppedError
    file.target.parent.mkdir(parents=True, exist_ok=True)
    file.lock.parent.mkdir(parents=True, exist_ok=True)
    with WeakFileLock(file.lock):
        if file.target.exists():
            on_bytes(file.num_bytes)
            return
        try:
            with file.part.open("ab") as part:
                on_bytes(part.tell())
                _fill(part, file, headers, on_bytes, stop, retry_wait_s)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise ResourceError(f"the disk is full: {file.target.parent}; free some space and run again") from error
        _finish(file)


def _fill(
    part: BinaryIO,
    file: RemoteFile,
    headers: Mapping[str, str],
    on_bytes: Callable[[int], None],
    stop: threading.Event,
    retry_wait_s: float,
) -> None:
    """Append what is missing, over as many connections as it takes."""
    num_failures = 0
    while part.tell() < file.num_bytes:
        before = part.tell()
        cause: Exception | None = None
        try:
            _append(part, file.url, headers, on_bytes, stop)
        except Exception as error:
            if not _is_passing(error):
                raise
            cause = error
        num_failures = 0 if part.tell() > before else num_failures + 1
        if num_failures > _MAX_FAILURES:
            raise DownloadError(
                f"the download broke off {num_failures} times at byte {part.tell()} of {file.num_bytes} of {file.url}; "
                "what has arrived is kept, run again to go on"
            ) from cause
        if part.tell() < file.num_bytes and stop.wait(retry_wait_s * min(8, 2 ** max(0, num_failures - 1))):
            raise _StoppedError


def _append(
    part: BinaryIO, url: str, headers: Mapping[str, str], on_bytes: Callable[[int], None], stop: threading.Event
) -> None:
    from huggingface_hub import get_session, hf_raise_for_status

    offset = part.tell()
    # Compressed pieces could not be counted, nor resumed.
    asked = {**headers, "Accept-Encoding": "identity", "Range": f"bytes={offset}-"}
    with get_session().stream("GET", url, headers=asked, timeout=_TIMEOUT_S, follow_redirects=True) as response:
        if response.is_error:
            response.read()
        hf_raise_for_status(response)
        if response.status_code != 206 and offset:
            # The server does not resume: what it sends starts at the first byte.
            part.truncate(0)
            part.seek(0)
            on_bytes(-offset)
        # Pieces as they arrive: collecting them into larger ones would lose the last when the connection breaks.
        for piece in response.iter_bytes():
            if stop.is_set():
                raise _StoppedError
            part.write(piece)
            on_bytes(len(piece))


def _is_passing(error: Exception) -> bool:
    """Return whether trying again can help."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    return status in _PASSING_STATUSES or is_transport_error(error)


def _finish(file: RemoteFile) -> None:
    with file.part.open("rb") as part:
        found = hashlib.file_digest(part, "sha256").hexdigest()
    if found != file.sha256:
        num_bytes = file.part.stat().st_size
        file.part.unlink()
        raise DownloadError(
            f"{file.url} arrived damaged: {num_bytes} bytes of {file.num_bytes} with SHA-256 {found}, should be "
            f"{file.sha256}; it was thrown away, run again"
        )
    file.part.replace(file.target)
