"""Recordings of intermediate tensors: a folder with one safetensors file a step, in a folder a request.

A file names its request, node and step, and its tensors in the order in which they came, so that a recording needs no
index, and one of a run that was killed holds all steps that had ended.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from fastvideo_core.errors import StateError
from fastvideo_core.loop.hooks import StepView
from fastvideo_core.parity import TapRow

__all__ = ["RecordedRequest", "StepKey", "read_recording", "read_step", "write_step"]

_FORMAT = "fastvideo-taps-1"


class StepKey(NamedTuple):
    """A step of a request: the program's node and the position in its loop, from 0."""

    node_id: str
    step_index: int


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """A request of a recording.

    Attributes:
        request_id: Its id in the run that was recorded.
        steps: Files by step.
        shared: Those steps whose results other requests may have taken.
    """

    request_id: str
    steps: dict[StepKey, Path] = field(default_factory=dict)
    shared: set[StepKey] = field(default_factory=set)


def write_step(folder: Path, ordinal: int, step: StepView, rows: Sequence[TapRow]) -> None:
    """Write what was recorded of a step, whole or not at all.

    Args:
        folder: The recording's folder.
        ordinal: The request's number in it.
        step: The step.
        rows: Its tensors, in order.
    """
    place = folder / f"{ordinal:04d}"
    place.mkdir(parents=True, exist_ok=True)
    path = place / f"{step.node_id}.{step.step_index:05d}.safetensors"
    about = {
        "format": _FORMAT,
        "request_id": step.request_id,
        "node_id": step.node_id,
        "step_index": str(step.step_index),
        "is_shared": json.dumps(step.is_shared),
        "taps": json.dumps([row.name for row in rows]),
    }
    unfinished = path.with_suffix(".part")
    save_file({f"{index:05d}": row.value.contiguous() for index, row in enumerate(rows)}, unfinished, metadata=about)
    unfinished.replace(path)


def read_recording(folder: Path) -> list[RecordedRequest]:
    """Return the requests of a recording, in the order in which they began.

    Raises:
        StateError: The folder holds none, or a file in it is broken.
    """
    requests = [_read_request(place) for place in sorted(folder.glob("[0-9]*")) if place.is_dir()]
    found = [request for request in requests if request is not None]
    if not found:
        raise StateError(f"{folder} holds no recording; make one with the option record of observer.parityaligner")
    return found


def _read_request(place: Path) -> RecordedRequest | None:
    request: RecordedRequest | None = None
    for path in sorted(place.glob("*.safetensors")):
        about = _about(path)
        if request is None:
            request = RecordedRequest(about["request_id"])
        key = StepKey(about["node_id"], int(about["step_index"]))
        request.steps[key] = path
        if json.loads(about["is_shared"]):
            request.shared.add(key)
    return request


def read_step(path: Path) -> list[TapRow]:
    """Return the tensors of a step, in order.

    Raises:
        StateError: The file is broken.
    """
    names = json.loads(_about(path)["taps"])
    with safe_open(path, "pt") as file:
        return [TapRow(name, file.get_tensor(f"{index:05d}")) for index, name in enumerate(names)]


def _about(path: Path) -> dict[str, str]:
    try:
        with safe_open(path, "pt") as file:
            about: dict[str, str] = file.metadata() or {}
    except (OSError, SafetensorError) as error:
        raise StateError(f"{path} cannot be read: {error}") from error
    if about.get("format") != _FORMAT:
        raise StateError(f"{path} is no recorded step: its format is {about.get('format')!r}; allowed: {_FORMAT!r}")
    return about
