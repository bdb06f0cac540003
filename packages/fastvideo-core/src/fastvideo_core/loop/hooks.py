"""What observers and interceptors are given, and what a step body does for them.

A step body says with `supports_hooks` which interceptors it can carry, and asks `hooks_of(ctx)`; None means that nobody
is there, and that it runs as if these lines were not. A step interceptor answers for the model's predictions, before
guidance and the sampler; a block interceptor runs the model's blocks. Neither keeps anything of a request: its state is
handed to it and comes back with the step's result, and becomes valid when the runtime commits the step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from fastvideo_core.loop.work import BatchKey, PluginWork, StepCost, WorkPlan

if TYPE_CHECKING:
    import torch

    from fastvideo_core.loop.state import PluginState

__all__ = [
    "BlockCall",
    "BlockInterceptor",
    "BlockOutcome",
    "BlocksRunner",
    "BranchesInterceptor",
    "BranchesOutcome",
    "BranchesRunner",
    "HookLevel",
    "Observer",
    "Prediction",
    "ResultView",
    "RunHooks",
    "SelectRows",
    "StepCall",
    "StepHooks",
    "StepInterceptor",
    "StepView",
    "hook_levels",
    "hooks_of",
    "state_key",
    "supports_hooks",
]

HookLevel = Literal["step", "block"]
_BodyT = TypeVar("_BodyT", bound=Callable[..., Any])
_MARK = "fastvideo_hook_levels"


@dataclass(frozen=True, slots=True)
class StepView:
    """What a hook may know of a step: where it belongs, and nothing that it could change.

    Attributes:
        request_id: The request.
        loop_id: The loop.
        step_index: Position in the loop, from 0.
        num_steps: Steps that the loop takes, where it is known.
        batch_key: Component, shapes, precision, profile and what else decides about batches.
        node_id: The node of the program that the loop runs for; one loop may run for several.
        cost: What the step states that it takes, for the cost model.
        device: The device that it runs on, as torch names it.
        is_shared: Whether other requests may take its result in place of a step of their own.
        interceptors: Names of the interceptors that stand at it.
    """

    request_id: str
    loop_id: str
    step_index: int
    num_steps: int | None
    batch_key: BatchKey
    node_id: str
    cost: StepCost
    device: str = "cpu"
    is_shared: bool = False
    interceptors: tuple[str, ...] = ()

    @classmethod
    def of(cls, plan: WorkPlan[Any], device: str = "cpu") -> StepView:
        """Return the view of a plan that runs on a device."""
        scope, node_id = plan.cancel_scope, plan.loop_id
        while scope.parent is not None:
            scope, node_id = scope.parent, scope.scope_id
        return cls(
            scope.scope_id,
            plan.loop_id,
            plan.step_index,
            plan.num_steps,
            plan.batch_key,
            node_id,
            plan.resources.cost,
            device,
            plan.cache.result_key is not None,
            () if plan.plugins is None else tuple(plan.plugins.options),
        )


@dataclass(frozen=True, slots=True)
class ResultView:
    """What an observer may know of a step's result.

    Attributes:
        is_finite: Whether all of it is finite.
        computed_share: How much of what the step states was computed; interceptors make it less than 1.
        scalars: The step's host numbers.
    """

    is_finite: bool
    computed_share: float
    scalars: Mapping[str, float]

    @property
    def is_computed(self) -> bool:
        """Whether all of it was computed."""
        return self.computed_share == 1


class Observer(Protocol):
    """Looks at steps; the object that an `ObserverSpec` names is called with its options and gives one."""

    def step_started(self, steps: Sequence[StepView]) -> None:
        """Take note of a call that begins, with the steps that share it."""
        ...

    def tensor(self, name: str, step: StepView, value: torch.Tensor) -> None:
        """Look at an intermediate tensor; only where the spec wants tensors. It must not be changed."""
        ...

    def step_finished(self, steps: Sequence[StepView], results: Sequence[ResultView], seconds: float) -> None:
        """Take note of a call that has ended; one that failed only begins, and may begin again in parts."""
        ...

    def close(self) -> None:
        """Write what there is to write; the engine has ended."""
        ...


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a step body needs of the model for one plan.

    Attributes:
        component: The model that would compute it: with several experts, the one in turn.
        branches: Guidance branches; the prediction has a row for each, in this order.
        sample: What the model would see, of one row.
        noise_level: Noise level of the sample, from one (noise) to zero.
        index: Which of the loop's predictions it is, from 0: a loop may have steps that make none. None where the
            family does not say.
        num_predictions: How many the loop makes; None where the family does not say.
    """

    component: str
    branches: tuple[str, ...]
    sample: torch.Tensor
    noise_level: float
    index: int | None = None
    num_predictions: int | None = None


