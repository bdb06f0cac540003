"""A small interceptor of each level and an observer, complete and correct: for tests, and to look at.

Their descriptions are `HOLD`, `REUSE` and `RECORD`; `extensions_of` switches any of them on, installed or
not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field

from fastvideo_core.extend import InterceptorSpec, ObserverSpec, PluginSpec, hookimpl, load_plugins
from fastvideo_core.extend.extensions import Extensions
from fastvideo_core.loop.hooks import BlockCall, BlockOutcome, ResultView, StepCall, StepView
from fastvideo_core.loop.state import PluginState

__all__ = [
    "HOLD",
    "RECORD",
    "REUSE",
    "HoldInterceptor",
    "HoldState",
    "PeriodOptions",
    "RecordObserver",
    "ReuseInterceptor",
    "ReuseState",
    "extensions_of",
]

_HERE = "fastvideo_testing.samples"

HOLD = InterceptorSpec(
    name="hold",
    implementation=f"{_HERE}:HoldInterceptor",
    summary="gives the last prediction again, all but every n-th time",
    options=f"{_HERE}:PeriodOptions",
    request_options=("period",),
    level="step",
    state=f"{_HERE}:HoldState",
    declared_error=0.5,
    needs_steps_at_least=2,
)

REUSE = InterceptorSpec(
    name="reuse",
    implementation=f"{_HERE}:ReuseInterceptor",
    summary="adds what the blocks added last time, all but every n-th time",
    options=f"{_HERE}:PeriodOptions",
    request_options=("period",),
    level="block",
    state=f"{_HERE}:ReuseState",
    declared_error=0.5,
    max_batch=1,
    needs_steps_at_least=2,
)

RECORD = ObserverSpec(
    name="record",
    implementation=f"{_HERE}:RecordObserver",
    summary="keeps what it is told",
    wants=("steps", "tensors"),
)


class PeriodOptions(BaseModel):
    """Options of both interceptors.

    Attributes:
        period: The model computes every so many times; 1 computes always.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    period: int = Field(default=2, ge=1, le=100)


@dataclass(frozen=True, slots=True)
class HoldState(PluginState):
    """What `HoldInterceptor` remembers of a branch: its last prediction, and how often that has been given again."""

    prediction_1CTHW: torch.Tensor
    age: int


class HoldInterceptor:
    """Gives the last prediction again, all but every n-th time."""

    def __init__(self, options: PeriodOptions) -> None:
        self._options = options

    def answer(self, call: StepCall, states: Mapping[str, HoldState]) -> torch.Tensor | None:
        """Return the last prediction while it is young enough."""
        if any(branch not in states for branch in call.wanted.branches):
            return None
        held = [states[branch] for branch in call.wanted.branches]
        if held[0].age + 1 >= call.options.period:
            return None
        return torch.cat([one.prediction_1CTHW for one in held])

    def record(
        self, call: StepCall, states: Mapping[str, HoldState], prediction: torch.Tensor, *, is_computed: bool
    ) -> Mapping[str, HoldState]:
        """Keep a new prediction, or count."""
        if is_computed:
            rows = zip(call.wanted.branches, prediction.split(1), strict=True)
            return {branch: HoldState(row.detach().clone(), 0) for branch, row in rows}
        return {branch: HoldState(one.prediction_1CTHW, one.age + 1) for branch, one in states.items()}


@dataclass(frozen=True, slots=True)
class ReuseState(PluginState):
    """What `ReuseInterceptor` remembers of a branch: what the blocks added, and how often that has been used again."""

    added: torch.Tensor
    age: int


class ReuseInterceptor:
    """Adds what the blocks added last time, all but every n-th time."""

    def __init__(self, options: PeriodOptions) -> None:
        self._options = options

    def run_blocks(
        self, call: BlockCall, state: ReuseState | None, blocks: Sequence[Any], hidden: torch.Tensor, *inputs: Any
    ) -> BlockOutcome:
        """Run the blocks, or add what they added."""
        if state is not None and state.age + 1 < call.options.period:
            return BlockOutcome(hidden + state.added, ReuseState(state.added, state.age + 1), computed_share=0.0)
        after = hidden
        for block in blocks:
            after = block(after, *inputs)
        return BlockOutcome(after, ReuseState((after - hidden).detach(), 0))


class RecordObserver:
    """Keeps what it is told.

    Attributes:
        started: Steps of each call that began.
        finished: Results and seconds of each call that ended.
        tensors: Names of tensors, their requests, and their sums.
        is_closed: Whether the engine has ended.
    """

    def __init__(self, options: None) -> None:
        self.started: list[tuple[StepView, ...]] = []
        self.finished: list[tuple[tuple[ResultView, ...], float]] = []
        self.tensors: list[tuple[str, str, float]] = []
        self.is_closed = False

    def step_started(self, steps: Sequence[StepView]) -> None:
        """Note the steps."""
        self.started.append(tuple(steps))

    def tensor(self, name: str, step: StepView, value: torch.Tensor) -> None:
        """Note a tensor's sum."""
        self.tensors.append((name, step.request_id, float(value.double().sum())))

    def step_finished(self, steps: Sequence[StepView], results: Sequence[ResultView], seconds: float) -> None:
        """Note the results."""
        self.finished.append((tuple(results), seconds))

    def close(self) -> None:
        """Note the end."""
        self.is_closed = True


def extensions_of(*specs: PluginSpec, options: Mapping[str, Mapping[str, Any]] | None = None) -> Extensions:
    """Return extensions with some observers and interceptors on, each as a plugin of its own.

    Args:
        specs: Their descriptions; the plugin of one is named `interceptor.NAME` or `observer.NAME`.
        options: Options by plugin.
    """
    registry = load_plugins(available=())
    named: dict[str, Mapping[str, Any]] = {}
    for spec in specs:
        kind = "observer" if isinstance(spec, ObserverSpec) else "interceptor"
        named[f"{kind}.{spec.name}"] = (options or {}).get(f"{kind}.{spec.name}", {})
        registry.manager.register(_Plugin(spec), name=f"{kind}.{spec.name}")
    return Extensions.of(registry, named, strict=True)


class _Plugin:
    def __init__(self, spec: PluginSpec) -> None:
        self._spec = spec

    @hookimpl
    def observers(self) -> list[PluginSpec]:
        return [self._spec] if isinstance(self._spec, ObserverSpec) else []

    @hookimpl
    def interceptors(self) -> list[PluginSpec]:
        return [self._spec] if isinstance(self._spec, InterceptorSpec) else []
