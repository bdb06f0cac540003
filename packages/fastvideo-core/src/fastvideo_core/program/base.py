"""Programs: how the loops of a card are composed into a task. A linear pipeline is the simplest case."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter
from typing import Annotated, Literal

from pydantic import Field, model_validator

from fastvideo_core.card import Contract, Identifier, ModelCard
from fastvideo_core.card.base import JsonScalar
from fastvideo_core.card.capabilities import Modality
from fastvideo_core.errors import CardError

__all__ = ["ArtifactNode", "ConstantEdge", "Edge", "InlineProgram", "InputEdge", "ModelLoopNode", "Node", "TensorEdge"]


class InputEdge(Contract):
    """An input of the request, by name; None reaches the node where the input is optional and absent."""

    kind: Literal["input"] = "input"
    name: Identifier


class TensorEdge(Contract):
    """A result of another loop, handed on by reference."""

    kind: Literal["tensor"] = "tensor"
    node: Identifier
    output: Identifier


class ConstantEdge(Contract):
    """A value that the program itself gives a node."""

    kind: Literal["constant"] = "constant"
    value: JsonScalar


Edge = Annotated[InputEdge | TensorEdge | ConstantEdge, Field(discriminator="kind")]


class ModelLoopNode(Contract):
    """Runs one loop of the card.

    Attributes:
        node_id: Name within the program.
        loop: Loop of the card.
        inputs: Edges by the port names that the loop knows.
        requires_input: Input of the request without which the node does not run (its results are then None).
    """

    kind: Literal["loop"] = "loop"
    node_id: Identifier
    loop: Identifier
    inputs: dict[Identifier, Edge] = Field(default_factory=dict)
    requires_input: Identifier | None = None

    def tensor_edges(self) -> tuple[TensorEdge, ...]:
        """Return the results of other loops that it takes."""
        return tuple(edge for edge in self.inputs.values() if isinstance(edge, TensorEdge))


class ArtifactNode(Contract):
    """Makes a named artifact out of a loop's result.

    Attributes:
        node_id: Name of the artifact; an output of the task.
        modality: What it is.
        source: The result that it is made of.
        parts: Further results that belong to it: of a video its sound, as `audio`.
        parameters: Names of request parameters that the artifact carries (for instance fps).
    """

    kind: Literal["artifact"] = "artifact"
    node_id: Identifier
    modality: Modality
    source: TensorEdge
    parts: dict[Identifier, TensorEdge] = Field(default_factory=dict)
    parameters: tuple[Identifier, ...] = ()

    def tensor_edges(self) -> tuple[TensorEdge, ...]:
        """Return the results of loops that it takes."""
        return (self.source, *self.parts.values())


Node = Annotated[ModelLoopNode | ArtifactNode, Field(discriminator="kind")]


class InlineProgram(Contract):
    """A program whose nodes all run on one resident instance.

    Attributes:
        program_id: Name.
        nodes: Nodes in any order; edges decide what runs when, and independent nodes run side by side.
    """

    kind: Literal["inline"] = "inline"
    program_id: Identifier
    nodes: tuple[Node, ...]

    @model_validator(mode="after")
    def _is_a_graph(self) -> InlineProgram:
        ids = [node.node_id for node in self.nodes]
        if doubled := sorted({name for name in ids if ids.count(name) > 1}):
            raise ValueError(f"nodes named twice: {doubled}")
        for node in self.nodes:
            for source in _sources(node):
                if source not in ids:
                    raise ValueError(f"node {node.node_id!r} takes a result of {source!r}, which is not there")
        try:
            TopologicalSorter({node.node_id: _sources(node) for node in self.nodes}).prepare()
        except CycleError as error:
            raise ValueError(f"nodes wait for each other: {error.args[1]}") from error
        return self

    def node(self, node_id: str) -> ModelLoopNode | ArtifactNode:
        """Return a node by name."""
        return next(node for node in self.nodes if node.node_id == node_id)

    def needed_for(self, artifacts: tuple[str, ...]) -> tuple[ModelLoopNode | ArtifactNode, ...]:
        """Return the nodes that some artifacts need, sources first.

        Args:
            artifacts: Names of artifact nodes.

        Raises:
            CardError: The program makes no such artifact.
        """
        made = [node.node_id for node in self.nodes if isinstance(node, ArtifactNode)]
        needed: set[str] = set()
        todo = list(artifacts)
        for name in artifacts:
            if name not in made:
                raise CardError(f"program {self.program_id} makes no artifact {name!r}; it makes {', '.join(made)}")
        while todo:
            name = todo.pop()
            if name not in needed:
                needed.add(name)
                todo.extend(_sources(self.node(name)))
        order = TopologicalSorter({node.node_id: _sources(node) for node in self.nodes}).static_order()
        return tuple(self.node(name) for name in order if name in needed)

    def loop_ids(self) -> tuple[str, ...]:
        """Return the loops that it runs, each once."""
        return tuple(dict.fromkeys(node.loop for node in self.nodes if isinstance(node, ModelLoopNode)))

    def check_against(self, card: ModelCard) -> None:
        """Refuse a card that cannot run this program.

        Raises:
            CardError: A loop or an output that the card does not have.
            LoopMismatchError: A generative loop that the card's recipe does not assume.
        """
        for node in self.nodes:
            if isinstance(node, ModelLoopNode):
                card.check_loop(node.loop)
            for edge in node.tensor_edges():
                source = self.node(edge.node)
                if not isinstance(source, ModelLoopNode):
                    raise CardError(f"node {node.node_id!r} takes a tensor of {edge.node!r}, which runs no loop")
                outputs = card.loops[source.loop].outputs
                if edge.output not in outputs:
                    raise CardError(
                        f"node {node.node_id!r} takes {edge.output!r} of loop {source.loop}, which gives {outputs}"
                    )


def _sources(node: ModelLoopNode | ArtifactNode) -> list[str]:
    return [edge.node for edge in node.tensor_edges()]
