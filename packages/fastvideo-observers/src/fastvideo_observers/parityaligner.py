"""ParityAligner: records the tensors of a run, or compares them with a recording and names the first that differs."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from fastvideo_core.errors import ParameterError, ParityError
from fastvideo_core.loop.hooks import ResultView, StepView
from fastvideo_core.parity import Divergence, TapRecorder, TapRow, compare_tensors, first_divergence
from fastvideo_observers.options import ParityAlignerOptions
from fastvideo_observers.recordings import RecordedRequest, StepKey, read_recording, read_step, write_step

__all__ = ["Alignment", "ParityAligner", "Parting"]

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Parting:
    """Where a request first differs from the recording.

    Attributes:
        node_id: Node of the program.
        step_index: The step, from 0; -1 where there is no such step.
        tensor: Name of the tensor; "" where not a tensor differs but which there are.
        max_absolute: Greatest difference; None where none was measured.
        max_relative: The same over the recording's greatest magnitude.
        reason: One line.
    """

    node_id: str
    step_index: int
    tensor: str
    max_absolute: float | None
    max_relative: float | None
    reason: str

    def __str__(self) -> str:
        """Return it in words."""
        return f"{self.node_id} step {self.step_index + 1}: {self.reason}" if self.step_index >= 0 else self.reason


@dataclass(slots=True)
class Alignment:
    """What became of one request.

    Attributes:
        request_id: The request.
        reference_id: The recorded one that it is compared with; None while recording, or where there is none.
        num_steps: Steps that were recorded or compared.
        num_tensors: Tensors in them.
        max_relative: Greatest relative difference so far.
        parting: Where it first differs; None if it does not.
    """

    request_id: str
    reference_id: str | None = None
    num_steps: int = 0
    num_tensors: int = 0
    max_relative: float = 0.0
    parting: Parting | None = None


class ParityAligner:
    """Records tensors by request and step, or compares them with a recording.

    A request is compared with the recorded one of its id, or else with the one that began at the same place in order.
    A step whose result requests share is taken by whichever comes first; it is compared where both have taken it.

    Args:
        options: Where to record to, or what to compare with, and within which bounds.

    Attributes:
        alignments: What became of each request, in the order in which they began.

    Raises:
        ParameterError: There is something already where a recording should go.
        StateError: What is to be compared with is no recording.
    """

    def __init__(self, options: ParityAlignerOptions) -> None:
        self._options = options
        self._lock = threading.Lock()
        self._recorders: dict[tuple[str, StepKey], TapRecorder] = {}
        self._seen: dict[str, set[StepKey]] = {}
        self.alignments: dict[str, Alignment] = {}
        if options.record is not None and options.record.exists() and any(options.record.iterdir()):
            raise ParameterError(
                "holds something already", field="plugins.observer.parityaligner.record", value=str(options.record),
                allowed="a new or an empty folder",
            )  # fmt: skip
        self._recorded = [] if options.compare is None else read_recording(options.compare)
        if options.record is None and options.compare is None:
            _LOG.warning("observer.parityaligner is on with neither record nor compare, and does nothing")

    def step_started(self, steps: Sequence[StepView]) -> None:
        """Begin with a step; what was seen of one that failed and runs again is forgotten."""
        if self._options.record is None and self._options.compare is None:
            return
        for step in steps:
            self._recorders[step.request_id, _key(step)] = TapRecorder(self._options.has)

    def tensor(self, name: str, step: StepView, value: torch.Tensor) -> None:
        """Keep a copy until the step has ended."""
        recorder = self._recorders.get((step.request_id, _key(step)))
        if recorder is not None:
            recorder.record(name, value)

    def step_finished(self, steps: Sequence[StepView], results: Sequence[ResultView], seconds: float) -> None:
        """Record a step, or compare it.

        Raises:
            ParityError: It differs, and the options ask for an end there.
        """
        for step in steps:
            recorder = self._recorders.pop((step.request_id, _key(step)), None)
            if recorder is not None:
                self._take(step, recorder.rows)

    def close(self) -> None:
        """Tell of requests that ended early or never came, and write the report."""
        for alignment in self.alignments.values():
            reference = self._reference(alignment)
            if reference is not None and alignment.parting is None:
                missing = len(reference.steps.keys() - reference.shared - self._seen[alignment.request_id])
                if missing:
                    reason = f"ended with {missing} of {len(reference.steps)} recorded steps not taken"
                    self._part(alignment, Parting("", -1, "", None, None, reason))
            _LOG.info("%s", _summary(alignment))
        if self._options.report is not None:
            self._options.report.write_text(json.dumps(self.report(), indent=2) + "\n", encoding="utf-8")

    def report(self) -> dict[str, Any]:
        """Return what was found, as plain data; `is_aligned` is None where nothing was compared."""
        met = {one.reference_id for one in self.alignments.values()}
        missing = [one.request_id for one in self._recorded if one.request_id not in met]
        is_aligned = not missing and all(one.parting is None for one in self.alignments.values())
        return {
            "recording": str(self._options.record or self._options.compare or ""),
            "is_aligned": is_aligned if self._options.compare is not None else None,
            "requests": [asdict(one) for one in self.alignments.values()],
            "requests_that_did_not_run": missing,
        }

    def _take(self, step: StepView, rows: list[TapRow]) -> None:
        ordinal, alignment = self._alignment(step.request_id)
        self._seen[step.request_id].add(_key(step))
        if self._options.record is not None:
            write_step(self._options.record, ordinal, step, rows)
        elif alignment.parting is not None or not self._compare(step, alignment, rows):
            return
        alignment.num_steps += 1
        alignment.num_tensors += len(rows)

    def _alignment(self, request_id: str) -> tuple[int, Alignment]:
        """Return a request's number and what is known of it; the first step of a request finds it its counterpart."""
        with self._lock:
            if request_id not in self.alignments:
                self.alignments[request_id] = one = Alignment(request_id)
                self._seen[request_id] = set()
                ordinal = len(self.alignments) - 1
                same = [other.request_id for other in self._recorded if other.request_id == request_id]
                one.reference_id = next(iter(same or [other.request_id for other in self._recorded[ordinal:]]), None)
            return list(self.alignments).index(request_id), self.alignments[request_id]

    def _reference(self, alignment: Alignment) -> RecordedRequest | None:
        return next((one for one in self._recorded if one.request_id == alignment.reference_id), None)

    def _compare(self, step: StepView, alignment: Alignment, rows: list[TapRow]) -> bool:
        """Compare a step, and say whether there was anything to compare it with."""
        reference = self._reference(alignment)
        path = None if reference is None else reference.steps.get(_key(step))
        if path is None and step.is_shared and reference is not None:
            return False
        if path is None:
            what = "request" if reference is None else "step"
            self._part(alignment, _parting(step, Divergence(0, "", None, f"the recording has no such {what}")))
            return False
        expected = [row for row in read_step(path) if self._options.has(row.name)]
        found = first_divergence(rows, expected, max_relative=self._options.bound)
        distances = [
            compare_tensors(row.value, other.value).max_relative
            for row, other in zip(rows[: None if found is None else found.index], expected, strict=False)
        ]
        alignment.max_relative = max([alignment.max_relative, *distances])
        if found is not None:
            self._part(alignment, _parting(step, found))
        return True

    def _part(self, alignment: Alignment, parting: Parting) -> None:
        alignment.parting = parting
        if self._options.stop and parting.step_index >= 0:
            raise ParityError(f"request {alignment.request_id} parts from the recording at {parting}")
        _LOG.warning("%s", _summary(alignment))


def _key(step: StepView) -> StepKey:
    return StepKey(step.node_id, step.step_index)


def _parting(step: StepView, found: Divergence) -> Parting:
    distance = found.comparison
    absolute = None if distance is None else distance.max_absolute
    relative = None if distance is None else distance.max_relative
    return Parting(step.node_id, step.step_index, found.name, absolute, relative, found.reason)


def _summary(alignment: Alignment) -> str:
    """Return one line on a request."""
    if alignment.parting is not None:
        return f"request {alignment.request_id} parts from the recording: {alignment.parting}"
    seen = f"{alignment.num_tensors} tensors in {alignment.num_steps} steps"
    if alignment.reference_id is None:
        return f"request {alignment.request_id}: {seen} recorded"
    return f"request {alignment.request_id}: {seen} agree, off by {alignment.max_relative:.3g} relative at most"
