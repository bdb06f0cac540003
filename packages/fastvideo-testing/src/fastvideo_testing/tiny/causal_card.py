"""The card of the tiny family's streams; its checkpoint is the family's. Plain data: nothing here imports torch."""

from __future__ import annotations

from pathlib import Path

from fastvideo_core.card import (
    CacheContract,
    CachePolicy,
    CapabilityMatrix,
    CheckpointSource,
    DataRef,
    InputSpec,
    LoopSpec,
    ModelCard,
    ParameterSpec,
    RecipeSpec,
    TaskSpec,
)
from fastvideo_core.program.base import ArtifactNode, InlineProgram, InputEdge, ModelLoopNode, TensorEdge
from fastvideo_testing.tiny.card import tiny_card

__all__ = ["SLAB_BYTES", "TEXT_TO_STREAM", "TINY_CAUSAL_CARD_ID", "tiny_causal_card"]

TINY_CAUSAL_CARD_ID = "tiny-causal"
SLAB_BYTES = 16
"""Four latent channels, float32."""

_CAUSAL = "fastvideo_testing.tiny.causal"

TEXT_TO_STREAM = InlineProgram(
    program_id="tiny.text_to_stream",
    nodes=(
        ModelLoopNode(node_id="text", loop="text", inputs={"prompt": InputEdge(name="prompt")}),
        ModelLoopNode(node_id="rollout", loop="rollout", inputs={"embeds": TensorEdge(node="text", output="embeds")}),
        ArtifactNode(
            node_id="video", modality="video", source=TensorEdge(node="rollout", output="frames"), parameters=("fps",)
        ),
    ),
)


def tiny_causal_card(
    source: CheckpointSource | Path, *, model_id: str = TINY_CAUSAL_CARD_ID, num_slabs: int = 64
) -> ModelCard:
    """Return the card for a checkpoint of the family.

    Args:
        source: Where the checkpoint is; a path is a folder.
        model_id: Name of the card.
        num_slabs: Slabs of all streams together.
    """
    plain = tiny_card(source, model_id=model_id)
    slabs = CacheContract(
        cache_class="slab_kv",
        component="transformer",
        keyed_by=("prompt",),
        block_bytes=SLAB_BYTES,
        max_bytes=SLAB_BYTES * num_slabs,
    )
    return plain.model_copy(
        update={
            "title": "Endless coloured noise, for tests",
            "caches": {**plain.caches, "chunk_kv": slabs},
            "loops": {"text": plain.loops["text"], "rollout": _rollout()},
            "capabilities": CapabilityMatrix(tasks={"text_to_stream": _task(plain)}, default_task="text_to_stream"),
            "recipe": RecipeSpec(
                method="base",
                data_contract=DataRef(name="none", description="The weights are drawn from a seed."),
                assumes_loop="rollout",
            ),
        }
    )


def _rollout() -> LoopSpec:
    return LoopSpec(
        loop_id="rollout",
        loop=f"{_CAUSAL}:CausalLoop",
        step=f"{_CAUSAL}_step:run_step",
        state_schema=f"{_CAUSAL}:CausalState",
        step_schema=f"{_CAUSAL}:DenoisePayload",
        result_schema=f"{_CAUSAL}:LatentValues",
        outputs_schema=f"{_CAUSAL}:CausalOutputs",
        step_cost_model="fastvideo_testing.tiny.plans:plan_cost",
        estimate=f"{_CAUSAL}:estimate",
        components=("tokenizer", "text_encoder", "transformer", "vae"),
        outputs=("frames",),
        is_generative=True,
        cache_policy=CachePolicy(reads=("chunk_kv",), writes=("chunk_kv",)),
    )


def _task(plain: ModelCard) -> TaskSpec:
    parameters = plain.task("text_to_video").parameters
    wanted = ("height", "width", "num_inference_steps", "guidance_scale", "negative_prompt", "seed", "fps")
    chosen = {name: parameters[name] for name in wanted}
    chosen["guidance_scale"] = chosen["guidance_scale"].model_copy(update={"default": 1.0, "maximum": 1.0})
    chosen["num_chunks"] = ParameterSpec(type="integer", default=3, minimum=1, maximum=1000, unit="chunks")
    return TaskSpec(
        program=f"{__name__}:TEXT_TO_STREAM",
        inputs={
            "prompt": InputSpec(modality="text", max_length=128, description="what to show"),
            "action": InputSpec(modality="action", required=False, description="one number a chunk"),
        },
        outputs={"video": "video"},
        parameters=chosen,
        description="a stream from a prompt",
    )
