"""What jobs made, in any store that fsspec reaches by URL: s3://, gs://, az://, memory://, sftp:// and others."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fastvideo_core.errors import FastVideoError, ResourceError, StateError
from fastvideo_core.request.artifacts import VideoArtifact
from fastvideo_server.jobs.artifacts import MANIFEST, VARIANTS, ArtifactStore, StoredFile, check_job_id, write_files

__all__ = ["RemoteArtifacts"]


class RemoteArtifacts(ArtifactStore):
    """Keeps what jobs made under a URL. Nothing of a job counts before its manifest, which is written last.

    Args:
        url: Where, for instance `s3://bucket/prefix`.
        options: What fsspec's file system takes; keys are better in the environment, where it looks for them.
        folder: Folder of this machine for files on their way.

    Raises:
        ResourceError: The store cannot be reached, or fsspec or its driver is not installed.
    """

    def __init__(self, url: str, options: Mapping[str, Any], folder: Path) -> None:
        parts = urlsplit(url)
        self.name = f"{parts.scheme}://{parts.hostname or ''}{parts.path}"  # without a password
        self._folder = folder
        shutil.rmtree(folder, ignore_errors=True)  # left by a process that was killed
        folder.mkdir(parents=True)
        with self._translated():
            self._files, self._root = _open(url, options)
            self._probe()

    def save(self, job_id: str, video: VideoArtifact, manifest: Mapping[str, Any]) -> None:
        """Write all that there is of a video; it is there for good when this returns, or nothing of it counts."""
        place = self._place(job_id)
        with tempfile.TemporaryDirectory(dir=self._folder) as name, self._translated():
            self._files.makedirs(place, exist_ok=True)
            staged = Path(name)
            write_files(staged, video)
            for path in sorted(staged.iterdir()):
                self._files.put_file(str(path), f"{place}/{path.name}")
            self._files.pipe_file(f"{place}/{MANIFEST}", json.dumps(manifest).encode())

    def manifest(self, job_id: str) -> dict[str, Any] | None:
        """Return what was written down with a result; None if there is none."""
        try:
            with self._translated(missing_ok=True):
                content: dict[str, Any] = json.loads(self._files.cat_file(f"{self._place(job_id)}/{MANIFEST}"))
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise StateError(f"the result of job {job_id} cannot be read: {error}") from error
        return content

    def file(self, job_id: str, variant: str) -> StoredFile | None:
        """Return a file of a job, or None if there is none."""
        path = f"{self._place(job_id)}/{VARIANTS[variant][0]}"
        try:
            with self._translated(missing_ok=True):
                info = self._files.info(path)
        except FileNotFoundError:
            return None
        size = int(info["size"])
        tag = str(info.get("ETag") or info.get("mtime") or info.get("created") or job_id).strip('"')
        # A job's files are written once, so that its id and a size tell a file from others where a store does not.
        return StoredFile(VARIANTS[variant][0], size, f"{size:x}-{tag}", lambda: self._files.open(path, "rb"))

    def remove(self, job_id: str) -> None:
        """Remove all that a job made, first what makes it count."""
        place = self._place(job_id)
        with self._translated():
            for path in (f"{place}/{MANIFEST}", place):
                try:
                    self._files.rm(path, recursive=path == place)
                except FileNotFoundError:
                    continue

    def problem(self) -> str | None:
        """Return why nothing can be kept, or None."""
        try:
            with self._translated():
                self._probe()
        except ResourceError as error:
            return str(error)
        return None

    def _probe(self) -> None:
        """Look whether the store is there: a bucket has to be, a folder is made."""
        bucket = self._root.partition("/")[0]
        if bucket:
            self._files.ls(bucket)
        else:
            self._files.makedirs(self._root, exist_ok=True)

    def _place(self, job_id: str) -> str:
        return f"{self._root}/{check_job_id(job_id)}"

    @contextmanager
    def _translated(self, *, missing_ok: bool = False) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            if missing_ok:
                raise
            raise ResourceError(f"the store {self.name} is not there: {error}") from error
        except (FastVideoError, json.JSONDecodeError):
            raise
        except Exception as error:  # each of fsspec's drivers raises errors of its own
            text = " ".join(f"{type(error).__name__}: {error}".split())
            raise ResourceError(f"the store {self.name} cannot be used: {text}") from error


def _open(url: str, options: Mapping[str, Any]) -> tuple[Any, str]:
    try:
        from fsspec.core import url_to_fs  # type: ignore[import-untyped]

        files, root = url_to_fs(url, use_listings_cache=False, **options)
    except ImportError as error:
        raise ResourceError(f"artifacts by URL: {error}; pip install 'fastvideo-server[stores]'") from error
    return files, root.rstrip("/")
