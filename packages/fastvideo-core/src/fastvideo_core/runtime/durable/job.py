"""The folder of one accepted job: its document, its inputs, its checkpoint.

00000012-circle/
    job.json              what was accepted, for which model
    inputs.safetensors    pixels and the like
    input-0.mp4 …         copies of files that are read while it runs
    checkpoint.json       the last checkpoint
    tensors-7.safetensors … its tensors
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fastvideo_core.card import ModelCard
from fastvideo_core.errors import StateError, describe_failure
from fastvideo_core.runtime.durable.base import Identity
from fastvideo_core.runtime.durable.disk import STALE_PREFIX, Buffer, Disk
from fastvideo_core.runtime.durable.document import read_request, write_request
from fastvideo_core.runtime.durable.sealed import seal, unseal
from fastvideo_core.runtime.durable.tensors import TensorReader, write_tensors
from fastvideo_core.runtime.prepare import PreparedRequest

__all__ = ["JobFile", "folder_name", "parse_folder_name", "read_job", "write_job"]

_FORMAT = "fastvideo-job/1"
_JOB = "job.json"
_INPUTS = "inputs.safetensors"
_NAME = re.compile(r"(\d{8,})-(.+)")
_COPY_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class JobFile:
    """What was accepted.

    Attributes:
        job_id: The job.
        task: Its task.
        identity: What it began on.
        note: What the front end wrote down with it.
        content: The request's document.
        digests: Digests of its arrays, by name.
    """

    job_id: str
    task: str
    identity: Identity
    note: Mapping[str, Any]
    content: Mapping[str, Any]
    digests: Mapping[str, str]

    def request(self, folder: Path, card: ModelCard) -> PreparedRequest:
        """Return the request.

        Args:
            folder: The job's folder.
            card: The card that it began on.

        Raises:
            StateError: An input is missing or corrupt, or the card does not take the request any more.
        """
        reader = TensorReader(folder)
        arrays = {name: reader.read(_INPUTS, name, sha256).clone() for name, sha256 in self.digests.items()}
        try:
            return read_request(self.content, arrays, folder, card)
        except StateError as error:
            raise StateError(f"{folder / _JOB} {error}") from error


def folder_name(number: int, job_id: str) -> str:
    """Return the name of a job's folder: jobs are told apart, and kept in order, by a number."""
    return f"{number:08d}-{job_id}"


def parse_folder_name(name: str) -> tuple[int, str] | None:
    """Return the number and the job of a folder's name; None if it is another name."""
    found = _NAME.fullmatch(name)
    return None if found is None else (int(found[1]), found[2])


def write_job(disk: Disk, folder: Path, prepared: PreparedRequest, identity: Identity, note: Mapping[str, Any]) -> None:
    """Make the folder of a job, whole or not at all; durable when it returns.

    Raises:
        StateError: Something in the request cannot be stored.
        OSError: It cannot be written.
    """
    document = write_request(prepared)
    staged = folder.with_name(f"{STALE_PREFIX}{folder.name}.new")
    disk.sweep(staged)
    disk.make_folder(staged)
    try:
        digests = _write_inputs(disk, staged, document.arrays, document.files)
        content = {
            "job_id": prepared.request.request_id,
            "identity": identity.to_json(),
            "note": dict(note),
            "request": document.content,
            "inputs": digests,
        }
        disk.write(staged / _JOB, [seal(_FORMAT, content)])
        disk.sync_folder(staged)
        disk.rename(staged, folder)
    except (OSError, StateError):
        disk.sweep(staged)
        raise


def read_job(folder: Path, job_id: str) -> JobFile:
    """Read what was accepted.

    Raises:
        StateError: It is missing, corrupt, another job's, or of another version.
    """
    path = folder / _JOB
    try:
        content = unseal(_FORMAT, path.read_bytes())
        job = JobFile(
            content["job_id"],
            content["request"]["request"]["task"],
            Identity.from_json(content["identity"]),
            content["note"],
            content["request"],
            content["inputs"],
        )
    except OSError as error:
        raise StateError(f"{path} cannot be read: {error.strerror or error}") from error
    except StateError as error:
        raise StateError(f"{path} {error}") from error
    except (LookupError, TypeError, AttributeError) as error:
        raise StateError(f"{path} holds no job: {describe_failure(error)}") from error
    if job.job_id != job_id:
        raise StateError(f"{path} is of another job, {job.job_id!r}")
    return job


def _write_inputs(
    disk: Disk, folder: Path, arrays: Mapping[str, torch.Tensor], files: Mapping[str, Path]
) -> dict[str, str]:
    for name, source in files.items():
        disk.write(folder / name, _read_parts(source))
    return write_tensors(disk, folder / _INPUTS, arrays) if arrays else {}


def _read_parts(path: Path) -> Iterator[Buffer]:
    with path.open("rb") as file:
        while part := file.read(_COPY_BYTES):
            yield part
