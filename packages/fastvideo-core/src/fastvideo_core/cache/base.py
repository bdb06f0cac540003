"""The key of cached content: every field that can change what the content means."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CacheKey"]


@dataclass(frozen=True, slots=True)
class CacheKey:
    """What cached content depends on. Equal keys mean interchangeable content, bits included.

    Attributes:
        model_id: The card.
        component_id: The component whose result it is.
        loop_id: The loop, where the content belongs to one.
        weights_version: Content version of the weights.
        adapter_versions: Adapters with their versions, in the order in which they are stacked.
        precision: Number format.
        parallel_plan_hash: Parallel plan that the content was computed under; "" for one device.
        shape_sig: Shapes.
        layout_sig: Layout in memory, and the numerics variant (exact or fast).
        scheduler_sig: Sampler and schedule, where they matter.
        guidance_sig: Guidance, where it matters.
        seed: Seed, where it matters.
        input_hashes: Digests of the inputs, by name, sorted.
        step_index: Step of the loop, where it matters.
        contract_version: Version of the card's `CacheContract`.

    Source: section 7.1 of the runtime's design.
    """

    model_id: str
    component_id: str
    loop_id: str | None = None
    weights_version: str = ""
    adapter_versions: tuple[tuple[str, str], ...] = ()
    precision: str = ""
    parallel_plan_hash: str = ""
    shape_sig: str = ""
    layout_sig: str = ""
    scheduler_sig: str | None = None
    guidance_sig: str | None = None
    seed: int | None = None
    input_hashes: tuple[tuple[str, str], ...] = ()
    step_index: int | None = None
    contract_version: str = "1"
