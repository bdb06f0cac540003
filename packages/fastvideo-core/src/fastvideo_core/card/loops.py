"""A loop of a card: the types that it speaks, the step body that it runs, what it costs."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from fastvideo_core.card.base import Contract, Identifier, JsonScalar, ObjectRef
from fastvideo_core.card.caches import CachePolicy
from fastvideo_core.card.parallelism import ParallelPlanPattern

__all__ = ["GraphCapturePolicy", "LoopSpec"]


class GraphCapturePolicy(Contract):
    """Whether and how the steps of a loop may be captured or compiled.

    Attributes:
        compile_blocks: Whether `torch.compile` per block is allowed.
        cuda_graph: Whether a step may be replayed as a CUDA graph.
    """

    compile_blocks: bool = False
    cuda_graph: bool = False


class LoopSpec(Contract):
    """One loop that a card can run.

    Attributes:
        loop_id: Name within the card; recipes and programs use it.
        loop: Class of the loop, called with `(spec, model)`.
        step: Step body `run_step(instance, plans, ctx)`; plans may come from many requests.
        state_schema: Slotted dataclass of the loop's state.
        step_schema: Slotted dataclass, or a union, of a plan's payload.
        result_schema: Slotted dataclass, or a union, of a step's result.
        behavior_schema: What is captured in the rollout profile; None if nothing.
        predict: Function that gives the loop's prediction at any noise level, with gradients, for training (see
            `fastvideo_core.loop.behavior.Predict`); None if there is none.
        step_cost_model: Function from a `WorkPlan` to its `StepCost`.
        components: Components that its steps use.
        check: Function that refuses a request, or warns of it, by what tokenizers and the like tell, before any weight
            is there (see `fastvideo_core.loop.base.InputCheck`); None if there is nothing to check.
        estimate: Function that tells what the whole loop will need, before it starts (see
            `fastvideo_core.loop.base.LoopEstimator`); None if nothing is known.
        outputs: Names of the results that other nodes may take.
        outputs_schema: Slotted dataclass with a field for each of `outputs`, under which results are stored; None if
            they cannot be, so that the loop is run again when a request is resumed after it.
        is_generative: Whether it draws the sample, so that the recipe's assumption binds it.
        max_batch: Most plans in one step; None sets no limit.
        can_batch: Function of two plans that decides whether they may share a step; None compares batch keys.
        pinned: Parameters that the weights were trained for; a request may repeat but not change them.
        options: Settings of this card's variant of the loop.
        valid_parallel_plans: Plans it may run under.
        graph_capture: Compilation and capture.
        cache_policy: Caches it reads and writes.
    """

    loop_id: Identifier
    loop: ObjectRef
    step: ObjectRef
    state_schema: ObjectRef
    step_schema: ObjectRef
    result_schema: ObjectRef
    behavior_schema: ObjectRef | None = None
    predict: ObjectRef | None = None
    step_cost_model: ObjectRef
    components: tuple[Identifier, ...] = ()
    check: ObjectRef | None = None
    estimate: ObjectRef | None = None
    outputs: tuple[Identifier, ...] = ()
    outputs_schema: ObjectRef | None = None
    is_generative: bool = False
    max_batch: int | None = Field(default=None, ge=1)
    can_batch: ObjectRef | None = None
    pinned: dict[str, JsonScalar] = Field(default_factory=dict)
    options: dict[str, Any] = Field(default_factory=dict)
    valid_parallel_plans: tuple[ParallelPlanPattern, ...] = (ParallelPlanPattern(),)
    graph_capture: GraphCapturePolicy = GraphCapturePolicy()
    cache_policy: CachePolicy = CachePolicy()