@dataclass(frozen=True, slots=True)
class StepCall:
    """A prediction that a step interceptor may answer.

    Attributes:
        step: Where it belongs.
        wanted: What is needed.
        options: The interceptor's options for this request, an object of its own model; None if it has none.
    """

    step: StepView
    wanted: Prediction
    options: Any


class StepInterceptor(Protocol):
    """Answers for the model; the object that an `InterceptorSpec` names is called with its options and gives one."""

    def answer(self, call: StepCall, states: Mapping[str, PluginState]) -> torch.Tensor | None:
        """Return the prediction, a row for each branch, or None for the model to compute it.

        Args:
            call: What is needed.
            states: States by branch, of this request and component; empty at first. They are only read.
        """
        ...

    def record(
        self, call: StepCall, states: Mapping[str, PluginState], prediction: torch.Tensor, *, is_computed: bool
    ) -> Mapping[str, PluginState]:
        """Return new states by branch, after a prediction; those that are left out stay.

        Args:
            call: What was needed.
            states: States as `answer` saw them.
            prediction: What was given, a row for each branch; a state that keeps it keeps a copy of its own.
            is_computed: Whether the model computed it; else this interceptor or another one answered.
        """
        ...


@dataclass(frozen=True, slots=True)
class BlockCall:
    """A pass through a model's blocks for one branch of one plan.

    Attributes:
        step: Where it belongs.
        component: The model.
        branch: The guidance branch.
        options: The interceptor's options for this request; None if it has none.
        index: Which of the loop's predictions it is for, as of `Prediction`.
        num_predictions: How many the loop makes, as of `Prediction`.
    """

    step: StepView
    component: str
    branch: str
    options: Any
    index: int | None = None
    num_predictions: int | None = None


@dataclass(frozen=True, slots=True)
class BlockOutcome:
    """What a block interceptor gives back.

    Attributes:
        hidden: The stream after the last block.
        state: Its new state for this branch; None leaves it as it was.
        computed_share: How many of the blocks ran, of all: from 0 to 1.
    """

    hidden: torch.Tensor
    state: PluginState | None
    computed_share: float = 1.0


class BlockInterceptor(Protocol):
    """Runs blocks; the object that an `InterceptorSpec` names is called with its options and gives one."""

    def run_blocks(
        self, call: BlockCall, state: PluginState | None, blocks: Sequence[Any], hidden: torch.Tensor, *inputs: Any
    ) -> BlockOutcome:
        """Go through the blocks, each of which is called as `block(hidden, *inputs)` and gives the next `hidden`.

        Args:
            call: Where it belongs.
            state: State of this request, component and branch; None at first. It is only read.
            blocks: The blocks in order.
            hidden: The stream, (1, S, D).
            inputs: What every block takes besides.
        """
        ...


SelectRows = Callable[["Sequence[int]"], "tuple[Any, ...]"]
"""Given some rows, ascending, returns what a block takes besides the stream of these rows."""

BlocksRunner = Callable[..., "torch.Tensor"]
"""Called with the blocks, the stream, and what every block takes besides; gives the stream after the last block."""

BranchesRunner = Callable[..., "torch.Tensor"]
"""Called with the blocks, the stream, a `SelectRows`, and what every block takes besides; gives the stream after the
last block, with a row for each branch."""


@dataclass(frozen=True, slots=True)
class BranchesOutcome:
    """What a block interceptor gives back for all branches of a request.

    Attributes:
        hidden: The stream after the last block, with a row for each branch.
        states: The new state of each branch; None leaves it as it was.
        computed_share: How many of the blocks of all branches ran, of all: from 0 to 1.
    """

    hidden: torch.Tensor
    states: Sequence[PluginState | None]
    computed_share: float = 1.0


