"""The card: a component, two loops, the task with its parameters, the program. Plain data: no torch."""

from __future__ import annotations

from fastvideo_core.card import (
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
from fastvideo_core.program.base import ArtifactNode, InlineProgram, InputEdge, ModelLoopNode, TensorEdge

__all__ = ["PIPELINE_NAME", "TEXT_TO_VIDEO", "make_card"]

PIPELINE_NAME = "DriftPipeline"
"""What `model_index.json` calls a checkpoint of this family."""

TEXT_TO_VIDEO = InlineProgram(
    program_id="drift.text_to_video",
    nodes=(
        ModelLoopNode(node_id="denoise", loop="denoise", inputs={"prompt": InputEdge(name="prompt")}),
        ModelLoopNode(node_id="paint", loop="paint", inputs={"patches": TensorEdge(node="denoise", output="patches")}),
        ArtifactNode(
            node_id="video", modality="video", source=TensorEdge(node="paint", output="frames"), parameters=("fps",)
        ),
        ArtifactNode(node_id="latents", modality="latents", source=TensorEdge(node="denoise", output="patches")),
    ),
)


def make_card(source: CheckpointSource) -> ModelCard:
    """Return the card of a checkpoint."""
    return ModelCard(
        model_id="drift",
        family="drift",
        title="A bar of one colour that drifts over a plain ground",
        license="Apache-2.0",
        components={
            "shifter": ComponentSpec(
                component_id="shifter",
                kind="dit",
                load_id="shifter",
                factory="fastvideo_drift.model:load_shifter",
                config_schema="fastvideo_drift.model:ShifterConfig",
            )
        },
        loops={"denoise": _denoise(), "paint": _paint()},
        capabilities=CapabilityMatrix(tasks={"text_to_video": _task()}, default_task="text_to_video"),
        recipe=RecipeSpec(
            method="base",
            data_contract=DataRef(name="fastvideo_drift.training", description="Bars that are drawn by a program."),
            assumes_loop="denoise",
        ),
        parity=ParitySpec(batch_max_relative_error=1e-4),
        precision=PrecisionContract(default="float32", allowed=("float32",)),
        checkpoint=CheckpointManifest(source=source, components={"shifter": ComponentFiles(folder="shifter")}),
    )


def _denoise() -> LoopSpec:
    place = "fastvideo_drift.denoise"
    return LoopSpec(
        loop_id="denoise",
        loop=f"{place}:DenoiseLoop",
        step=f"{place}:run_step",
        state_schema=f"{place}:DenoiseState",
        step_schema=f"{place}:DenoisePayload",
        result_schema=f"{place}:DenoiseValues",
        outputs_schema=f"{place}:DenoiseOutputs",
        step_cost_model=f"{place}:plan_cost",
        check="fastvideo_drift.words:check_prompt",
        components=("shifter",),
        outputs=("patches",),
        is_generative=True,
    )


def _paint() -> LoopSpec:
    place = "fastvideo_drift.paint"
    return LoopSpec(
        loop_id="paint",
        loop=f"{place}:PaintLoop",
        step=f"{place}:run_step",
        state_schema=f"{place}:PaintState",
        step_schema=f"{place}:PaintPayload",
        result_schema=f"{place}:PaintValues",
        outputs_schema=f"{place}:PaintOutputs",
        step_cost_model="fastvideo_drift.denoise:plan_cost",
        components=("shifter",),
        outputs=("frames",),
        max_batch=8,
    )


def _task() -> TaskSpec:
    size = ParameterSpec(type="integer", default=32, minimum=16, maximum=128, multiple_of=4, unit="pixels")
    return TaskSpec(
        program="fastvideo_drift.card:TEXT_TO_VIDEO",
        inputs={"prompt": InputSpec(modality="text", max_length=200, description="a colour and where the bar drifts")},
        outputs={"video": "video", "latents": "latents"},
        parameters={
            "num_frames": ParameterSpec(type="integer", default=9, minimum=1, maximum=65, unit="frames"),
            "height": size,
            "width": size,
            "num_inference_steps": ParameterSpec(type="integer", default=8, minimum=1, maximum=100, unit="steps"),
            "seed": ParameterSpec(type="integer", minimum=0, maximum=2**63 - 1, is_nullable=True),
            "fps": ParameterSpec(type="number", default=8.0, minimum=1.0, maximum=60.0, unit="frames a second"),
        },
        description="a video from a prompt",
    )
