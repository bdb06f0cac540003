"""Checkpoints in hub repositories: found in the cache, or downloaded into it, or an error that says what to do.

Files lie in the hub client's own cache, so that other programs find them. A pinned revision whose files are all there
is used without a network. What is needed is known, and checked against the free disk, before the first byte.
"""

from __future__ import annotations

import glob
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastvideo_core.errors import CheckpointError, DownloadError, FastVideoError
from fastvideo_core.runtime.weights.disk import check_disk
from fastvideo_core.runtime.weights.download import RemoteFile, fetch_files, is_transport_error
from fastvideo_core.runtime.weights.hub_errors import explain, unreachable
from fastvideo_core.runtime.weights.selection import select_configs, select_files
from fastvideo_core.runtime.weights.text import sample_names

if TYPE_CHECKING:
    from huggingface_hub import HfApi

    from fastvideo_core.runtime.weights.module import Progress

_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_REQUEST_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class HubAccess:
    """How the Hub is reached.

    Attributes:
        cache_dir: Where files are kept; None for the client's own folder (`HF_HUB_CACHE`, `HF_HOME`).
        endpoint: Address of the Hub; None for the client's own (`HF_ENDPOINT`).
        token: Access token; None for the one that the user has logged in with.
        is_offline: Use what is in the cache and no network; `HF_HUB_OFFLINE=1` does the same.
        retry_wait_s: First wait after a broken connection.
    """

    cache_dir: Path | None = None
    endpoint: str | None = None
    token: str | None = field(default=None, repr=False)
    is_offline: bool = False
    retry_wait_s: float = 1.0


@dataclass(frozen=True, slots=True)
class _Wanted:
    repo_id: str
    revision: str
    choose: Callable[[Sequence[str]], list[str]]

    def select(self, paths: Sequence[str]) -> list[str]:
        try:
            return self.choose(paths)
        except CheckpointError as error:
            raise type(error)(f"{self.repo_id}: {error}") from error

    def __str__(self) -> str:
        return f"{self.repo_id} at {self.revision}"


@dataclass(frozen=True, slots=True)
class _Entry:
    path: str
    num_bytes: int
    sha256: str | None


def fetch_snapshot(
    repo_id: str,
    revision: str | None,
    components: Sequence[str],
    *,
    optional: Sequence[str] = (),
    variant: str | None = None,
    access: HubAccess | None = None,
    on_progress: Progress | None = None,
) -> tuple[Path, str]:
    """Return a folder with a repository's files at a revision, downloading those that are not in the cache.

    Args:
        repo_id: `org/name`.
        revision: Commit, tag or branch; None for `main`. Only a commit is found in the cache without asking the Hub.
        components: Folders that are needed; "" is the root.
        optional: Folders that are taken if they are there.
        variant: Variant of the weights.
        access: How the Hub is reached.
        on_progress: Told the bytes that are there and the bytes to download in all, from any thread.

    Returns:
        The folder and the commit.

    Raises:
        DownloadError: If the Hub does not give the files: offline, gated, absent, unreachable.
        CheckpointError: If the repository does not have what a component needs.
        UnsafeFormatError: If it has that only as pickle files.
        ResourceError: If the disk has not enough room.
    """

    def choose(paths: Sequence[str]) -> list[str]:
        return select_files(paths, components, optional=optional, variant=variant)

    return _fetch(_Wanted(repo_id, revision or "main", choose), access or HubAccess(), on_progress)


def fetch_configs(repo_id: str, revision: str | None = None, *, access: HubAccess | None = None) -> Path:
    """Return a folder with what says what a repository holds: its index or card, and its configurations; no weights.

    The folder is named after the commit.

    Args:
        repo_id: `org/name`.
        revision: Commit, tag or branch; None for `main`.
        access: How the Hub is reached.

    Raises:
        DownloadError: As `fetch_snapshot`; also if the repository has none of these files.
    """
    folder, _ = _fetch(_Wanted(repo_id, revision or "main", select_configs), access or HubAccess(), None)
    return folder


def _fetch(wanted: _Wanted, access: HubAccess, on_progress: Progress | None) -> tuple[Path, str]:
    _check_repo_id(wanted.repo_id)
    if access.is_offline or _is_client_offline():
        return _find_offline(wanted, access, cause=None)
    if _COMMIT.fullmatch(wanted.revision) and (found := _find_complete(wanted, access)) is not None:
        return found
    try:
        commit, entries = _list_repository(wanted, access)
    except Exception as error:
        if is_transport_error(error):
            return _find_offline(wanted, access, cause=error)
        raise _explained(error, wanted, access) from error
    try:
        return _download(wanted, commit, entries, access, on_progress)
    except FastVideoError:
        raise
    except Exception as error:
        raise _explained(error, wanted, access) from error


