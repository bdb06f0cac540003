"""The device plane: one call of a step body for a batch of plans, and what is done where it fails.

A step only reads its plans, so that it can be run again: without a row that gave NaN, or row by row to find the one
that raises. What fails alone is that request's failure; its peers have the results that they have without it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fastvideo_core.errors import ExecutionError, FastVideoError, WorkerLostError
from fastvideo_core.loop.work import StepResult, WorkPlan
from fastvideo_core.runtime.compile_cache import BlockRunner, CompileCache
from fastvideo_core.runtime.failures import as_failure, is_device_lost, is_out_of_memory
from fastvideo_core.runtime.finite import check_finite
from fastvideo_core.runtime.instance import ModelInstance

__all__ = ["CallOutcome", "Tap", "run_call"]

Tap = Callable[[str, WorkPlan[Any], torch.Tensor], None]
"""An observer of named intermediate tensors: name, the plan that it belongs to, and the tensor, which it only reads."""

Outcome = StepResult[Any] | FastVideoError


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """What became of a call.

    Attributes:
        outcomes: A result or an error for each plan, in order.
        seconds: Seconds of the call.
        is_clean: Whether one run of the step body did it, so that the time says something about the cost.
    """

    outcomes: list[Outcome]
    seconds: float
    is_clean: bool

    def results(self) -> list[StepResult[Any]]:
        """Return the results; of a clean call there is one for each plan."""
        return [one for one in self.outcomes if isinstance(one, StepResult)]


class _StepContext:
    """Routes taps to the observer, if there is one, and offers what runs blocks."""

    __slots__ = ("_plans", "_tap", "blocks_runner")

    def __init__(self, plans: Sequence[WorkPlan[Any]], tap: Tap | None, blocks_runner: BlockRunner | None) -> None:
        self._plans = plans
        self._tap = tap
        self.blocks_runner = blocks_runner

    @property
    def is_tapped(self) -> bool:
        return self._tap is not None

    def tap(self, name: str, value: torch.Tensor) -> None:
        if self._tap is not None:
            self._tap(name, self._plans[0], value)


def run_call(
    instance: ModelInstance,
    plans: Sequence[WorkPlan[Any]],
    tap: Tap | None = None,
    compiler: CompileCache | None = None,
) -> CallOutcome:
    """Run a batch of plans, and again in parts where that fails.

    Args:
        instance: The resident model.
        plans: Plans that share a call.
        tap: Observer of intermediate tensors; a tapped step is alone in its call, and runs eagerly.
        compiler: Offers compiled blocks; not for what is run again after a failure.

    Raises:
        WorkerLostError: The device is lost, and with it whatever was on it.
    """
    started_at = time.perf_counter()
    if tap is not None and len(plans) > 1:
        outcomes = [one for plan in plans for one in _run(instance, [plan], tap)[0]]
        return CallOutcome(outcomes, time.perf_counter() - started_at, is_clean=False)
    runner = None if compiler is None or tap is not None else compiler.runner(plans)
    outcomes, is_clean = _run(instance, plans, tap, runner)
    is_cold = runner is not None and runner.is_cold
    return CallOutcome(outcomes, time.perf_counter() - started_at, is_clean and not is_cold)


def _run(
    instance: ModelInstance, plans: Sequence[WorkPlan[Any]], tap: Tap | None, runner: BlockRunner | None = None
) -> tuple[list[Outcome], bool]:
    results: Sequence[StepResult[Any]] = ()
    try:
        results = check_finite(_call_body(instance, plans, _StepContext(plans, tap, runner)))
    except BaseException as error:
        if is_device_lost(error):
            raise WorkerLostError(f"{plans[0].where()}: the device is lost: {error}") from error
        if len(plans) == 1:
            return [_failure(error, plans[0])], False
        is_memory = is_out_of_memory(error)
    if not results:
        # Not above: while an error is handled, its frames live, and with them all tensors of the call.
        if is_memory:
            _release_cached_memory(instance.device)
        half = len(plans) // 2 if is_memory else 1
        return _run_parts(instance, [plans[i : i + half] for i in range(0, len(plans), half)], tap), False
    if len(plans) == 1 or all(result.is_finite is not False for result in results):
        return list(results), True
    return _without_failed_rows(instance, plans, results, tap), False


def _call_body(
    instance: ModelInstance, plans: Sequence[WorkPlan[Any]], context: _StepContext
) -> Sequence[StepResult[Any]]:
    plan = plans[0]
    with torch.set_grad_enabled(plan.profile == "train"):
        results = instance.steps[plan.loop_id](instance, plans, context)
    if len(results) != len(plans) or not all(isinstance(result, StepResult) for result in results):
        raise ExecutionError(f"{plan.where()} failed: it gave {len(results)} results of {len(plans)} plans")
    return results


def _run_parts(instance: ModelInstance, parts: Sequence[Sequence[WorkPlan[Any]]], tap: Tap | None) -> list[Outcome]:
    return [outcome for part in parts for outcome in _run(instance, part, tap)[0]]


def _without_failed_rows(
    instance: ModelInstance, plans: Sequence[WorkPlan[Any]], results: Sequence[StepResult[Any]], tap: Tap | None
) -> list[Outcome]:
    """Run the rows that are finite again, without those that are not."""
    good = [plan for plan, result in zip(plans, results, strict=True) if result.is_finite is not False]
    again = iter(_run(instance, good, tap)[0] if good else ())
    return [next(again) if result.is_finite is not False else result for result in results]


def _failure(error: BaseException, plan: WorkPlan[Any]) -> FastVideoError:
    failure = as_failure(error, plan.where())
    if failure is not error:
        failure.__cause__ = error
    return failure


def _release_cached_memory(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.empty_cache()
