"""From facts to a card: one place that says how Cosmos3's components, loops, tasks and parity hang together."""

from __future__ import annotations

from typing import Any, Literal

from fastvideo_core.card import (
    CacheContract,
    CachePolicy,
    CapabilityMatrix,
    CheckpointManifest,
    ComponentFiles,
    ComponentSpec,
    DataRef,
    LoopSpec,
    ModelCard,
    ParallelConstraint,
    ParallelismContract,
    ParitySpec,
    PrecisionContract,
    PrecisionPolicy,
    RecipeSpec,
)
from fastvideo_cosmos3.cards.facts import Cosmos3Facts
from fastvideo_cosmos3.cards.parity import parity_tests
from fastvideo_cosmos3.cards.tasks import make_tasks

__all__ = ["MAX_CONTEXT", "NUM_TRAIN_TIMESTEPS", "make_card"]

NUM_TRAIN_TIMESTEPS = 1000
"""Length of the timestep scale of all Cosmos3 weights."""

MAX_CONTEXT = 32768
"""Most tokens of a text with its answer."""

_KV_BYTES = 4 << 30
"""Budget of the keys and values of texts; a deployment may set another."""

_MAX_VAE_BATCH = 8
_FLOAT32 = PrecisionPolicy(compute="float32")
_COST = "fastvideo_cosmos3.loops.costs:plan_cost"


def make_card(facts: Cosmos3Facts) -> ModelCard:
    """Return the card of a checkpoint."""
    tasks = make_tasks(facts)
    components = _components(facts, tuple(tasks))
    loops = [spec for spec in _loops(facts) if set(spec.components) <= {one.component_id for one in components}]
    return ModelCard(
        model_id=facts.model_id,
        family="cosmos3",
        title=facts.title,
        license="",
        components={spec.component_id: spec for spec in components},
        loops={spec.loop_id: spec for spec in loops},
        capabilities=CapabilityMatrix(tasks=tasks, default_task="text_to_video"),
        recipe=RecipeSpec(
            method="unknown",
            data_contract=DataRef(name="unknown", description="The checkpoint does not say what it was trained on."),
            assumes_loop="diffusion_denoise",
        ),
        parity=ParitySpec(tests=parity_tests(facts), batch_invariant=False, batch_max_relative_error=1e-4),
        caches={
            "text_kv": CacheContract(
                cache_class="paged_kv",
                component="transformer",
                block_bytes=facts.page_bytes,
                max_bytes=max(_KV_BYTES, facts.page_bytes),
            )
        },
        parallelism=ParallelismContract(),
        precision=PrecisionContract(default="bfloat16"),
        checkpoint=CheckpointManifest(
            source=facts.source,
            components={spec.load_id: _files(facts, spec) for spec in components},
        ),
    )


def _components(facts: Cosmos3Facts, tasks: tuple[str, ...]) -> list[ComponentSpec]:
    generating = tuple(task for task in tasks if task != "reasoning_text")
    sounding = tuple(task for task in tasks if task.endswith("_sound") or task.startswith("omni"))
    heads = ParallelConstraint(divides={"tp": facts.num_heads})
    # The reference keeps the timestep's embedder in float32 whatever the rest runs in.
    mixed = PrecisionPolicy(keep_float32=("time_embedder",))
    specs = [
        _component("text_tokenizer", "tokenizer", "build_tokenizer"),
        _component("transformer", "dit", "build_transformer", precision=mixed, constraint=heads),
        _component("vae", "vae", "build_vae", precision=_FLOAT32, needed_for=generating),
    ]
    if facts.has_vision:
        seeing = ("reasoning_text",)
        specs.append(_component("image_processor", "image_processor", "build_image_processor", needed_for=seeing))
        specs.append(_component("vision_encoder", "image_encoder", "build_vision_encoder", needed_for=seeing))
    if facts.has_sound:
        specs.append(
            _component(
                "sound_tokenizer", "audio_decoder", "build_sound_decoder", precision=_FLOAT32, needed_for=sounding
            )
        )
    return specs


def _component(
    name: str,
    kind: Any,
    factory: str,
    *,
    precision: PrecisionPolicy | None = None,
    constraint: ParallelConstraint | None = None,
    needed_for: tuple[str, ...] = (),
) -> ComponentSpec:
    return ComponentSpec(
        component_id=name,
        kind=kind,
        load_id=name,
        factory=f"fastvideo_cosmos3.components:{factory}",
        precision_policy=precision or PrecisionPolicy(),
        parallel_constraints=constraint or ParallelConstraint(),
        required_for=needed_for,
    )


