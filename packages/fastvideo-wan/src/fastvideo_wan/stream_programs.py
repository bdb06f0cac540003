"""The programs of streams: text, and what a stream goes on from, into the loop that makes chunks and decodes them."""

from __future__ import annotations

from fastvideo_core.program.base import ArtifactNode, InlineProgram, InputEdge, ModelLoopNode, TensorEdge

__all__ = ["IMAGE_TO_STREAM", "TEXT_TO_STREAM", "VIDEO_TO_STREAM"]

_TEXT = ModelLoopNode(node_id="text", loop="text_encode", inputs={"prompt": InputEdge(name="prompt")})
_TEXT_EDGE = TensorEdge(node="text", output="embeds")
_VIDEO = ArtifactNode(
    node_id="video", modality="video", source=TensorEdge(node="rollout", output="frames"), parameters=("fps",)
)
_LATENTS = ArtifactNode(node_id="latents", modality="latents", source=TensorEdge(node="rollout", output="latents"))

TEXT_TO_STREAM = InlineProgram(
    program_id="wan.text_to_stream",
    nodes=(
        _TEXT,
        ModelLoopNode(node_id="rollout", loop="chunk_rollout", inputs={"text": _TEXT_EDGE}),
        _VIDEO,
        _LATENTS,
    ),
)


def _after_clip(program_id: str, name: str) -> InlineProgram:
    """Return the program of a stream that goes on from an input."""
    clip = ModelLoopNode(node_id="clip", loop="clip_encode", inputs={name: InputEdge(name=name)})
    latents = TensorEdge(node="clip", output="latents")
    rollout = ModelLoopNode(
        node_id="rollout", loop="chunk_rollout", inputs={"text": _TEXT_EDGE, "video_latents": latents}
    )
    return InlineProgram(program_id=program_id, nodes=(_TEXT, clip, rollout, _VIDEO, _LATENTS))


IMAGE_TO_STREAM = _after_clip("wan.image_to_stream", "image")
VIDEO_TO_STREAM = _after_clip("wan.video_to_stream", "video")
