"""The driver: the only place that iterates over the steps of a loop.

`LoopRun` is one loop in progress; `drive` iterates over its steps. What `execute` and `wait` return is awaited, so that
a control plane may run `drive` as a task, or send results into thousands of such coroutines by hand. Between two steps,
and only there, cancellation, outside events and saving take place.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Any, Generic, Protocol, TypeVar

from fastvideo_core.errors import InputError, NonFiniteError, OutOfMemoryError
from fastvideo_core.loop.base import Loop, LoopResult, OutOfMemory
from fastvideo_core.loop.hooks import RunHooks
from fastvideo_core.loop.work import Done, StepResult, Wait, WorkPlan
from fastvideo_core.request.cancel import CancelScope, CancelState

__all__ = ["DriverContext", "LoopRun", "drive"]

StateT = TypeVar("StateT")


class DriverContext(Protocol):
    """What the runtime gives the driver; `execute` is the one way from a loop to a device."""

    def execute(self, plan: WorkPlan[Any]) -> Awaitable[StepResult[Any]]:
        """Admit, batch, place and run one step."""
        ...

    def boundary(self, run: LoopRun[Any]) -> Awaitable[None] | None:
        """Apply what has come from outside since the last step; called between any two steps, and before the first.

        What it returns is awaited: it may hold the loop there, or end it. None holds nothing.
        """
        ...

    def wait(self, wait: Wait) -> Awaitable[bool]:
        """Return when a wait may be over: true if its time has come, false if something has come from outside."""
        ...

    def committed(self, run: LoopRun[Any], plan: WorkPlan[Any], result: StepResult[Any]) -> None:
        """Take note of a committed step: stream its chunks, report progress, save the state."""
        ...


class LoopRun(Generic[StateT]):
    """One loop in progress: its state, how many steps have been committed, and what plans carry for interceptors."""

    __slots__ = ("cancel", "hooks", "loop", "node_id", "num_committed", "scope", "state")

    def __init__(
        self,
        loop: Loop[StateT],
        state: StateT,
        *,
        scope: CancelScope,
        cancel: CancelState,
        node_id: str = "",
        hooks: RunHooks | None = None,
    ) -> None:
        self.loop = loop
        self.state = state
        self.scope = scope
        self.cancel = cancel
        self.node_id = node_id
        self.hooks = hooks
        self.num_committed = 0

    def plan(self) -> WorkPlan[Any] | Wait | Done:
        """Return the next step, unless the scope is cancelled.

        Raises:
            CancelledError: The scope, or one around it, was cancelled.
        """
        self.cancel.check(self.scope)
        plan = self.loop.next(self.state)
        if self.hooks is not None and isinstance(plan, WorkPlan):
            return self.hooks.attach(plan, self.state)
        return plan

    def commit(self, plan: WorkPlan[Any], result: StepResult[Any]) -> None:
        """Fold a result into the state.

        Raises:
            NonFiniteError: The step gave NaN or infinity; the state stays as it was before the step.
        """
        if result.is_finite is False:
            raise NonFiniteError(
                f"{plan.where()} gave NaN or infinity in {plan.batch_key.component} "
                f"at {plan.batch_key.precision}; nothing was written"
            )
        self.state = self.loop.advance(self.state, result)
        if result.plugin_states is not None:
            _keep_plugin_states(self.state, result.plugin_states)
        self.num_committed += 1

    def apply(self, event: Any) -> None:
        """Fold an outside event into the state."""
        self.state = self.loop.apply(self.state, event)

    def shrink(self, error: OutOfMemoryError) -> None:
        """Let the loop ask for less memory from here on.

        Raises:
            OutOfMemoryError: It cannot.
        """
        try:
            self.apply(OutOfMemory(str(error)))
        except InputError:
            raise error from None

    def result(self) -> LoopResult:
        """Return what the loop hands on, after `Done`."""
        return self.loop.finalize(self.state)


def _keep_plugin_states(state: Any, new: Mapping[str, Mapping[str, Any]]) -> None:
    for interceptor, states in new.items():
        state.plugin_state[interceptor] = {**state.plugin_state.get(interceptor, {}), **states}


async def drive(run: LoopRun[Any], ctx: DriverContext) -> LoopResult:
    """Run a loop to its end.

    Raises:
        CancelledError: The scope was cancelled at a step boundary.
        NonFiniteError: A step gave NaN or infinity.
        OutOfMemoryError: A step found no memory, and the loop cannot go on with less.
    """
    while True:
        held = ctx.boundary(run)
        if held is not None:
            await held
        plan = run.plan()
        if isinstance(plan, Done):
            return run.result()
        if isinstance(plan, Wait):
            if await ctx.wait(plan):
                run.apply(None)
            continue
        try:
            result = await ctx.execute(plan)
        except OutOfMemoryError as error:
            run.shrink(error)
            continue
        run.commit(plan, result)
        ctx.committed(run, plan, result)
