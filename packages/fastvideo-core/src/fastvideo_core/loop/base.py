"""The loop contract: a serializable state machine that the runtime drives step by step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from fastvideo_core.cache.slab_pool import SlabPool
from fastvideo_core.card import LoopSpec, ModelCard
from fastvideo_core.errors import CardError
from fastvideo_core.loop.work import BatchKey, Done, Profile, StepCost, StepResult, Wait, WorkPlan
from fastvideo_core.request.cancel import CancelScope
from fastvideo_core.request.parameters import ResolvedParameters

if TYPE_CHECKING:
    import torch

__all__ = [
    "BranchEstimate",
    "InputCheck",
    "Loop",
    "LoopContext",
    "LoopEstimate",
    "LoopEstimator",
    "LoopFactory",
    "LoopRequest",
    "LoopResult",
    "ModelView",
    "OutOfMemory",
    "StepBody",
    "StepContext",
    "StepEstimate",
]

StateT = TypeVar("StateT")


@dataclass(frozen=True, slots=True)
class LoopRequest:
    """What one loop of a program is started with.

    Attributes:
        request_id: The request.
        node_id: The node of the program.
        loop_id: The loop of the card.
        parameters: All resolved parameters of the request.
        inputs: Typed edges that lead to the node: request inputs and results of other loops, by port.
        cancel_scope: The loop's scope.
        profile: Serve, rollout or train.
        is_exact: Whether the reference's order of operations is asked for.
        is_session: Whether it makes a session's stream; see `fastvideo_core.loop.chunks`.
        has_previews: Whether pictures are wanted while it runs; see `fastvideo_core.loop.previews`.
        wanted: Which of the loop's outputs other nodes take, so that it need not make the rest; None for all.
    """

    request_id: str
    node_id: str
    loop_id: str
    parameters: ResolvedParameters
    inputs: Mapping[str, Any]
    cancel_scope: CancelScope
    profile: Profile = "serve"
    is_exact: bool = False
    is_session: bool = False
    has_previews: bool = False
    wanted: frozenset[str] | None = None

    def wants(self, output: str) -> bool:
        """Return whether an output is to be made."""
        return self.wanted is None or output in self.wanted


class ModelView(Protocol):
    """What a loop may know of the resident model: identities and configurations, no tensors."""

    @property
    def card(self) -> ModelCard:
        """The card."""
        ...

    @property
    def instance_id(self) -> str:
        """Name of the resident instance."""
        ...

    @property
    def weights_version(self) -> str:
        """Content version of the weights."""
        ...

    @property
    def precision(self) -> str:
        """Number format that the instance runs in."""
        ...

    def config(self, component_id: str) -> Any:
        """Return the validated configuration of a component."""
        ...

    def component(self, component_id: str) -> Any:
        """Return a component that has no weights, for instance a tokenizer; weights are for step bodies.

        Raises:
            CardError: The component has weights.
        """
        ...


@dataclass(frozen=True, slots=True)
class LoopContext:
    """What `init` may use besides the request and the model.

    Attributes:
        make_generator: Makes the CPU generator of a seed; every draw of a request comes from such a one.
        slabs: Pools of slabs by the card's name for them.
    """

    make_generator: Callable[[int], torch.Generator]
    slabs: Mapping[str, SlabPool] = field(default_factory=dict)

    def slab_pool(self, name: str) -> SlabPool:
        """Return a pool of slabs, for `SlabTable.of`.

        Raises:
            CardError: The card declares no such cache of class `slab_kv`.
        """
        if name not in self.slabs:
            allowed = ", ".join(self.slabs) or "none"
            raise CardError("no such cache of slabs", field="caches", value=name, allowed=allowed)
        return self.slabs[name]


@dataclass(frozen=True, slots=True)
class LoopResult:
    """What a loop hands to the nodes after it.

    Attributes:
        outputs: Device references or host values by the names that `LoopSpec.outputs` declares.
    """

    outputs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StepEstimate:
    """Steps of one kind that a loop will take, before it runs.

    Attributes:
        batch_key: Key that these steps will have.
        cost: Cost of one of them.
        num_steps: How many.
    """

    batch_key: BatchKey
    cost: StepCost
    num_steps: int


@dataclass(frozen=True, slots=True)
class BranchEstimate:
    """What the guidance branches of a loop are like, for what interceptors keep of them.

    Attributes:
        num_branches: Branches of the request.
        num_components: Models that take turns, such as experts.
        prediction_bytes: Bytes of what a model predicts for one branch.
        stream_bytes: Bytes of one branch's stream between two blocks; 0 where no block interceptor is let in.
    """

    num_branches: int
    num_components: int
    prediction_bytes: int
    stream_bytes: int = 0


@dataclass(frozen=True, slots=True)
class LoopEstimate:
    """What a whole loop will need, from shapes alone; the upper end where it depends on content.

    Attributes:
        steps: Its steps by kind.
        resident_bytes: Most bytes that its state holds between two steps, what it was handed included.
        peak_bytes: Most bytes that one step, alone in its call, allocates on top of that.
        result_bytes: Bytes that it hands on, which stay while loops after it run.
        cache_blocks: Most blocks of each cache.
        chunk_blocks: Blocks of each cache that one more chunk of a stream's past takes, where it is kept.
        behavior_bytes: Bytes that it keeps on top, to the request's end, of a rollout.
        behavior_blocks: Blocks of each cache that it keeps on top, to its own end, of a rollout.
        branches: What its guidance branches are like; None for a loop that lets no interceptor in.
    """

    steps: tuple[StepEstimate, ...]
    resident_bytes: int = 0
    peak_bytes: int = 0
    result_bytes: int = 0
    cache_blocks: Mapping[str, int] = field(default_factory=dict)
    chunk_blocks: Mapping[str, int] = field(default_factory=dict)
    behavior_bytes: int = 0
    behavior_blocks: Mapping[str, int] = field(default_factory=dict)
    branches: BranchEstimate | None = None


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """Event: the loop's next step, alone in its call, found no memory; a loop that can go on with less does.

    Attributes:
        message: What the device said.
    """

    message: str


class Loop(Protocol[StateT]):
    """A loop over steps, owned by the model, driven by the runtime.

    A loop object is made once a resident model, `Loop(spec, model)`, and holds nothing that changes: all that a
    request needs from one step to the next is in its state.
    """

    def init(self, request: LoopRequest, ctx: LoopContext) -> StateT:
        """Start: draw the noise, tokenize the text, fix the schedule. Runs on the device plane."""
        ...

    def next(self, state: StateT) -> WorkPlan[Any] | Wait | Done:
        """Describe the next step. Repeatable: launches nothing, draws nothing, changes nothing."""
        ...

    def advance(self, state: StateT, result: StepResult[Any]) -> StateT:
        """Fold a result in by moving references; may change and return `state`. Reads no tensor data."""
        ...

    def apply(self, state: StateT, event: Any) -> StateT:
        """Fold an outside event in, at a step boundary only; None says that the time has come that was waited for.

        Besides what a session sends, `OutOfMemory` may come; a loop that can go on with less memory changes its state
        so that `next` asks for less.

        Raises:
            InputError: The loop takes no such event.
        """
        ...

    def finalize(self, state: StateT) -> LoopResult:
        """Hand the results on after `Done`."""
        ...


class StepContext(Protocol):
    """What a step body may use besides the instance and the plans."""

    def tap(self, name: str, value: torch.Tensor) -> None:
        """Show a named intermediate tensor to the observers; does nothing when there are none."""
        ...

    @property
    def is_tapped(self) -> bool:
        """Whether any observer listens, so that taps inside blocks need not be set up in vain."""
        ...

    @property
    def blocks_runner(self) -> Callable[..., Any] | None:
        """What runs the blocks of a model in place of a plain loop over them, or None: `(blocks, stream, *arguments)`.

        It calls each block once, in order, as `stream = block(stream, *arguments)`, and returns the last stream.
        """
        ...


class StepBody(Protocol):
    """Runs the kernels of a batch of compatible plans; named by `LoopSpec.step`."""

    def __call__(self, instance: Any, plans: Sequence[WorkPlan[Any]], ctx: StepContext) -> Sequence[StepResult[Any]]:
        """Return one result a plan, in order; plans are only read."""
        ...


class InputCheck(Protocol):
    """Refuses a request by what only a component without weights can tell; named by `LoopSpec.check`."""

    def __call__(
        self, spec: LoopSpec, model: ModelView, parameters: ResolvedParameters, inputs: Mapping[str, Any]
    ) -> Sequence[str]:
        """Check a request before weights are loaded, and again when an engine takes it.

        Args:
            spec: The card's loop.
            model: The model, of which only the components without weights are there.
            parameters: Resolved parameters of the node.
            inputs: The request's own inputs of the node, by port; results of other loops are not there.

        Returns:
            Warnings, one line each: what is allowed and yet will not give what was asked for.

        Raises:
            InputError: What is wrong.
        """
        ...


class LoopEstimator(Protocol):
    """Tells what a loop will need; named by `LoopSpec.estimate`."""

    def __call__(
        self,
        spec: LoopSpec,
        model: ModelView,
        parameters: ResolvedParameters,
        inputs: Mapping[str, Any],
        *,
        exact: bool,
    ) -> LoopEstimate:
        """Return the needs of one loop of a request; arguments as of `InputCheck`, and whether it is an exact one."""
        ...


class LoopFactory(Protocol):
    """What `LoopSpec.loop` names."""

    def __call__(self, spec: LoopSpec, model: ModelView) -> Loop[Any]:
        """Make the loop of a resident model."""
        ...
