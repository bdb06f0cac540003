"""The loop contract: a serializable state machine that the runtime drives step by step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from fastvideo_core.card import LoopSpec, ModelCard
from fastvideo_core.loop.work import Done, Profile, StepResult, Wait, WorkPlan
from fastvideo_core.request.cancel import CancelScope
from fastvideo_core.request.parameters import ResolvedParameters

if TYPE_CHECKING:
    import torch

__all__ = [
    "InputCheck",
    "Loop",
    "LoopContext",
    "LoopFactory",
    "LoopRequest",
    "LoopResult",
    "ModelView",
    "StepBody",
    "StepContext",
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
    """

    request_id: str
    node_id: str
    loop_id: str
    parameters: ResolvedParameters
    inputs: Mapping[str, Any]
    cancel_scope: CancelScope
    profile: Profile = "serve"
    is_exact: bool = False


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
    """

    make_generator: Callable[[int], torch.Generator]


@dataclass(frozen=True, slots=True)
class LoopResult:
    """What a loop hands to the nodes after it.

    Attributes:
        outputs: Device references or host values by the names that `LoopSpec.outputs` declares.
    """

    outputs: Mapping[str, Any] = field(default_factory=dict)


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
        """Fold an outside event in, at a step boundary only; None says that the time is over that was waited for.

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


class StepBody(Protocol):
    """Runs the kernels of a batch of compatible plans; named by `LoopSpec.step`."""

    def __call__(self, instance: Any, plans: Sequence[WorkPlan[Any]], ctx: StepContext) -> Sequence[StepResult[Any]]:
        """Return one result a plan, in order; plans are only read."""
        ...


class InputCheck(Protocol):
    """Refuses a request by what only a component without weights can tell; named by `LoopSpec.check`."""

    def __call__(
        self, spec: LoopSpec, model: ModelView, parameters: ResolvedParameters, inputs: Mapping[str, Any]
    ) -> None:
        """Check a request before weights are loaded.

        Args:
            spec: The card's loop.
            model: The model, of which only the components without weights are there.
            parameters: Resolved parameters of the node.
            inputs: The request's own inputs of the node, by port; results of other loops are not there.

        Raises:
            InputError: What is wrong.
        """
        ...


class LoopFactory(Protocol):
    """What `LoopSpec.loop` names."""

    def __call__(self, spec: LoopSpec, model: ModelView) -> Loop[Any]:
        """Make the loop of a resident model."""
        ...
