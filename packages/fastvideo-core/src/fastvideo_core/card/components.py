"""The parts of a model: what each is, how it is built, and where it may be put."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from fastvideo_core.card.base import Contract, Identifier, ObjectRef
from fastvideo_core.card.parallelism import ParallelConstraint
from fastvideo_core.card.precision import PrecisionPolicy

__all__ = ["ComponentSpec", "PlacementPolicy"]

ComponentKind = Literal[
    "dit", "vae", "text_encoder", "image_encoder", "tokenizer", "image_processor", "reasoner_tower", "audio_decoder",
    "action_head", "reward_head",
]  # fmt: skip


class PlacementPolicy(Contract):
    """Where a component may live.

    Attributes:
        pool: Role pool that holds it.
        offload: Whether it may leave the device while no step needs it.
    """

    pool: Identifier = "main"
    offload: bool = False


class ComponentSpec(Contract):
    """One part of a model.

    Attributes:
        component_id: Name within the card; loops and steps use it.
        kind: What it is.
        load_id: Key of `CheckpointManifest.components` that holds its files.
        factory: Builds it from a `ComponentSource` (see `fastvideo_core.runtime.instance`).
        config_schema: Type that its configuration is validated with, if it has one.
        io_schema: Input and output types of its forward, for readers and checks.
        precision_policy: Number format.
        placement_policy: Where it lives.
        parallel_constraints: What it demands of parallel degrees.
        parity_tests: Names of the `ParitySpec.tests` which hold it.
    """

    component_id: Identifier
    kind: ComponentKind
    load_id: Identifier
    factory: ObjectRef
    config_schema: ObjectRef | None = None
    io_schema: tuple[ObjectRef, ObjectRef] | None = None
    precision_policy: PrecisionPolicy = PrecisionPolicy()
    placement_policy: PlacementPolicy = PlacementPolicy()
    parallel_constraints: ParallelConstraint = ParallelConstraint()
    parity_tests: tuple[Identifier, ...] = ()
    required_for: tuple[str, ...] = Field(default=())
    """Tasks that need it; empty means all tasks of the card."""

    def is_needed_for(self, task: str) -> bool:
        """Tell whether a task needs this component."""
        return not self.required_for or task in self.required_for
