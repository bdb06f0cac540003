"""What a workflow compiles to: a typed program, with one request for each output. Plain data, free of torch."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from fastvideo_core.card.base import Contract, Identifier, JsonScalar
from fastvideo_core.card.capabilities import Modality
from fastvideo_core.program import TensorEdge
from fastvideo_core.program.base import ConstantEdge

__all__ = [
    "AdapterUse",
    "ArtifactEdge",
    "ComponentEdge",
    "ComponentNode",
    "ImageNode",
    "LoopNode",
    "OutputFile",
    "OutputNode",
    "OutputRequest",
    "TextNode",
    "WorkflowProgram",
]


class ArtifactEdge(Contract):
    """A text or an image that a node of the program holds."""

    kind: Literal["artifact"] = "artifact"
    node: Identifier


class ComponentEdge(Contract):
    """Weights that a loop runs on."""

    kind: Literal["component"] = "component"
    node: Identifier


Edge = Annotated[TensorEdge | ArtifactEdge | ConstantEdge, Field(discriminator="kind")]


class _Node(Contract):
    node_id: Identifier
    origin: tuple[str, ...] = ()
    """Nodes of the workflow that it stands for."""


class AdapterUse(Contract):
    """An adapter on some weights.

    Attributes:
        file: Its file, by ComfyUI's name.
        strength: What its change is multiplied with.
    """

    file: str
    strength: float


class ComponentNode(_Node):
    """Weights: a part of a card, from a file.

    Attributes:
        component: The card's component.
        file: The file, by ComfyUI's name.
        folder: ComfyUI's folder of such files.
        adapters: What is added to the weights, in order.
    """

    kind: Literal["component"] = "component"
    component: Identifier
    file: str
    folder: str
    adapters: tuple[AdapterUse, ...] = ()


class TextNode(_Node):
    """A text of the workflow."""

    kind: Literal["text"] = "text"
    text: str


class ImageNode(_Node):
    """An image file of the workflow.

    Attributes:
        file: Its name in ComfyUI's input folder.
        fit: How it is brought to the video's size: "center_crop" cuts what is too wide or too high, then scales.
    """

    kind: Literal["image"] = "image"
    file: str
    fit: Literal["center_crop"] = "center_crop"


class LoopNode(_Node):
    """Runs one loop of the card.

    Attributes:
        loop: The card's loop.
        inputs: Edges by the loop's port.
        components: Weights by the card's component.
    """

    kind: Literal["loop"] = "loop"
    loop: Identifier
    inputs: dict[Identifier, Edge] = Field(default_factory=dict)
    components: dict[Identifier, ComponentEdge] = Field(default_factory=dict)


class OutputNode(_Node):
    """Makes a file of a loop's result."""

    kind: Literal["output"] = "output"
    modality: Modality
    source: TensorEdge


Node = Annotated[ComponentNode | TextNode | ImageNode | LoopNode | OutputNode, Field(discriminator="kind")]


class OutputFile(Contract):
    """Where an output goes.

    Attributes:
        prefix: What its name begins with; folders separated by `/` lie below the output folder.
        format: Extension without the dot.
    """

    prefix: str
    format: str


class OutputRequest(Contract):
    """One output of the workflow as a request to a card.

    Attributes:
        output: Id of the workflow's output node.
        card: Card by id or location.
        task: The card's task.
        texts: Text inputs of the task, by name.
        images: Nodes of image inputs of the task, by name.
        parameters: The task's parameters; all that the workflow says, and nothing else.
        components: Nodes of the weights, by the card's component.
        sigmas: Noise levels that the sampler steps through, rounded to float32.
        file: Where the result goes.
        result: The node that makes it.
    """

    output: str
    card: str
    task: str
    texts: dict[Identifier, str]
    images: dict[Identifier, Identifier] = Field(default_factory=dict)
    parameters: dict[Identifier, JsonScalar]
    components: dict[Identifier, Identifier]
    sigmas: tuple[float, ...]
    file: OutputFile
    result: Identifier


class WorkflowProgram(Contract):
    """A compiled workflow.

    Attributes:
        schema_version: Version of this contract.
        program_id: Name.
        nodes: Nodes; edges decide what runs when.
        requests: One for each output, in the order of the outputs' ids.
    """

    schema_version: Literal[1] = 1
    kind: Literal["workflow"] = "workflow"
    program_id: str = Field(min_length=1, max_length=128)
    nodes: tuple[Node, ...]
    requests: tuple[OutputRequest, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _is_a_graph(self) -> WorkflowProgram:
        kinds = {node.node_id: node.kind for node in self.nodes}
        if len(kinds) != len(self.nodes):
            raise ValueError("two nodes have the same id")
        sources = {node.node_id: _sources(node) for node in self.nodes}
        for name, edges in sources.items():
            for source, kind in edges:
                if kinds.get(source) not in kind:
                    raise ValueError(f"node {name!r} takes {source!r}, which is no {' or '.join(kind)} node of it")
        try:
            TopologicalSorter({name: [source for source, _ in edges] for name, edges in sources.items()}).prepare()
        except CycleError as error:
            raise ValueError(f"nodes wait for each other: {error.args[1]}") from error
        return self

    def node(self, node_id: str) -> Any:
        """Return a node by id."""
        return next(node for node in self.nodes if node.node_id == node_id)

    def adapters(self, request: OutputRequest) -> dict[str, tuple[AdapterUse, ...]]:
        """Return the adapters of a request, by the card's component; components without any are left out."""
        found = {name: self.node(node_id).adapters for name, node_id in request.components.items()}
        return {name: adapters for name, adapters in found.items() if adapters}


def _sources(node: Any) -> list[tuple[str, tuple[str, ...]]]:
    """Return the nodes that a node takes from, each with the kinds that it may be of."""
    if isinstance(node, OutputNode):
        return [(node.source.node, ("loop",))]
    if not isinstance(node, LoopNode):
        return []
    edges: list[tuple[str, tuple[str, ...]]] = [
        (edge.node, ("loop",) if isinstance(edge, TensorEdge) else ("text", "image"))
        for edge in node.inputs.values()
        if not isinstance(edge, ConstantEdge)
    ]
    return edges + [(edge.node, ("component",)) for edge in node.components.values()]
