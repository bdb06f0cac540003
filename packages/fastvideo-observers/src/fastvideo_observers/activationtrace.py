"""ActivationTrace: mean, spread and extremes of every intermediate tensor, step by step."""

from __future__ import annotations

import csv
import json
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch

from fastvideo_core.loop.hooks import ResultView, StepView
from fastvideo_observers.options import ActivationTraceOptions

__all__ = ["Activation", "ActivationTrace"]

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Activation:
    """What one tensor of one step was like. The four figures are of its finite values; None where it has none.

    Attributes:
        request_id: The request.
        node_id: Node of the program.
        component: The component that computed.
        step_index: The step, from 0.
        tensor: Its name, for instance `rows.blocks.3`.
        shape: Its shape.
        dtype: Its number format.
        mean: Mean.
        std: Standard deviation.
        min: Least value.
        max: Greatest value.
        num_bad: Values that are NaN or infinite.
    """

    request_id: str
    node_id: str
    component: str
    step_index: int
    tensor: str
    shape: tuple[int, ...]
    dtype: str
    mean: float | None
    std: float | None
    min: float | None
    max: float | None
    num_bad: int


class ActivationTrace:
    """Notes what tensors are like.

    Attributes:
        rows: One a tensor, in the order in which they came; a step that is run again has its rows twice.
    """

    def __init__(self, options: ActivationTraceOptions) -> None:
        self._options = options
        self._num_left_out = 0
        self.rows: list[Activation] = []

    def step_started(self, steps: Sequence[StepView]) -> None:
        """Do nothing: there is nothing to see yet."""

    def tensor(self, name: str, step: StepView, value: torch.Tensor) -> None:
        """Note a tensor."""
        if step.step_index % self._options.every or not self._options.has(name):
            return
        if len(self.rows) >= self._options.max_rows:
            self._num_left_out += 1
            return
        self.rows.append(_describe(name, step, value))

    def step_finished(self, steps: Sequence[StepView], results: Sequence[ResultView], seconds: float) -> None:
        """Do nothing: the step's tensors have been seen."""

    def close(self) -> None:
        """Write the rows."""
        if self._num_left_out:
            _LOG.warning("%d tensors were left out: max_rows is %d", self._num_left_out, self._options.max_rows)
        path = self._options.file
        if path is None:
            return
        write = _write_csv if path.suffix.lower() == ".csv" else _write_lines
        write(path, self.rows)


def _describe(name: str, step: StepView, value: torch.Tensor) -> Activation:
    # In doubles: the squares of a half's values would not fit, and sums of many floats lose figures.
    numbers = (torch.view_as_real(value.resolve_conj()) if value.is_complex() else value).detach().double()
    good = numbers[torch.isfinite(numbers)]
    mean = std = least = greatest = None
    if good.numel():
        mean, std = good.mean().item(), good.std(correction=0).item()
        least, greatest = good.min().item(), good.max().item()
    return Activation(
        step.request_id, step.node_id, step.batch_key.component, step.step_index, name, tuple(value.shape),
        str(value.dtype).removeprefix("torch."), mean, std, least, greatest, numbers.numel() - good.numel(),
    )  # fmt: skip


def _write_lines(path: Path, rows: Sequence[Activation]) -> None:
    path.write_text("".join(f"{json.dumps(asdict(row))}\n" for row in rows), encoding="utf-8")


def _write_csv(path: Path, rows: Sequence[Activation]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Activation)])
        writer.writeheader()
        writer.writerows({**asdict(row), "shape": "x".join(map(str, row.shape))} for row in rows)
