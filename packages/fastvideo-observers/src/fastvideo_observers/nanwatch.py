"""NaNWatch: where the first NaN or infinity of a request came from."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch

from fastvideo_core.loop.hooks import ResultView, StepView
from fastvideo_observers.options import NaNWatchOptions

__all__ = ["Finding", "NaNWatch"]

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Finding:
    """The first tensor of a request that was not finite.

    Attributes:
        request_id: The request.
        loop_id: The loop.
        component: The component that computed.
        step_index: The step, from 0.
        tensor: Name of the tensor, for instance `rows.blocks.3`; "result" where the step's result was the first.
        num_nan: Values that are NaN; None where the tensor was not seen.
        num_inf: Values that are infinite; None where the tensor was not seen.
        num_values: Values in all; None where the tensor was not seen.
    """

    request_id: str
    loop_id: str
    component: str
    step_index: int
    tensor: str
    num_nan: int | None = None
    num_inf: int | None = None
    num_values: int | None = None

    def __str__(self) -> str:
        """Return it in words."""
        counts = (
            "" if self.num_values is None else f", {self.num_nan} NaN and {self.num_inf} infinite of {self.num_values}"
        )
        return (
            f"request {self.request_id}: {self.loop_id} step {self.step_index + 1}, {self.component}: "
            f"{self.tensor} is the first that is not finite{counts}"
        )


class NaNWatch:
    """Looks at every tensor of every step until a request's first one is found that is not finite.

    Attributes:
        findings: One a request that had one, by request.
    """

    def __init__(self, options: NaNWatchOptions) -> None:
        self._options = options
        self.findings: dict[str, Finding] = {}

    def step_started(self, steps: Sequence[StepView]) -> None:
        """Do nothing: there is nothing to see yet."""

    def tensor(self, name: str, step: StepView, value: torch.Tensor) -> None:
        """Look at a tensor, unless its request has had its finding."""
        if step.request_id in self.findings or not (value.is_floating_point() or value.is_complex()):
            return
        if not bool(torch.isfinite(value).all()):
            num_nan = int(torch.isnan(value).sum())
            num_bad = int((~torch.isfinite(value)).sum())
            self._found(step, name, num_nan, num_bad - num_nan, value.numel())

    def step_finished(self, steps: Sequence[StepView], results: Sequence[ResultView], seconds: float) -> None:
        """Note a result that is not finite, where no tensor before it was."""
        for step, result in zip(steps, results, strict=True):
            if not result.is_finite and step.request_id not in self.findings:
                self._found(step, "result")

    def close(self) -> None:
        """Write the findings."""
        if self._options.file is not None:
            lines = [json.dumps(asdict(finding)) for finding in self.findings.values()]
            self._options.file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")

    def _found(
        self,
        step: StepView,
        name: str,
        num_nan: int | None = None,
        num_inf: int | None = None,
        num_values: int | None = None,
    ) -> None:
        component = step.batch_key.component
        finding = Finding(step.request_id, step.loop_id, component, step.step_index, name, num_nan, num_inf, num_values)
        self.findings[step.request_id] = finding
        _LOG.warning("%s", finding)