_OWN = {"transformer": "components:is_transformer_name", "vision_encoder": "components:is_vision_name"}
_KEYS = {"transformer": "components:TRANSFORMER_KEYS", "vision_encoder": "components:VISION_KEYS"}


def _files(facts: Cosmos3Facts, spec: ComponentSpec) -> ComponentFiles:
    name = spec.component_id
    is_shared = facts.is_flat and name in _OWN
    only = _OWN[name] if is_shared else "models.sound:is_decoder_name" if name == "sound_tokenizer" else None
    layout: Literal["diffusers", "transformers", "original"] = "diffusers"
    if is_shared:
        layout = "original"
    elif name in ("vision_encoder", "text_tokenizer", "image_processor"):
        layout = "transformers"
    return ComponentFiles(
        folder="" if is_shared or name == "image_processor" else name,
        layout=layout,
        key_map=f"fastvideo_cosmos3.{_KEYS[name]}" if name in _KEYS else None,
        only=None if only is None else f"fastvideo_cosmos3.{only}",
        required_for=spec.required_for,
    )


def _loops(facts: Cosmos3Facts) -> list[LoopSpec]:
    text = {
        "max_context": MAX_CONTEXT, "system_prompt": facts.system_prompt, "spatial_factor": facts.spatial_grid,
    }  # fmt: skip
    kept = CachePolicy(reads=("text_kv",), writes=("text_kv",))
    return [
        _loop(
            "vision_encode", "look", "Look", ("image_processor", "vision_encoder"), ("seen",), "estimate_look",
            check="check_shown",
        ),
        _loop(
            "ar_prefill", "prefill", "Prefill", ("text_tokenizer", "transformer"), ("context",), "estimate_prefill",
            check="check_text", can_batch="can_share_call", options=text, cache_policy=kept,
        ),
        _loop(
            "ar_decode", "answer", "Answer", ("text_tokenizer", "transformer"), ("text", "context"), "estimate_answer",
            cache_policy=kept,
        ),
        _loop(
            "vae_encode", "condition", "Encode", ("vae",), ("condition",), "estimate_encode", check="check_frames",
            outputs_schema="ConditionOutputs", max_batch=_MAX_VAE_BATCH,
            options={"temporal_factor": facts.temporal_factor},
        ),
        _loop(
            "diffusion_denoise", "denoise", "Denoise", ("transformer", "vae"), ("latents", "sound", "actions"),
            "estimate_denoise", step="denoise_step", check="check_actions", can_batch="can_share_call",
            is_generative=True, cache_policy=CachePolicy(reads=("text_kv",)),
            options={
                "num_train_timesteps": NUM_TRAIN_TIMESTEPS, "sampler_options": facts.sampler_options,
                "action_dim": facts.action_dim,
            },
        ),
        _loop("vae_decode", "decode", "Decode", ("vae",), ("frames",), "estimate_decode", max_batch=_MAX_VAE_BATCH),
        _loop(
            "audio_decode", "decode", "Audio", ("sound_tokenizer",), ("sound",), "estimate_sound",
            body="run_audio_step", max_batch=_MAX_VAE_BATCH,
        ),
    ]  # fmt: skip


def _loop(
    loop_id: str,
    module: str,
    prefix: str,
    components: tuple[str, ...],
    outputs: tuple[str, ...],
    estimate: str,
    *,
    step: str | None = None,
    body: str = "run_step",
    check: str | None = None,
    can_batch: str | None = None,
    outputs_schema: str | None = None,
    **settings: Any,
) -> LoopSpec:
    """Return a loop whose classes are named alike: `<Prefix>Loop`, `<Prefix>State` and so on."""
    place = f"fastvideo_cosmos3.loops.{module}"
    return LoopSpec(
        loop_id=loop_id,
        loop=f"{place}:{prefix}Loop",
        step=f"fastvideo_cosmos3.loops.{step or module}:{body}",
        state_schema=f"{place}:{prefix}State",
        step_schema=f"{place}:{prefix}Payload",
        result_schema=f"{place}:{prefix}Values",
        step_cost_model=_COST,
        components=components,
        check=None if check is None else f"{place}:{check}",
        can_batch=None if can_batch is None else f"{place}:{can_batch}",
        estimate=f"fastvideo_cosmos3.loops.estimates:{estimate}",
        outputs=outputs,
        outputs_schema=f"{place}:{outputs_schema or f'{prefix}Outputs'}",
        **settings,
    )
