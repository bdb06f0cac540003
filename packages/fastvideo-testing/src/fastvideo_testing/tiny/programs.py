"""The two tasks of the tiny family as programs of its loops."""

from __future__ import annotations

from fastvideo_core.program.base import ArtifactNode, Edge, InlineProgram, InputEdge, ModelLoopNode, TensorEdge

__all__ = ["IMAGE_TO_VIDEO", "TEXT_TO_VIDEO"]

_TEXT = ModelLoopNode(node_id="text", loop="text", inputs={"prompt": InputEdge(name="prompt")})
_IMAGE = ModelLoopNode(node_id="image", loop="image", inputs={"image": InputEdge(name="image")})
_DECODE = ModelLoopNode(
    node_id="decode", loop="decode", inputs={"latents": TensorEdge(node="denoise", output="latents")}
)
_ARTIFACTS = (
    ArtifactNode(
        node_id="video", modality="video", source=TensorEdge(node="decode", output="frames"), parameters=("fps",)
    ),
    ArtifactNode(node_id="latents", modality="latents", source=TensorEdge(node="denoise", output="latents")),
)
_TO_DENOISE: dict[str, Edge] = {"embeds": TensorEdge(node="text", output="embeds")}

TEXT_TO_VIDEO = InlineProgram(
    program_id="tiny.text_to_video",
    nodes=(_TEXT, ModelLoopNode(node_id="denoise", loop="denoise", inputs=_TO_DENOISE), _DECODE, *_ARTIFACTS),
)

IMAGE_TO_VIDEO = InlineProgram(
    program_id="tiny.image_to_video",
    nodes=(
        _TEXT,
        _IMAGE,
        ModelLoopNode(
            node_id="denoise",
            loop="denoise",
            inputs={**_TO_DENOISE, "condition": TensorEdge(node="image", output="condition")},
        ),
        _DECODE,
        *_ARTIFACTS,
    ),
)