def _check_repo_id(repo_id: str) -> None:
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    try:
        validate_repo_id(repo_id)
        is_valid = "/" in repo_id
    except HFValidationError:
        is_valid = False
    if not is_valid:
        raise DownloadError(f"{repo_id!r} is not the name of a hub repository; allowed: org/name")


def _explained(error: Exception, wanted: _Wanted, access: HubAccess) -> Exception:
    return explain(
        error,
        what=str(wanted),
        repo_id=wanted.repo_id,
        endpoint=_endpoint(access),
        has_token=_has_token(access),
    )


def _is_client_offline() -> bool:
    from huggingface_hub import is_offline_mode

    return bool(is_offline_mode())


def _api(access: HubAccess) -> HfApi:
    from huggingface_hub import HfApi

    return HfApi(endpoint=access.endpoint, token=access.token, library_name="fastvideo")


def _list_repository(wanted: _Wanted, access: HubAccess) -> tuple[str, list[_Entry]]:
    """Return the commit and the files; one request, which fails at once where there is no network."""
    info = _api(access).model_info(
        wanted.repo_id, revision=wanted.revision, files_metadata=True, timeout=_REQUEST_TIMEOUT_S
    )
    if info.sha is None:
        raise DownloadError(f"{wanted}: the Hub named no commit; check the endpoint {_endpoint(access)}")
    entries = [
        _Entry(file.rfilename, file.size or 0, file.lfs.sha256 if file.lfs is not None else None)
        for file in info.siblings or ()
    ]
    return info.sha, entries


def _download(
    wanted: _Wanted, commit: str, entries: Sequence[_Entry], access: HubAccess, on_progress: Progress | None
) -> tuple[Path, str]:
    names = set(wanted.select([entry.path for entry in entries]))
    if not names:
        raise DownloadError(f"{wanted} has none of the files that describe a model, such as model_index.json")
    storage = _storage_folder(wanted, access)
    absent = [entry for entry in entries if entry.path in names and not _is_stored(entry, storage, commit)]
    remotes = [remote for entry in absent if (remote := _remote_file(entry, wanted, commit, storage, access))]
    arrived_bytes = sum(remote.part.stat().st_size for remote in remotes if remote.part.exists())
    num_bytes = sum(entry.num_bytes for entry in absent)
    check_disk(
        max(0, num_bytes - arrived_bytes),
        storage,
        purpose=f"{len(absent)} files of {wanted}",
        remedy="free some space, or set HF_HOME to a folder on a larger disk",
    )
    counter = _Counter(num_bytes, on_progress)
    fetch_files(remotes, _headers(access), counter.add, retry_wait_s=access.retry_wait_s)
    folder = _snapshot(wanted, commit, sorted(names), access)
    counter.finish()
    return folder, commit


class _Counter:
    """Adds up what several threads fetch."""

    def __init__(self, total_bytes: int, on_progress: Callable[[int, int], None] | None) -> None:
        self._lock = threading.Lock()
        self._done_bytes = 0
        self._total_bytes = total_bytes
        self._on_progress = on_progress

    def add(self, num_bytes: int) -> None:
        with self._lock:
            self._done_bytes += num_bytes
            if self._on_progress is not None and num_bytes:
                self._on_progress(self._done_bytes, self._total_bytes)

    def finish(self) -> None:
        self.add(self._total_bytes - self._done_bytes)


def _snapshot(wanted: _Wanted, commit: str, names: Sequence[str], access: HubAccess) -> Path:
    """Let the client fetch what is left (small files) and link everything into the snapshot's folder."""
    from huggingface_hub import snapshot_download
    from tqdm.auto import tqdm  # type: ignore[import-untyped]

    class SilentBar(tqdm):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **{**kwargs, "disable": True})

    # By the revision that was asked for, not the commit: then the cache knows it by that name when offline.
    folder = Path(
        snapshot_download(
            wanted.repo_id,
            revision=wanted.revision,
            allow_patterns=[glob.escape(name) for name in names],
            cache_dir=access.cache_dir,
            endpoint=access.endpoint,
            token=access.token,
            library_name="fastvideo",
            tqdm_class=SilentBar,
        )
    )
    if folder.name != commit:
        raise DownloadError(f"{wanted} moved from {commit} to {folder.name} while it was downloaded; run again")
    return folder