class BranchesInterceptor(BlockInterceptor, Protocol):
    """A block interceptor that also takes all branches of a request as rows of one call, where the family offers it.

    Rows that share a call cost less than rows that are alone in theirs, and what branches have in common is computed
    once. Rows of other requests are never in it.
    """

    def run_branches(
        self,
        calls: Sequence[BlockCall],
        states: Sequence[PluginState | None],
        blocks: Sequence[Any],
        hidden: torch.Tensor,
        select: SelectRows,
        *inputs: Any,
    ) -> BranchesOutcome:
        """Go through the blocks with a row for each branch.

        Args:
            calls: Where each row belongs.
            states: State of each row; only read.
            blocks: The blocks in order. The first takes the stream as it comes, and gives a row for each branch.
            hidden: The stream, (R, S, D), or (1, S, D) where the rows are the same before the first block.
            select: For blocks after the first that are to run for some rows only.
            inputs: What every block takes besides the stream of all rows.
        """
        ...


class StepHooks(Protocol):
    """What the interceptors ask of a step body, for one call of it."""

    @property
    def has_step_interceptors(self) -> bool:
        """Whether predictions are to be asked for through `predict`."""
        ...

    @property
    def has_block_interceptors(self) -> bool:
        """Whether the model has to run each plan alone, with `branches_runner` or, by branch, with `blocks_runner`."""
        ...

    def predict(
        self, wanted: Sequence[Prediction], compute: Callable[[Sequence[int]], Sequence[torch.Tensor]]
    ) -> list[torch.Tensor]:
        """Return a prediction for each plan of the call.

        Args:
            wanted: What is needed, by plan.
            compute: Given the indices of some plans, lets the model compute theirs in one call.
        """
        ...

    def blocks_runner(self, index: int, component: str, branch: str) -> BlocksRunner | None:
        """Return what is to run the blocks for a branch of a plan; None if nobody wants to."""
        ...

    def branches_runner(self, index: int, component: str, branches: Sequence[str]) -> BranchesRunner | None:
        """Return what is to run the blocks for all branches of a plan as rows of one call; None if nobody can."""
        ...


@dataclass(frozen=True, slots=True)
class RunHooks:
    """What the plans of one loop of one request carry for the interceptors.

    Attributes:
        options: Options by interceptor.
        max_batch: Most plans in a call with one of these; None sets no limit.
        signature: Text that requests of one loop have in common whose interceptors have the same options: they are
            expected to leave out as much as each other.
        num_kept: Most tensors that the states of a branch keep, by what each is as large as: the branch's prediction
            (`step`), or its stream between blocks (`block`).
    """

    options: Mapping[str, Any]
    max_batch: int | None = None
    signature: str = ""
    num_kept: Mapping[HookLevel, float] = field(default_factory=dict)

    def attach(self, plan: WorkPlan[Any], state: Any) -> WorkPlan[Any]:
        """Return a plan with the interceptors' options and states."""
        max_batch = plan.max_batch
        if self.max_batch is not None:
            max_batch = self.max_batch if max_batch is None else min(max_batch, self.max_batch)
        return replace(plan, plugins=PluginWork(self.options, state.plugin_state, self.signature), max_batch=max_batch)


def supports_hooks(*levels: HookLevel) -> Callable[[_BodyT], _BodyT]:
    """Mark a step body with the interceptors that it can carry."""

    def mark(body: _BodyT) -> _BodyT:
        setattr(body, _MARK, frozenset(levels))
        return body

    return mark


def hook_levels(body: Any) -> frozenset[str]:
    """Return the levels of interceptors that a step body can carry."""
    levels: frozenset[str] = getattr(body, _MARK, frozenset())
    return levels


def hooks_of(ctx: Any) -> StepHooks | None:
    """Return what the interceptors ask of a step body, given its context; None if there are none."""
    hooks: StepHooks | None = getattr(ctx, "hooks", None)
    return hooks


def state_key(component: str, branch: str) -> str:
    """Return the key of a branch's state: each component, so each expert, has its own."""
    return f"{component}/{branch}"
