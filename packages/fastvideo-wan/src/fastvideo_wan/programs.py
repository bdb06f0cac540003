"""How Wan's loops make up its tasks. Plain data: neither torch nor the model is imported."""

from __future__ import annotations

from fastvideo_core.program import ArtifactNode, InlineProgram, InputEdge, ModelLoopNode, TensorEdge

__all__ = [
    "ENDS_IMAGE_TO_VIDEO",
    "FEW_STEP_IMAGE_TO_VIDEO",
    "FEW_STEP_TEXT_TO_VIDEO",
    "IMAGE_TO_VIDEO",
    "TEXT_TO_VIDEO",
    "VISION_IMAGE_TO_VIDEO",
]

_TEXT = ModelLoopNode(node_id="text", loop="text_encode", inputs={"prompt": InputEdge(name="prompt")})
_CONDITION = ModelLoopNode(node_id="condition", loop="condition_encode", inputs={"image": InputEdge(name="image")})
_ENDS = ModelLoopNode(
    node_id="condition",
    loop="condition_encode",
    inputs={"image": InputEdge(name="image"), "last_image": InputEdge(name="last_image")},
)
_VISION = ModelLoopNode(node_id="vision", loop="image_encode", inputs={"image": InputEdge(name="image")})
_TEXT_EDGE = TensorEdge(node="text", output="embeds")
_CONDITION_EDGE = TensorEdge(node="condition", output="condition")
_VISION_EDGE = TensorEdge(node="vision", output="embeds")
_LATENTS_EDGE = TensorEdge(node="denoise", output="latents")
_OUTPUTS = (
    ModelLoopNode(node_id="decode", loop="vae_decode", inputs={"latents": _LATENTS_EDGE}),
    ArtifactNode(
        node_id="video", modality="video", source=TensorEdge(node="decode", output="frames"), parameters=("fps",)
    ),
    ArtifactNode(node_id="latents", modality="latents", source=_LATENTS_EDGE),
)

TEXT_TO_VIDEO = InlineProgram(
    program_id="wan.text_to_video",
    nodes=(
        _TEXT,
        ModelLoopNode(node_id="denoise", loop="diffusion_denoise", inputs={"text": _TEXT_EDGE}),
        *_OUTPUTS,
    ),
)

FEW_STEP_IMAGE_TO_VIDEO = InlineProgram(
    program_id="wan.few_step_image_to_video",
    nodes=(
        _TEXT,
        _CONDITION,
        ModelLoopNode(node_id="denoise", loop="dmd_denoise", inputs={"text": _TEXT_EDGE, "condition": _CONDITION_EDGE}),
        *_OUTPUTS,
    ),
)

FEW_STEP_TEXT_TO_VIDEO = InlineProgram(
    program_id="wan.few_step_text_to_video",
    nodes=(_TEXT, ModelLoopNode(node_id="denoise", loop="dmd_denoise", inputs={"text": _TEXT_EDGE}), *_OUTPUTS),
)

IMAGE_TO_VIDEO = InlineProgram(
    program_id="wan.image_to_video",
    nodes=(
        _TEXT,
        _CONDITION,
        ModelLoopNode(
            node_id="denoise", loop="diffusion_denoise", inputs={"text": _TEXT_EDGE, "condition": _CONDITION_EDGE}
        ),
        *_OUTPUTS,
    ),
)

ENDS_IMAGE_TO_VIDEO = InlineProgram(
    program_id="wan.ends_image_to_video",
    nodes=(
        _TEXT,
        _ENDS,
        ModelLoopNode(
            node_id="denoise", loop="diffusion_denoise", inputs={"text": _TEXT_EDGE, "condition": _CONDITION_EDGE}
        ),
        *_OUTPUTS,
    ),
)

VISION_IMAGE_TO_VIDEO = InlineProgram(
    program_id="wan.vision_image_to_video",
    nodes=(
        _TEXT,
        _CONDITION,
        _VISION,
        ModelLoopNode(
            node_id="denoise",
            loop="diffusion_denoise",
            inputs={"text": _TEXT_EDGE, "condition": _CONDITION_EDGE, "image_embeds": _VISION_EDGE},
        ),
        *_OUTPUTS,
    ),
)
