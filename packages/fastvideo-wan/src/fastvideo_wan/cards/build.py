"""From facts to a card: one place that says how Wan's components, loops, tasks and parity hang together."""

from __future__ import annotations

from typing import Any, Literal

from fastvideo_core.card import (
    CacheContract,
    CachePolicy,
    CapabilityMatrix,
    CheckpointManifest,
    ComponentFiles,
    ComponentSpec,
    GraphCapturePolicy,
    InputSpec,
    LoopSpec,
    ModelCard,
    ParallelConstraint,
    ParallelismContract,
    ParameterSpec,
    ParitySpec,
    PrecisionContract,
    PrecisionPolicy,
    TaskSpec,
)
from fastvideo_wan.cards.facts import WanFacts
from fastvideo_wan.cards.parity import parity_tests

__all__ = ["NUM_TRAIN_TIMESTEPS", "make_card"]

NUM_TRAIN_TIMESTEPS = 1000
"""Length of the timestep scale of all Wan weights."""

_MAX_STEP_PIXELS = 81 * 480 * 832 // 4
"""Pixels that one decode step makes at most: a quarter of the usual clip, so that others are not kept waiting."""

_MAX_VAE_BATCH = 8
"""Clips that share a call of the VAE: more save nothing, since its convolutions are large."""

_MAX_SEED = 2**63 - 1


def make_card(facts: WanFacts) -> ModelCard:
    """Return the card of a checkpoint."""
    components = _components(facts)
    tests = parity_tests(facts)
    return ModelCard(
        model_id=facts.model_id,
        family="wan",
        title=facts.title,
        license=facts.license,
        components={spec.component_id: spec for spec in components},
        loops={spec.loop_id: spec for spec in _loops(facts)},
        capabilities=_capabilities(facts),
        recipe=facts.recipe,
        parity=ParitySpec(tests=tests, batch_invariant=False, batch_max_relative_error=1e-4),
        caches={
            "text_features": CacheContract(cache_class="feature", component="text_encoder", shareable=True),
            "text_kv": CacheContract(cache_class="feature", component="transformer", keyed_by=("input_hashes",)),
            "vae_features": CacheContract(cache_class="residual", component="vae"),
        },
        parallelism=ParallelismContract(),
        precision=PrecisionContract(default=facts.default_precision),
        checkpoint=CheckpointManifest(
            source=facts.source, components={spec.load_id: _files(facts, spec) for spec in components}
        ),
        figures=facts.figures,
    )


def _image_tasks(facts: WanFacts) -> tuple[str, ...]:
    return () if facts.conditioning == "none" else ("image_to_video",)


def _components(facts: WanFacts) -> list[ComponentSpec]:
    heads = ParallelConstraint(divides={"tp": facts.num_heads, "sp": facts.num_heads})
    # The reference keeps these parts of the transformer in float32 whatever the rest runs in.
    transformer = PrecisionPolicy(keep_float32=("time_embedder", "scale_shift_table", "norm1", "norm2", "norm3"))
    specs = [
        _component("tokenizer", "tokenizer", "build_tokenizer"),
        _component("text_encoder", "text_encoder", "build_text_encoder"),
        _component("transformer", "dit", "build_transformer", precision=transformer, constraint=heads),
    ]
    if facts.boundary_ratio is not None:
        specs.append(_component("transformer_2", "dit", "build_transformer", precision=transformer, constraint=heads))
    if facts.conditioning == "channels_and_vision":
        needed = _image_tasks(facts)
        specs.append(_component("image_processor", "image_processor", "build_image_processor", needed_for=needed))
        specs.append(
            _component("image_encoder", "image_encoder", "build_image_encoder", precision=_FLOAT32, needed_for=needed)
        )
    specs.append(_component("vae", "vae", "build_vae", precision=_FLOAT32))
    return specs


_FLOAT32 = PrecisionPolicy(compute="float32")


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
        factory=f"fastvideo_wan.components:{factory}",
        precision_policy=precision or PrecisionPolicy(),
        parallel_constraints=constraint or ParallelConstraint(),
        required_for=needed_for,
    )


def _files(facts: WanFacts, spec: ComponentSpec) -> ComponentFiles:
    layout: Literal["diffusers", "transformers"] = "diffusers" if spec.kind in ("dit", "vae") else "transformers"
    tasks = _image_tasks(facts) if spec.required_for else ()
    key_map = "fastvideo_wan.components:VISION_KEYS" if spec.kind == "image_encoder" else None
    return ComponentFiles(folder=spec.component_id, layout=layout, key_map=key_map, required_for=tasks)


def _loops(facts: WanFacts) -> list[LoopSpec]:
    options = {
        "text_length": facts.text_length,
        "guidance": "none" if facts.guidance_scale is None else "batched",
        "boundary_ratio": facts.boundary_ratio,
        "expand_timesteps": facts.expand_timesteps,
        "num_train_timesteps": NUM_TRAIN_TIMESTEPS,
    }
    loops = [_text_loop(options), _denoise_loop(facts, options), _decode_loop()]
    if facts.conditioning != "none":
        loops.append(_condition_loop(facts))
    if facts.conditioning == "channels_and_vision":
        loops.append(_vision_loop())
    return loops