def _find_complete(wanted: _Wanted, access: HubAccess) -> tuple[Path, str] | None:
    """Return the cached folder if the cache knows the repository's files and has all that are needed."""
    paths = _cached_paths(wanted, access)
    if paths is None:
        return None
    missing = [name for name, path in paths.items() if path is None]
    return None if missing or not paths else _snapshot_of(paths)


def _find_offline(wanted: _Wanted, access: HubAccess, *, cause: Exception | None) -> tuple[Path, str]:
    """Return the cached folder, or say why that is all that could be tried and what is not there."""
    reason = "the Hub is offline (HF_HUB_OFFLINE=1)" if cause is None else unreachable(cause, _endpoint(access))
    remedy = "go online once, or give a local folder" if cause is None else "check the network, or give a local folder"
    paths = _cached_paths(wanted, access)
    missing = [name for name, path in (paths or {}).items() if path is None]
    if missing:
        raise DownloadError(
            f"{wanted}: {len(missing)} files are not in the cache {_cache_folder(access)}: {sample_names(missing)}; "
            f"{reason}; {remedy}"
        ) from cause
    if paths:
        return _snapshot_of(paths)
    folder = _listless_snapshot(wanted, access)
    if folder is None:
        raise DownloadError(f"{wanted} is not in the cache {_cache_folder(access)}; {reason}; {remedy}") from cause
    return folder, folder.name


def _cached_paths(wanted: _Wanted, access: HubAccess) -> dict[str, str | None] | None:
    """Return where each needed file is in the cache; None if the cache does not know the repository's files."""
    from huggingface_hub import get_cached_repo_tree, try_to_load_from_cache
    from huggingface_hub.errors import CachedRepoTreeNotFoundError

    try:
        tree = get_cached_repo_tree(wanted.repo_id, revision=wanted.revision, cache_dir=access.cache_dir)
    except CachedRepoTreeNotFoundError:
        return None
    found: dict[str, str | None] = {}
    for name in wanted.select([file.path for file in tree]):
        path = try_to_load_from_cache(wanted.repo_id, name, revision=wanted.revision, cache_dir=_cache_folder(access))
        found[name] = path if isinstance(path, str) else None
    return found


def _snapshot_of(paths: dict[str, str | None]) -> tuple[Path, str]:
    name, path = next(iter(paths.items()))
    assert path is not None
    folder = Path(path).parents[name.count("/")]
    return folder, folder.name


def _listless_snapshot(wanted: _Wanted, access: HubAccess) -> Path | None:
    """Return the folder that another or older client has left; what it lacks shows when it is read."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        found = snapshot_download(
            wanted.repo_id, revision=wanted.revision, cache_dir=access.cache_dir, local_files_only=True
        )
    except LocalEntryNotFoundError:
        return None
    return Path(found)


def _cache_folder(access: HubAccess) -> Path:
    from huggingface_hub import constants

    return access.cache_dir if access.cache_dir is not None else Path(constants.HF_HUB_CACHE)


def _storage_folder(wanted: _Wanted, access: HubAccess) -> Path:
    return _cache_folder(access) / ("models--" + wanted.repo_id.replace("/", "--"))


def _is_stored(entry: _Entry, storage: Path, commit: str) -> bool:
    linked = storage / "snapshots" / commit / entry.path
    return linked.exists() or (entry.sha256 is not None and (storage / "blobs" / entry.sha256).exists())


def _remote_file(entry: _Entry, wanted: _Wanted, commit: str, storage: Path, access: HubAccess) -> RemoteFile | None:
    """Return what to fetch resumably; None for what the client has to fetch itself: small files, and giant ones."""
    from huggingface_hub import constants, hf_hub_url

    if entry.sha256 is None or not _SHA256.fullmatch(entry.sha256):
        return None
    if entry.num_bytes > constants.MAX_HTTP_DOWNLOAD_SIZE:
        return None
    return RemoteFile(
        url=hf_hub_url(wanted.repo_id, entry.path, revision=commit, endpoint=access.endpoint),
        target=storage / "blobs" / entry.sha256,
        lock=storage.parent / ".locks" / storage.name / f"{entry.sha256}.lock",
        num_bytes=entry.num_bytes,
        sha256=entry.sha256,
    )


def _headers(access: HubAccess) -> dict[str, str]:
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    return dict(build_hf_headers(token=access.token, library_name="fastvideo"))


def _endpoint(access: HubAccess) -> str:
    from huggingface_hub import constants

    return access.endpoint or str(constants.ENDPOINT)


def _has_token(access: HubAccess) -> bool:
    from huggingface_hub import get_token

    try:
        return (access.token or get_token()) is not None
    except OSError:  # a file of tokens that this user may not read
        return False
