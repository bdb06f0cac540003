"""Cards of causal Wan: what distinguishes a checkpoint that makes streams, and the card that follows from it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from fastvideo_core.card import (
    CacheContract,
    CachePolicy,
    CapabilityMatrix,
    InputSpec,
    LoopSpec,
    ModelCard,
    ParameterSpec,
    ParitySpec,
    TaskSpec,
)
from fastvideo_core.card.base import JsonScalar
from fastvideo_wan.cards.build import make_card
from fastvideo_wan.cards.facts import WanFacts
from fastvideo_wan.models.chunks import ChunkRule

__all__ = ["LOOP_ID", "CausalFacts", "make_causal_card"]

LOOP_ID = "chunk_rollout"
_CHUNK = "fastvideo_wan.loops.chunk"
_NEEDS = "fastvideo_wan.loops.chunk_needs"
_FLOAT_BYTES = 4
_MAX_CHUNKS = 100_000
"""Chunks of a request that is no session's, at most."""

_SHARED_PARAMETERS = (
    "height", "width", "flow_shift", "seed", "fps", "guidance_scale", "guidance_scale_2", "negative_prompt",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class CausalFacts:
    """One checkpoint that makes streams.

    Attributes:
        base: What it has in common with any Wan checkpoint; its recipe assumes the loop `LOOP_ID`.
        rule: Lengths of chunks, window and sink.
        steps: The noise levels of a chunk before the shift.
        num_layers: Blocks of a transformer.
        width: Width of its stream.
        has_reread: Whether a new prompt reads the window anew.
        is_renoised: Whether new noise leads from one level to the next, or the velocity.
        context_noise: Timestep at which clean chunks are read.
        max_pixels: Height times width, at most.
        tasks: Names of its tasks.
        num_streams: Streams for which there are slabs, where a deployment says nothing else.
        figures: Measured figures.
    """

    base: WanFacts
    rule: ChunkRule
    steps: tuple[int, ...]
    num_layers: int
    width: int
    has_reread: bool = True
    is_renoised: bool = True
    context_noise: float = 0.0
    max_pixels: int = 480 * 832
    tasks: tuple[str, ...] = ("text_to_video", "image_to_video", "video_to_video")
    num_streams: int = 1
    figures: dict[str, JsonScalar] = field(default_factory=dict)

    @property
    def num_keys(self) -> int:
        """Experts times branches."""
        return (1 if self.base.boundary_ratio is None else 2) * (1 if self.base.guidance_scale is None else 2)

    @property
    def slab_bytes(self) -> int:
        """Most bytes of the keys and values of a chunk, in float32."""
        base = self.base
        token_pixels = (base.spatial_factor * base.patch[1]) * (base.spatial_factor * base.patch[2])
        num_tokens = self.rule.chunk_frames // base.patch[0] * (self.max_pixels // token_pixels)
        return 2 * self.num_layers * self.width * num_tokens * _FLOAT_BYTES

    @property
    def slabs_per_stream(self) -> int:
        """Most slabs that one stream holds."""
        return self.num_keys * self.rule.slabs_per_stream(has_reread=self.has_reread)


def make_causal_card(facts: CausalFacts) -> ModelCard:
    """Return the card of a checkpoint that makes streams."""
    assumed = facts.base.recipe.model_copy(update={"assumes_loop": facts.base.loop_id})
    plain = make_card(replace(facts.base, recipe=assumed))
    components = dict(plain.components)
    for name in ("transformer", "transformer_2"):
        if name in components:
            factory = "fastvideo_wan.components:build_causal_transformer"
            components[name] = components[name].model_copy(update={"factory": factory})
    slabs = CacheContract(
        cache_class="slab_kv",
        component="transformer",
        keyed_by=("prompt",),
        block_bytes=facts.slab_bytes,
        max_bytes=facts.slab_bytes * facts.slabs_per_stream * facts.num_streams,
    )
    fields: dict[str, Any] = {name: getattr(plain, name) for name in ModelCard.model_fields}
    return ModelCard(
        **{
            **fields,
            "components": components,
            "recipe": facts.base.recipe,
            "loops": {
                "text_encode": plain.loops["text_encode"],
                "clip_encode": _clip_loop(facts, plain),
                LOOP_ID: _loop(facts, plain),
            },
            "capabilities": CapabilityMatrix(
                tasks={name: _task(name, facts, plain) for name in facts.tasks}, default_task=facts.tasks[0]
            ),
            "caches": {**plain.caches, "chunk_kv": slabs},
            "parity": _parity(plain),
            "figures": facts.figures,
        }
    )


def _loop(facts: CausalFacts, plain: ModelCard) -> LoopSpec:
    schema = "fastvideo_wan.loops.chunk_state"
    experts = tuple(name for name in ("transformer", "transformer_2") if name in plain.components)
    options = {
        **plain.loops["text_encode"].options,
        **_lengths(facts, plain),
        "steps": list(facts.steps),
        "context_noise": facts.context_noise,
        "is_renoised": facts.is_renoised,
        "has_reread": facts.has_reread,
        "max_pixels": facts.max_pixels,
    }
    return LoopSpec(
        loop_id=LOOP_ID,
        loop=f"{_CHUNK}:ChunkRolloutLoop",
        step="fastvideo_wan.loops.chunk_step:run_step",
        state_schema=f"{schema}:ChunkState",
        step_schema=f"{schema}:ChunkDenoisePayload",
        result_schema=f"{schema}:ChunkLatents",
        behavior_schema="fastvideo_core.loop.behavior:StepBehavior",
        predict="fastvideo_wan.loops.chunk_record:predict",
        outputs_schema=f"{schema}:ChunkOutputs",
        step_cost_model="fastvideo_wan.loops.costs:plan_cost",
        estimate=f"{_NEEDS}:estimate_stream",
        check=f"{_NEEDS}:check_stream",
        components=("tokenizer", "text_encoder", *experts, "vae"),
        outputs=("frames", "latents"),
        is_generative=True,
        pinned={"flow_shift": facts.base.flow_shift},
        options=options,
        cache_policy=CachePolicy(
            reads=("chunk_kv", "text_kv", "vae_features"), writes=("chunk_kv", "text_kv", "vae_features")
        ),
    )


def _lengths(facts: CausalFacts, plain: ModelCard) -> dict[str, Any]:
    rule = facts.rule
    return {
        "chunk_frames": rule.chunk_frames,
        "window_frames": rule.window_frames,
        "sink_frames": rule.sink_frames,
        "first_frames": rule.first_frames,
        "max_step_pixels": plain.loops["vae_decode"].options["max_step_pixels"],
    }


def _clip_loop(facts: CausalFacts, plain: ModelCard) -> LoopSpec:
    module = "fastvideo_wan.loops.clip"
    return LoopSpec(
        loop_id="clip_encode",
        loop=f"{module}:ClipEncodeLoop",
        step=f"{module}:run_step",
        state_schema=f"{module}:ClipState",
        step_schema=f"{module}:ClipPayload",
        result_schema=f"{module}:ClipValues",
        outputs_schema=f"{module}:ClipOutputs",
        step_cost_model="fastvideo_wan.loops.costs:plan_cost",
        estimate=f"{module}:estimate_clip",
        check=f"{module}:check_clip",
        components=("vae",),
        outputs=("latents",),
        max_batch=plain.loops["vae_decode"].max_batch,
        options=_lengths(facts, plain),
        cache_policy=CachePolicy(reads=("vae_features",), writes=("vae_features",)),
    )


_PROGRAMS = {
    "text_to_video": ("TEXT_TO_STREAM", "A video from a prompt"),
    "image_to_video": ("IMAGE_TO_STREAM", "A video from a prompt and an image that stands still at its beginning"),
    "video_to_video": ("VIDEO_TO_STREAM", "A video from a prompt and the video that it goes on from"),
}
"""Program and description of each task."""


def _task(name: str, facts: CausalFacts, plain: ModelCard) -> TaskSpec:
    program, description = _PROGRAMS[name]
    inputs = {"prompt": InputSpec(modality="text", max_length=facts.base.text_length, description="What to show.")}
    if name == "image_to_video":
        inputs["image"] = InputSpec(modality="image", description="Where to begin; stretched to the video's size.")
    if name == "video_to_video":
        inputs["video"] = InputSpec(
            modality="video", description="Its last whole chunks are gone on from; stretched to the video's size."
        )
    known = plain.task(plain.capabilities.default_task).parameters
    factor = facts.base.temporal_factor
    opening = (facts.rule.num_frames(0) - 1) * factor + 1
    chunk = facts.rule.chunk_frames * factor
    num_frames = ParameterSpec(
        type="integer", default=facts.base.num_frames, minimum=opening, maximum=opening + chunk * _MAX_CHUNKS,
        multiple_of=chunk, offset=opening % chunk, unit="frames",
        description="Length of the video; a session has none but its own horizon.",
    )  # fmt: skip
    return TaskSpec(
        program=f"fastvideo_wan.stream_programs:{program}",
        inputs=inputs,
        outputs={"video": "video", "latents": "latents"},
        parameters={
            "num_frames": num_frames,
            "num_inference_steps": _num_steps(facts),
            **{name: known[name] for name in _SHARED_PARAMETERS if name in known},
        },
        description=f"{description}, chunk by chunk; in a session without an end, and with new prompts.",
    )


def _num_steps(facts: CausalFacts) -> ParameterSpec:
    most = len(facts.steps)
    return ParameterSpec(
        type="integer", default=most, minimum=1, maximum=most,
        description="Noise levels that a chunk goes through; fewer are the first of the card's, quicker and rougher.",
    )  # fmt: skip


def _parity(plain: ModelCard) -> ParitySpec:
    """Keep the comparisons of parts that a causal checkpoint has in common with any."""
    shared = [test for test in plain.parity.tests if test.subject in ("text_encoder", "vae")]
    return plain.parity.model_copy(update={"tests": tuple(shared)})
