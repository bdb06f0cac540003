"""The first executor behind the seam: one worker thread, one step at a time, oldest first.

All requests' steps meet here, so they interleave at step boundaries. A scheduler that batches and prices them takes
this class's place without a change to any loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

import torch

from fastvideo_core.errors import ExecutionError, FastVideoError, ResourceError
from fastvideo_core.loop.work import StepResult, WorkPlan
from fastvideo_core.runtime.instance import ModelInstance

__all__ = ["Executor", "SerialExecutor", "Tap"]

_T = TypeVar("_T")
Tap = Callable[[str, WorkPlan[Any], torch.Tensor], None]
"""An observer of named intermediate tensors: name, the plan they belong to, and the tensor, which it must not change."""


class Executor(Protocol):
    """Runs steps."""

    async def execute(self, plan: WorkPlan[Any]) -> StepResult[Any]:
        """Run one step, alone or with others."""
        ...

    async def call(self, function: Callable[[], _T]) -> _T:
        """Run host work that belongs to the device plane (drawing noise, converting frames)."""
        ...

    def close(self) -> None:
        """Stop the workers; steps in progress end first."""
        ...


class _StepContext:
    """Routes taps to the observer, if there is one."""

    __slots__ = ("_plan", "_tap")

    def __init__(self, plan: WorkPlan[Any], tap: Tap | None) -> None:
        self._plan = plan
        self._tap = tap

    @property
    def is_tapped(self) -> bool:
        return self._tap is not None

    def tap(self, name: str, value: torch.Tensor) -> None:
        if self._tap is not None:
            self._tap(name, self._plan, value)


class SerialExecutor:
    """One worker thread that runs one step at a time, in the order in which they were asked for.

    Args:
        instances: Resident models by `instance_id`.
        tap: Observer of intermediate tensors.
    """

    def __init__(self, instances: Mapping[str, ModelInstance], *, tap: Tap | None = None) -> None:
        self._instances = instances
        self._tap = tap
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="fastvideo-device")

    async def execute(self, plan: WorkPlan[Any]) -> StepResult[Any]:
        """Run one step.

        Raises:
            ExecutionError: The step failed; the message names it and the cause.
            ResourceError: The device had no memory left for it.
        """
        return await self.call(lambda: self._run(plan))

    async def call(self, function: Callable[[], _T]) -> _T:
        """Run a function on the worker thread."""
        return await asyncio.get_running_loop().run_in_executor(self._worker, function)

    def close(self) -> None:
        """Stop the worker after the step in progress."""
        self._worker.shutdown(wait=True, cancel_futures=True)

    def _run(self, plan: WorkPlan[Any]) -> StepResult[Any]:
        instance = self._instances[plan.instance_id]
        context = _StepContext(plan, self._tap)
        try:
            with torch.set_grad_enabled(plan.profile == "train"):
                (result,) = instance.steps[plan.loop_id](instance, [plan], context)
        except FastVideoError:
            raise
        except Exception as error:  # whatever a step body raises ends this request, with the step named
            raise _explain(plan, error) from error
        return result


def _explain(plan: WorkPlan[Any], error: Exception) -> FastVideoError:
    of = f" of {plan.num_steps}" if plan.num_steps else ""
    where = f"{plan.cancel_scope.path()}: step {plan.step_index + 1}{of} of {plan.loop_id}"
    is_memory = isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "can't allocate memory" in str(error)
    if is_memory:
        first_line = str(error).splitlines()[0] if str(error) else "no more memory"
        return ResourceError(f"{where} ran out of memory: {first_line}; ask for fewer frames or a smaller size")
    return ExecutionError(f"{where} failed: {type(error).__name__}: {' '.join(str(error).split())}")
