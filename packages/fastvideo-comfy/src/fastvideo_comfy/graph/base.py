"""What a workflow is once it is flat: nodes with named inputs, each a value or a link; and what was wrong with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = ["ACTIVE", "Activity", "FlatGraph", "FlatNode", "Link", "Problem", "input_name"]

Activity = Literal["active", "bypassed", "muted"]
ACTIVE: Activity = "active"


@dataclass(frozen=True, slots=True)
class Link:
    """Where an input comes from.

    Attributes:
        node: Id of the node.
        slot: Its output, from 0.
    """

    node: str
    slot: int


@dataclass(frozen=True, slots=True)
class Problem:
    """One reason why a workflow does not compile.

    Attributes:
        node: Id of the node; "" for the workflow as a whole.
        code: Kind of problem, in the words of ComfyUI's validation where it has one.
        message: What is wrong, in one line.
        input: The node's input, if it is about one.
        got: What was there.
        allowed: What may be there.
        nearest: The nearest thing that is supported.
    """

    node: str
    code: str
    message: str
    input: str = ""
    got: Any = None
    allowed: str = ""
    nearest: str = ""

    def line(self) -> str:
        """Return it as one line."""
        place = ".".join(part for part in (f"node {self.node}" if self.node else "workflow", self.input) if part)
        parts = [f"{place}: {self.message}"]
        if self.allowed:
            parts.append(f"allowed: {self.allowed}")
        if self.nearest:
            parts.append(f"nearest: {self.nearest}")
        return " ".join("; ".join(parts).split())


@dataclass(slots=True)
class FlatNode:
    """A node that stands for work; virtual nodes and subgraphs are resolved into links.

    Attributes:
        node_id: Id; of a node in a subgraph `outer:inner`, as ComfyUI names it.
        type: Its type.
        title: What the person named it; else its type.
        inputs: Inputs by name: a `Link`, or a value.
        activity: Whether it takes part.
        num_outputs: Outputs that the file states; None where the form does not tell.
        unnamed: Widget values whose names are not known, of types outside of the tables.
    """

    node_id: str
    type: str
    title: str
    inputs: dict[str, Any] = field(default_factory=dict)
    activity: Activity = ACTIVE
    num_outputs: int | None = None
    unnamed: tuple[Any, ...] = ()

    def links(self) -> dict[str, Link]:
        """Return the inputs that are links."""
        return {name: value for name, value in self.inputs.items() if isinstance(value, Link)}


@dataclass(slots=True)
class FlatGraph:
    """A workflow without forms.

    Attributes:
        nodes: All nodes by id, in the file's order, those that take no part included.
        problems: What was wrong.
        form: The form of the file.
    """

    nodes: dict[str, FlatNode] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    form: Literal["ui", "api"] = "ui"

    def to_prompt(self) -> dict[str, Any]:
        """Return the active nodes in API form, as `POST /prompt` takes it."""
        return {
            node.node_id: {
                "class_type": node.type,
                "inputs": {name: _prompt_value(value) for name, value in node.inputs.items()},
                "_meta": {"title": node.title},
            }
            for node in self.nodes.values()
            if node.activity == ACTIVE
        }


def _prompt_value(value: Any) -> Any:
    if isinstance(value, Link):
        return [value.node, value.slot]
    # A list would be read as a link.
    return {"__value__": value} if isinstance(value, list) else value


def input_name(slot: Mapping[str, Any]) -> str | None:
    """Return the name of an input slot: that of its widget, under which ComfyUI sends its value, else its own."""
    widget = slot.get("widget")
    for owner in (widget, slot):
        if isinstance(owner, Mapping) and isinstance(owner.get("name"), str):
            return str(owner["name"])
    return None
