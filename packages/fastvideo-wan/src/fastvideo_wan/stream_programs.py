"""The programs of streams: text, and what a stream goes on from, into the loop that makes chunks and decodes them."""

from __future__ import annotations

from fastvideo_core.program.base import ArtifactNode, InlineProgram, InputEdge, ModelLoopNode, TensorEdge

__all__ = ["TEXT_TO_STREAM"]

_TEXT = ModelLoopNode(node_id="text", loop="text_encode", inputs={"prompt": InputEdge(name="prompt")})
_TEXT_EDGE = TensorEdge(node="text", output="embeds")
_VIDEO = ArtifactNode(
    node_id="video", modality="video", source=TensorEdge(node="rollout", output="frames"), parameters=("fps",)
)

TEXT_TO_STREAM = InlineProgram(
    program_id="wan.text_to_stream",
    nodes=(_TEXT, ModelLoopNode(node_id="rollout", loop="chunk_rollout", inputs={"text": _TEXT_EDGE}), _VIDEO),
)
