"""A prompt on its way: what ComfyUI tells of it, and what it remembers."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from fastvideo_comfy.graph.base import FlatGraph
from fastvideo_comfy.program import OutputRequest, WorkflowProgram
from fastvideo_core.runtime.serving import ServedJob

__all__ = ["Output", "PromptRun", "ui_of"]

PromptState = Literal["pending", "running", "ended"]


@dataclass(slots=True, eq=False)
class Output:
    """One output of a prompt: its request, and the job that makes it.

    Attributes:
        request: The program's request.
        job: The job; None once its prompt has ended.
        key: What the ids of its nodes in the program begin with.
        node: Node of the workflow that runs now.
    """

    request: OutputRequest
    job: ServedJob | None
    key: str
    node: str | None = None


@dataclass(slots=True, eq=False)
class PromptRun:
    """A prompt.

    Attributes:
        prompt_id: Its id.
        number: Its place in the order of prompts.
        owner: Who made it.
        client_id: The client that is told of it; None if there is none.
        prompt: The nodes, as they came.
        extra_data: What else came, without keys of other services.
        program: What it compiles to.
        graph: Its flat graph.
        outputs: What is made.
        state: How far it is.
        status: How it ended.
        is_cancelled: Whether somebody interrupted or deleted it.
        messages: What was told of it, with the time.
        made: What each output node shows, by node.
    """

    prompt_id: str
    number: int
    owner: str
    client_id: str | None
    prompt: Mapping[str, Any]
    extra_data: Mapping[str, Any]
    program: WorkflowProgram
    graph: FlatGraph
    outputs: Sequence[Output] = ()
    state: PromptState = "pending"
    is_cancelled: bool = False
    status: Literal["success", "error"] = "success"
    messages: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    made: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def jobs(self) -> list[ServedJob]:
        """The jobs of all outputs."""
        return [one.job for one in self.outputs if one.job is not None]

    def origin(self, output: Output, node: str) -> str | None:
        """Return the node of the workflow that a node of the card's program stands for."""
        wanted = f"{output.key}.{node}".replace("_", "-")
        for one in self.program.nodes:
            if one.node_id == wanted and one.origin:
                return str(one.origin[0])
        return None

    def type_of(self, node: str | None) -> str:
        """Return the type of a node of the workflow."""
        found = self.graph.nodes.get(node or "")
        return "" if found is None else found.type

    def shown(self, node: str) -> str:
        """Return the node that a client shows for one: that of the subgraph which it is in."""
        return node if node in self.prompt else node.partition(":")[0]

    def queued(self) -> list[Any]:
        """Return it as `/queue` lists it."""
        targets = [one.request.output for one in self.outputs]
        return [self.number, self.prompt_id, dict(self.prompt), dict(self.extra_data), targets]

    def remembered(self) -> dict[str, Any]:
        """Return it as `/history` tells of it."""
        return {
            "prompt": self.queued(),
            "outputs": self.made,
            "status": {
                "status_str": self.status,
                "completed": self.status == "success",
                "messages": [[kind, data] for kind, data in self.messages],
            },
            "meta": {
                node: {"node_id": node, "display_node": self.shown(node), "parent_node": None, "real_node_id": node}
                for node in self.made
            },
        }

    def stamp(self, **data: Any) -> dict[str, Any]:
        """Return what a message of its course says: its id, the time, and more."""
        return {"prompt_id": self.prompt_id, **data, "timestamp": int(1000 * time.time())}


def ui_of(names: Sequence[tuple[str, str]], *, is_video: bool) -> dict[str, Any]:
    """Return what an output node shows: its files, as names with their folders below ComfyUI's output."""
    files = [{"filename": name, "subfolder": folder, "type": "output"} for name, folder in names]
    return {"images": files, "animated": [True]} if is_video else {"images": files}