def _text_loop(options: dict[str, Any]) -> LoopSpec:
    module = "fastvideo_wan.loops.text"
    return LoopSpec(
        loop_id="text_encode",
        loop=f"{module}:TextEncodeLoop",
        step=f"{module}:run_step",
        state_schema=f"{module}:TextState",
        step_schema=f"{module}:TextPayload",
        result_schema=f"{module}:TextValues",
        step_cost_model=_COST,
        components=("tokenizer", "text_encoder"),
        check=f"{module}:check_prompts",
        can_batch=f"{module}:can_share_call",
        cache_policy=CachePolicy(reads=("text_features",), writes=("text_features",)),
        outputs=("embeds",),
        outputs_schema=f"{module}:TextOutputs",
        estimate=f"{_ESTIMATES}:estimate_text",
        options=options,
    )


_COST = "fastvideo_wan.loops.costs:plan_cost"
_ESTIMATES = "fastvideo_wan.loops.estimates"


def _denoise_loop(facts: WanFacts, options: dict[str, Any]) -> LoopSpec:
    module = "fastvideo_wan.loops.denoise"
    experts = ("transformer",) if facts.boundary_ratio is None else ("transformer", "transformer_2")
    few_steps = {} if facts.dmd_steps is None else {"lcm": {"steps": list(facts.dmd_steps), "warp": False}}
    pinned: dict[str, Any] = {}
    if facts.dmd_steps is not None:
        pinned = {"sampler": "lcm", "num_inference_steps": len(facts.dmd_steps), "flow_shift": facts.flow_shift}
    return LoopSpec(
        loop_id=facts.loop_id,
        loop=f"{module}:DenoiseLoop",
        step="fastvideo_wan.loops.denoise_step:run_step",
        state_schema=f"{module}:DenoiseState",
        step_schema=f"{module}:DenoisePayload",
        result_schema=f"{module}:DenoiseValues",
        behavior_schema="fastvideo_core.loop.behavior:StepBehavior",
        predict="fastvideo_wan.loops.denoise_record:predict",
        step_cost_model=_COST,
        components=(*experts, "vae"),
        outputs=("latents",),
        outputs_schema=f"{module}:DenoiseOutputs",
        estimate=f"{_ESTIMATES}:estimate_denoise",
        is_generative=True,
        pinned=pinned,
        options={**options, "sampler_options": {**facts.sampler_options, **few_steps}},
        graph_capture=GraphCapturePolicy(compile_blocks=True, cuda_graph=True),
        cache_policy=CachePolicy(reads=("text_kv",), writes=("text_kv",)),
    )


def _decode_loop() -> LoopSpec:
    module = "fastvideo_wan.loops.decode"
    return LoopSpec(
        loop_id="vae_decode",
        loop=f"{module}:DecodeLoop",
        step=f"{module}:run_step",
        state_schema=f"{module}:DecodeState",
        step_schema=f"{module}:DecodePayload",
        result_schema=f"{module}:DecodeValues",
        step_cost_model=_COST,
        components=("vae",),
        outputs=("frames",),
        max_batch=_MAX_VAE_BATCH,
        outputs_schema=f"{module}:DecodeOutputs",
        estimate=f"{_ESTIMATES}:estimate_decode",
        options={"max_step_pixels": _MAX_STEP_PIXELS},
        cache_policy=CachePolicy(reads=("vae_features",), writes=("vae_features",)),
    )


def _condition_loop(facts: WanFacts) -> LoopSpec:
    module = "fastvideo_wan.loops.image"
    return LoopSpec(
        loop_id="condition_encode",
        loop=f"{module}:ConditionEncodeLoop",
        step=f"{module}:run_condition_step",
        state_schema=f"{module}:ConditionState",
        step_schema=f"{module}:ConditionPayload",
        result_schema=f"{module}:ConditionValues",
        step_cost_model=_COST,
        components=("vae",),
        outputs=("condition",),
        max_batch=_MAX_VAE_BATCH,
        outputs_schema=f"{module}:ConditionOutputs",
        estimate=f"{_ESTIMATES}:estimate_condition",
        options={"is_blended": facts.conditioning == "first_frame"},
        cache_policy=CachePolicy(reads=("vae_features",), writes=("vae_features",)),
    )


def _vision_loop() -> LoopSpec:
    module = "fastvideo_wan.loops.image"
    return LoopSpec(
        loop_id="image_encode",
        loop=f"{module}:ImageEncodeLoop",
        step=f"{module}:run_image_step",
        state_schema=f"{module}:ImageState",
        step_schema=f"{module}:ImagePayload",
        result_schema=f"{module}:ImageValues",
        step_cost_model=_COST,
        components=("image_processor", "image_encoder"),
        outputs=("embeds",),
        outputs_schema=f"{module}:ImageOutputs",
        estimate=f"{_ESTIMATES}:estimate_vision",
    )


