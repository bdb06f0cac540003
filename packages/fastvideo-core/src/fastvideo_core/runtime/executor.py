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

from fastvideo_core.loop.work import StepResult, WorkPlan
from fastvideo_core.runtime.failures import as_failure
from fastvideo_core.runtime.instance import ModelInstance

__all__ = ["Executor", "SerialExecutor", "Tap"]

_T = TypeVar("_T")
Tap = Callable[[str, WorkPlan[Any], torch.Tensor], None]
"""An observer of named intermediate tensors: name, the plan that it belongs to, and the tensor, which it only reads."""


class Executor(Protocol):
    """Runs steps."""

    async def execute(self, plan: WorkPlan[Any]) -> StepResult[Any]:
        """Run one step, alone or with others."""
        ...

    async def call(self, function: Callable[[], _T], *, where: str) -> _T:
        """Run host work that belongs to the device plane (drawing noise, converting frames); `where` names it."""
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
        self._instances = dict(instances)
        self._tap = tap
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="fastvideo-device")

    async def execute(self, plan: WorkPlan[Any]) -> StepResult[Any]:
        """Run one step.

        Raises:
            ExecutionError: The step failed; the message names it and the cause.
            ResourceError: The device had no memory left for it.
        """
        return await self.call(lambda: self._run(plan), where=plan.where())

    async def call(self, function: Callable[[], _T], *, where: str) -> _T:
        """Run a function on the worker thread.

        Raises:
            ExecutionError: It failed; `where` begins the message.
            ResourceError: There was no memory left for it.
        """
        return await asyncio.get_running_loop().run_in_executor(self._worker, _guarded, function, where)

    def close(self) -> None:
        """Stop the worker after the step in progress, and let go of the models."""
        self._worker.shutdown(wait=True, cancel_futures=True)
        self._instances.clear()

    def _run(self, plan: WorkPlan[Any]) -> StepResult[Any]:
        instance = self._instances[plan.instance_id]
        context = _StepContext(plan, self._tap)
        with torch.set_grad_enabled(plan.profile == "train"):
            (result,) = instance.steps[plan.loop_id](instance, [plan], context)
        return result


def _guarded(function: Callable[[], _T], where: str) -> _T:
    """Run a function; whatever it raises, an exit of the interpreter included, ends one request and not the engine."""
    try:
        return function()
    except BaseException as error:
        failure = as_failure(error, where)
        if failure is error:
            raise
        raise failure from error
