"""What a loop asks for: the next step, with all that a scheduler must know to run it among others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from fastvideo_core.cache.base import CacheKey
from fastvideo_core.request.cancel import CancelScope

__all__ = [
    "ANYWHERE",
    "NO_CACHE",
    "BatchKey",
    "CachePlan",
    "Done",
    "EmitSpec",
    "PlacementHint",
    "PluginWork",
    "Profile",
    "ResourceRequest",
    "ShapeSignature",
    "StepCost",
    "StepResult",
    "StreamChunk",
    "Wait",
    "WorkKind",
    "WorkPlan",
]

PayloadT = TypeVar("PayloadT")
ValuesT = TypeVar("ValuesT")

Profile = Literal["serve", "rollout", "train"]
"""`serve`, `rollout` (serve with behaviour capture) and `train` (gradients on): one definition of the step."""

_EMPTY: Mapping[str, int] = MappingProxyType({})


class WorkKind(StrEnum):
    """Kinds of schedulable work; a text token is one of many."""

    AR_PREFILL = "ar_prefill"
    AR_TOKEN = "ar_token"  # noqa: S105 - a kind of work, not a secret
    DIFFUSION_STEP = "diffusion_step"
    DIFFUSION_WINDOW = "diffusion_window"
    CHUNK_STEP = "chunk_step"
    ENCODER_CHUNK = "encoder_chunk"
    VAE_TILE = "vae_tile"
    AUDIO_CHUNK = "audio_chunk"
    REWARD_BATCH = "reward_batch"
    LOGPROB_BATCH = "logprob_batch"
    TRANSFER = "transfer"
    CACHE_IO = "cache_io"
    GRAPH_CAPTURE = "graph_capture"


class ShapeSignature(NamedTuple):
    """Shapes that decide which steps may share a batch and which captured graph fits.

    Attributes:
        dims: Names with sizes, in an order that the loop fixes.
    """

    dims: tuple[tuple[str, int], ...]

    @classmethod
    def of(cls, **dims: int) -> ShapeSignature:
        """Build a signature from named sizes."""
        return cls(tuple(dims.items()))


class BatchKey(NamedTuple):
    """Steps with equal keys may run in one call; step counts, guidance scales, seeds and prompts are not in it."""

    instance_id: str
    component: str
    loop_kind: str
    shape_sig: ShapeSignature
    precision: str
    adapters: tuple[tuple[str, str], ...] = ()
    weights_version: str = ""
    profile: Profile = "serve"
    parallel_plan: str = ""
    graph_key: str = ""
    variant: str = ""
    """What else must agree, as the loop sees it (for instance exact or fast numerics)."""


@dataclass(frozen=True, slots=True)
class StepCost:
    """Analytic cost of a step; the runtime's cost model turns it into device-seconds.

    Weights are read once a call, however many plans share it; operations and activations add up over the plans.

    Attributes:
        flops: Floating-point operations.
        weight_bytes: Bytes of weights read.
        activation_bytes: Bytes of activations and states read and written.
    """

    flops: float
    weight_bytes: float = 0.0
    activation_bytes: float = 0.0

    def batched(self, num_plans: int) -> StepCost:
        """Return the cost of one call that runs `num_plans` such steps."""
        return StepCost(self.flops * num_plans, self.weight_bytes, self.activation_bytes * num_plans)

    def __add__(self, other: StepCost) -> StepCost:
        """Return the cost of a step that does both."""
        return StepCost(
            self.flops + other.flops,
            self.weight_bytes + other.weight_bytes,
            self.activation_bytes + other.activation_bytes,
        )

    def scaled(self, share: float) -> StepCost:
        """Return the cost of a step of which only a share was computed."""
        if share == 1:
            return self
        return StepCost(self.flops * share, self.weight_bytes * share, self.activation_bytes * share)


@dataclass(frozen=True, slots=True)
class ResourceRequest:
    """All that a step needs; it is granted whole or not at all.

    Attributes:
        cost: Compute, as the loop's cost function gives it.
        resident_bytes: Bytes that stay allocated after the step.
        peak_bytes: Most bytes of activations during the step.
        cache_blocks: Blocks of each cache.
        transfer_bytes: Bytes moved between devices or hosts.
        sinks: Number of output streams written to.
    """

    cost: StepCost
    resident_bytes: int = 0
    peak_bytes: int = 0
    cache_blocks: Mapping[str, int] = field(default_factory=lambda: _EMPTY)
    transfer_bytes: int = 0
    sinks: int = 0


@dataclass(frozen=True, slots=True)
class CachePlan:
    """Cache slots that a step reads, and those that it alone may write.

    Attributes:
        reads: Names of slots, as `cache:slot`.
        writes: Names of slots, valid only after the runtime has committed the step.
        result_key: What alone decides the step's result, where the card's feature cache may answer instead of the
            step body, and requests with the same key share one run; None if the result is the request's own.
    """

    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    result_key: CacheKey | None = None


@dataclass(frozen=True, slots=True)
class PlacementHint:
    """Where a step would like to run.

    Attributes:
        pool: Role pool.
        affinity: Worker that holds what the step needs; "" if any will do.
    """

    pool: str = "main"
    affinity: str = ""


NO_CACHE = CachePlan()
"""The plan of a step that touches no cache."""

ANYWHERE = PlacementHint()
"""The hint of a step that any worker of the main pool may run."""


@dataclass(frozen=True, slots=True)
class EmitSpec:
    """A sink that a step fills.

    Attributes:
        stream: Name of the stream within the request.
        kind: What goes there.
    """

    stream: str
    kind: Literal["media", "preview", "text", "trace"]


@dataclass(frozen=True, slots=True)
class StreamChunk:
    """What a step put into a sink: references and where they belong.

    Attributes:
        stream: The sink, as declared in the plan.
        kind: What it is.
        index: Position in the stream, from 0.
        data: Device reference, or text.
        start_s: Start of the covered time in the stream, in seconds.
        end_s: End of the covered time, in seconds.
        is_final: Whether nothing follows.
    """

    stream: str
    kind: Literal["media", "preview", "text", "trace"]
    index: int
    data: Any
    start_s: float = 0.0
    end_s: float = 0.0
    is_final: bool = False


@dataclass(frozen=True, slots=True)
class PluginWork:
    """What a plan carries for the interceptors that are on; a step only reads it.

    Attributes:
        options: Options by interceptor.
        states: States by interceptor, then by component and branch.
        signature: Tells requests with equal options from others; see `RunHooks.signature`.
    """

    options: Mapping[str, Any]
    states: Mapping[str, Mapping[str, Any]]
    signature: str = ""


@dataclass(slots=True)
class WorkPlan(Generic[PayloadT]):
    """The next step of a loop. Nobody changes one; it is not frozen because one is made at every step.

    Attributes:
        loop_id: The loop.
        instance_id: The resident model that runs it.
        kind: Kind of work.
        shape_sig: Shapes, for batches and graphs.
        resources: What it needs.
        cache: Slots it reads and writes.
        placement: Where it would like to run.
        cancel_scope: What cancels it.
        emits: Sinks that its result fills.
        batch_key: With whom it may share a call.
        payload: Scalars and device references, typed by the loop's `step_schema`; the step only reads them.
        step_index: Position in the loop, from 0.
        num_steps: Steps that the loop will take, where it knows.
        profile: Serve, rollout or train.
        max_batch: Most plans in a call with this one; None leaves it to the loop's `LoopSpec.max_batch`.
        plugins: What the interceptors need; None where there are none. The runtime fills it in.
    """

    loop_id: str
    instance_id: str
    kind: WorkKind
    shape_sig: ShapeSignature
    resources: ResourceRequest
    cache: CachePlan
    placement: PlacementHint
    cancel_scope: CancelScope
    emits: tuple[EmitSpec, ...]
    batch_key: BatchKey
    payload: PayloadT
    step_index: int = 0
    num_steps: int | None = None
    profile: Profile = "serve"
    max_batch: int | None = None
    plugins: PluginWork | None = None

    def where(self) -> str:
        """Return which step of what it is, for messages: `request:a/loop:denoise: step 2 of 4 of denoise`."""
        of = f" of {self.num_steps}" if self.num_steps else ""
        return f"{self.cancel_scope.path()}: step {self.step_index + 1}{of} of {self.loop_id}"


@dataclass(frozen=True, slots=True)
class StepResult(Generic[ValuesT]):
    """What a step gives back.

    Attributes:
        values: Device references, typed by the loop's `result_schema`.
        is_finite: False if any value is NaN or infinite: the runtime then ends the request. None leaves the check to
            the runtime, which looks at every tensor in `values`; a body that knows which ones matter says so itself.
        scalars: Small host numbers that the loop's next decision needs.
        chunks: Content of the declared sinks.
        behavior: What the rollout profile captured, typed by the loop's `behavior_schema`.
        plugin_states: New states of interceptors, by interceptor, then by component and branch; they become valid when
            the step is committed. None where there are none.
        computed_share: How much of the compute that its plan speaks of the step took; interceptors make it less than 1.
    """

    values: ValuesT
    is_finite: bool | None = None
    scalars: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    chunks: tuple[StreamChunk, ...] = ()
    behavior: Any = None
    plugin_states: Mapping[str, Mapping[str, Any]] | None = None
    computed_share: float = 1.0

    @property
    def is_computed(self) -> bool:
        """Whether all of it was computed."""
        return self.computed_share == 1


@dataclass(frozen=True, slots=True)
class Wait:
    """The loop cannot go on until something happens outside.

    Attributes:
        reason: Input to come, a viewer that lags, or a time.
        until_s: For a time: monotonic seconds.
    """

    reason: Literal["input", "viewer", "time"]
    until_s: float | None = None


@dataclass(frozen=True, slots=True)
class Done:
    """The loop has no further step; `finalize` makes its result."""