def _capabilities(facts: WanFacts) -> CapabilityMatrix:
    prefix = "" if facts.dmd_steps is None else "FEW_STEP_"
    vision = {"channels_and_vision": "VISION_", "channels": "ENDS_"}.get(facts.conditioning, "")
    tasks: dict[str, TaskSpec] = {}
    if facts.accepts_text_only:
        tasks["text_to_video"] = _task(facts, f"{prefix}TEXT_TO_VIDEO", "A video from a prompt.")
    if facts.conditioning != "none":
        program = f"{prefix}{vision}IMAGE_TO_VIDEO"
        tasks["image_to_video"] = _task(facts, program, "A video from a prompt and its first frame.", has_image=True)
    return CapabilityMatrix(tasks=tasks, default_task=next(iter(tasks)))


def _task(facts: WanFacts, program: str, description: str, *, has_image: bool = False) -> TaskSpec:
    inputs = {"prompt": InputSpec(modality="text", max_length=facts.text_length, description="What to show.")}
    if has_image:
        inputs["image"] = InputSpec(modality="image", description="First frame; stretched to the video's size.")
    if has_image and facts.conditioning == "channels":
        inputs["last_image"] = InputSpec(
            modality="image", required=False, description="Last frame; stretched to the video's size."
        )
    return TaskSpec(
        program=f"fastvideo_wan.programs:{program}",
        inputs=inputs,
        outputs={"video": "video", "latents": "latents"},
        parameters=_parameters(facts),
        description=description,
    )


def _parameters(facts: WanFacts) -> dict[str, ParameterSpec]:
    frames = facts.temporal_factor * facts.patch[0]
    parameters = {
        "num_frames": ParameterSpec(
            type="integer", default=facts.num_frames, minimum=1, maximum=facts.max_frames, multiple_of=frames, offset=1,
            unit="frames", description="Length of the video.",
        ),
        "height": _size(facts, facts.height, "Height of the video."),
        "width": _size(facts, facts.width, "Width of the video."),
        "num_inference_steps": ParameterSpec(
            type="integer", default=facts.num_inference_steps, minimum=1, maximum=1000, description="Sampler steps.",
        ),
        "flow_shift": ParameterSpec(
            type="number", default=facts.flow_shift, minimum=0.01, maximum=100,
            description="How much of the schedule is spent at high noise.",
        ),
        "sampler": ParameterSpec(
            type="string", default=facts.sampler, choices=_samplers(facts), description="How a step is made."
        ),
        "seed": ParameterSpec(
            type="integer", default=None, minimum=0, maximum=_MAX_SEED, is_nullable=True,
            description="Seed of the noise; null draws one, which is reported.",
        ),
        "fps": ParameterSpec(
            type="number", default=facts.fps, minimum=0.1, maximum=240, unit="frames a second",
            description="Frame rate written to the file; the model's own motion is made for the default.",
        ),
        "vae_tiling": ParameterSpec(
            type="boolean", default=False,
            description="Decode large frames in overlapping tiles: less memory, faint seams.",
        ),
    }  # fmt: skip
    return {**parameters, **_guidance_parameters(facts)}


def _size(facts: WanFacts, default: int, description: str) -> ParameterSpec:
    return ParameterSpec(
        type="integer", default=default, minimum=facts.min_size or facts.size_grid, maximum=facts.max_size,
        multiple_of=facts.size_grid, unit="pixels", description=description,
    )  # fmt: skip


def _samplers(facts: WanFacts) -> tuple[str, ...]:
    if facts.dmd_steps is not None:
        return ("lcm",)
    return tuple(dict.fromkeys((facts.sampler, "unipc", "flow_euler", "dpmpp_2m")))


def _guidance_parameters(facts: WanFacts) -> dict[str, ParameterSpec]:
    if facts.guidance_scale is None:
        return {}
    parameters = {
        "guidance_scale": _scale(facts.guidance_scale, "Weight of the prompt; 1 or less switches guidance off."),
        "negative_prompt": ParameterSpec(
            type="string", default="", is_nullable=True, description="What to steer away from."
        ),
    }
    if facts.boundary_ratio is not None:
        description = "Weight of the prompt in the low-noise expert; null repeats the first."
        parameters["guidance_scale_2"] = _scale(facts.guidance_scale_2, description, is_nullable=True)
        parameters["expert_switch_step"] = ParameterSpec(
            type="integer", default=None, minimum=1, maximum=1000, is_nullable=True,
            description="Step at which the low-noise expert takes over; null leaves it to the noise level.",
        )  # fmt: skip
    return parameters


def _scale(default: float | None, description: str, *, is_nullable: bool = False) -> ParameterSpec:
    return ParameterSpec(
        type="number", default=default, minimum=0, maximum=50, is_nullable=is_nullable, description=description
    )
