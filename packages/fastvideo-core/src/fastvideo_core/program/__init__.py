"""The program plane: loops of a card composed into tasks."""

from fastvideo_core.program.base import ArtifactNode, ConstantEdge, InlineProgram, InputEdge, ModelLoopNode, TensorEdge

__all__ = ["ArtifactNode", "ConstantEdge", "InlineProgram", "InputEdge", "ModelLoopNode", "TensorEdge"]
