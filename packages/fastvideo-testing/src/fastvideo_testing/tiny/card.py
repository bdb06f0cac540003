"""The card of the tiny family. Plain data: nothing here imports torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastvideo_core.card import (
    CacheContract,
    CachePolicy,
    CapabilityMatrix,
    CheckpointManifest,
    CheckpointSource,
    ComponentFiles,
    ComponentSpec,
    DataRef,
    InputSpec,
    LoopSpec,
    ModelCard,
    ParameterSpec,
    ParitySpec,
    PrecisionContract,
    RecipeSpec,
    TaskSpec,
)

__all__ = ["TINY_CARD_ID", "tiny_card"]

TINY_CARD_ID = "tiny"

_HERE = "fastvideo_testing.tiny"


def tiny_card(source: CheckpointSource | Path, *, model_id: str = TINY_CARD_ID) -> ModelCard:
    """Return the card for a checkpoint.

    Args:
        source: Where the checkpoint is; a path is a folder.
        model_id: Name of the card.
    """
    if isinstance(source, Path):
        source = CheckpointSource(kind="folder", location=str(source))
    return ModelCard(
        model_id=model_id,
        family="tiny",
        title="Coloured noise, for tests",
        license="Apache-2.0",
        components=_components(),
        caches={"text_features": CacheContract(cache_class="feature", component="text_encoder", shareable=True)},
        loops=_loops(),
        capabilities=CapabilityMatrix(tasks=_tasks(), default_task="text_to_video"),
        recipe=RecipeSpec(
            method="base",
            data_contract=DataRef(name="none", description="The weights are drawn from a seed; nothing was trained."),
            assumes_loop="denoise",
        ),
        parity=ParitySpec(batch_max_relative_error=1e-5),
        precision=PrecisionContract(default="float32", allowed=("float32", "bfloat16")),
        checkpoint=CheckpointManifest(
            source=source,
            components={
                "text_encoder": ComponentFiles(folder="text_encoder", layout="transformers"),
                "transformer": ComponentFiles(folder="transformer"),
                "vae": ComponentFiles(folder="vae"),
            },
        ),
    )


def _components() -> dict[str, ComponentSpec]:
    config = f"{_HERE}.model:TinyConfig"
    specs = [
        ComponentSpec(
            component_id="tokenizer", kind="tokenizer", load_id="text_encoder", factory=f"{_HERE}.model:load_tokenizer"
        ),
        ComponentSpec(
            component_id="text_encoder",
            kind="text_encoder",
            load_id="text_encoder",
            factory=f"{_HERE}.model:load_text_encoder",
            config_schema=config,
        ),
        ComponentSpec(
            component_id="transformer",
            kind="dit",
            load_id="transformer",
            factory=f"{_HERE}.model:load_transformer",
            config_schema=config,
        ),
        ComponentSpec(
            component_id="vae", kind="vae", load_id="vae", factory=f"{_HERE}.model:load_vae", config_schema=config
        ),
    ]
    return {spec.component_id: spec for spec in specs}


def _loops() -> dict[str, LoopSpec]:
    loops = [
        _loop(
            "text",
            "Text",
            components=("tokenizer", "text_encoder"),
            outputs=("embeds",),
            check=f"{_HERE}.text:check_prompts",
            cache_policy=CachePolicy(reads=("text_features",), writes=("text_features",)),
        ),
        _loop("image", "Image", components=("vae",), outputs=("condition",)),
        _loop("denoise", "Denoise", components=("transformer", "vae"), outputs=("latents",), is_generative=True),
        _loop("decode", "Decode", components=("vae",), outputs=("frames",)),
    ]
    return {loop.loop_id: loop for loop in loops}


def _loop(name: str, prefix: str, **fields: Any) -> LoopSpec:
    module = f"{_HERE}.{name}"
    return LoopSpec(
        loop_id=name,
        loop=f"{module}:{prefix}Loop",
        step=f"{module}:run_step",
        state_schema=f"{module}:{prefix}State",
        step_schema=f"{module}:{prefix}Payload",
        result_schema=f"{module}:{prefix}Values",
        outputs_schema=f"{module}:{prefix}Outputs",
        step_cost_model=f"{_HERE}.plans:plan_cost",
        **fields,
    )


def _tasks() -> dict[str, TaskSpec]:
    prompt = InputSpec(modality="text", max_length=128, description="what to show")
    image = InputSpec(modality="image", description="the first frame")
    return {
        "text_to_video": TaskSpec(
            program=f"{_HERE}.programs:TEXT_TO_VIDEO",
            inputs={"prompt": prompt},
            outputs={"video": "video", "latents": "latents"},
            parameters=_parameters(),
            description="a video from a prompt",
        ),
        "image_to_video": TaskSpec(
            program=f"{_HERE}.programs:IMAGE_TO_VIDEO",
            inputs={"prompt": prompt, "image": image},
            outputs={"video": "video", "latents": "latents"},
            parameters=_parameters(),
            description="a video that begins with an image",
        ),
    }


def _parameters() -> dict[str, ParameterSpec]:
    size = ParameterSpec(type="integer", default=32, minimum=16, maximum=256, multiple_of=8, unit="pixels")
    return {
        "num_frames": ParameterSpec(
            type="integer", default=9, minimum=1, maximum=81, multiple_of=4, offset=1, unit="frames"
        ),
        "height": size,
        "width": size,
        "num_inference_steps": ParameterSpec(type="integer", default=4, minimum=1, maximum=1000, unit="steps"),
        "guidance_scale": ParameterSpec(
            type="number", default=3.0, minimum=0.0, maximum=20.0, description="1 and below turn guidance off"
        ),
        "negative_prompt": ParameterSpec(type="string", default="", description="what not to show"),
        "flow_shift": ParameterSpec(type="number", default=1.0, minimum=0.1, maximum=20.0),
        "sampler": ParameterSpec(type="string", default="euler", choices=("euler",)),
        "seed": ParameterSpec(
            type="integer", minimum=0, maximum=2**63 - 1, is_nullable=True, description="null draws one"
        ),
        "fps": ParameterSpec(type="number", default=8.0, minimum=1.0, maximum=120.0, unit="frames a second"),
    }
