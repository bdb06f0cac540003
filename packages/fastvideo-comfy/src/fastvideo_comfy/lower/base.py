"""What all rules share: a graph with its values folded, and a place for problems and for what has been understood."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from fastvideo_comfy.files import FileMap, name_problem
from fastvideo_comfy.fold import Folded, Folder
from fastvideo_comfy.graph.base import FlatGraph, FlatNode, Problem
from fastvideo_core.card import ModelCard

__all__ = ["CardFinder", "Lowering"]

CardFinder = Callable[[str], ModelCard | None]
"""Gives the card of an id or location, or None."""

_MAX_SEED = 2**64 - 1


@dataclass(slots=True)
class Lowering:
    """The compilation of one workflow.

    Attributes:
        flat: The graph.
        folder: Its values.
        files: Owners of files.
        find_card: Cards by name.
        refused: Nodes whose types do not compile; what depends on them is not judged.
        notes: What the report says of nodes that do compile.
        problems: Problems of values and connections.
    """

    flat: FlatGraph
    folder: Folder
    files: FileMap
    find_card: CardFinder
    refused: set[str] = field(default_factory=set)
    notes: dict[str, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    _lines: set[str] = field(default_factory=set)

    def fail(self, node: FlatNode, code: str, message: str, name: str = "", **details: Any) -> None:
        """Note a problem, once."""
        self.note_problem(Problem(node.node_id, code, message, name, **details))

    def note_problem(self, problem: Problem) -> None:
        """Note a problem, once."""
        if (line := problem.line()) not in self._lines:
            self._lines.add(line)
            self.problems.append(problem)

    def source(
        self, node: FlatNode, name: str, *, wanted: str, is_optional: bool = False
    ) -> tuple[FlatNode, int] | None:
        """Return the node and output behind an input.

        Args:
            node: The node.
            name: Its input.
            wanted: What belongs there, for the message.
            is_optional: Whether it may be left open.

        Returns:
            None where there is none; a problem is noted unless that is allowed, or noted elsewhere.
        """
        if name not in node.inputs and is_optional:
            return None
        if name not in node.inputs:
            self.fail(node, "required_input_missing", "the input is not connected", name, allowed=wanted)
            return None
        folded = self.folder.input(node, name)
        if folded.is_known:
            if folded.value is not None or not is_optional:
                self.fail(node, "return_type_mismatch", "a value stands there", name, got=folded.value, allowed=wanted)
            return None
        if folded.source is None:
            return None
        return self.flat.nodes[folded.source.node], folded.source.slot

    def value(self, node: FlatNode, name: str) -> Folded:
        """Return what an input comes to; a problem is noted where it is missing or comes out of a node that runs."""
        if name not in node.inputs:
            self.fail(node, "required_input_missing", "the value is missing", name)
            return Folded()
        folded = self.folder.input(node, name)
        if folded.source is not None:
            if folded.source.node not in self.refused:
                self.fail(node, "not_constant", "the value is only known while it runs", name, allowed="a fixed value")
            return Folded()
        return folded

    def integer(self, node: FlatNode, name: str, low: int, high: int) -> int | None:
        """Return a whole number between two others."""
        folded = self.value(node, name)
        number = folded.value
        if not folded.is_known:
            return None
        if isinstance(number, float) and number.is_integer():
            number = int(number)
        if not isinstance(number, int) or isinstance(number, bool):
            self.fail(node, "invalid_input_type", "not a whole number", name, got=number, allowed="an integer")
            return None
        return int(number) if self._is_within(node, name, number, low, high) else None

    def number(self, node: FlatNode, name: str, low: float, high: float) -> float | None:
        """Return a number between two others."""
        folded = self.value(node, name)
        if not folded.is_known:
            return None
        number = folded.value
        if not isinstance(number, (int, float)) or isinstance(number, bool) or not math.isfinite(number):
            self.fail(node, "invalid_input_type", "not a number", name, got=number, allowed="a number")
            return None
        # A whole number stays one, so that the report shows the file's own value.
        return number if self._is_within(node, name, number, low, high) else None

    def _is_within(self, node: FlatNode, name: str, number: float, low: float, high: float) -> bool:
        if low <= number <= high:
            return True
        code = "value_smaller_than_min" if number < low else "value_bigger_than_max"
        nearest = low if number < low else high
        self.fail(node, code, "out of range", name, got=number, allowed=f"{low} to {high}", nearest=str(nearest))
        return False

    def seed(self, node: FlatNode, name: str) -> int | None:
        """Return a seed."""
        return self.integer(node, name, 0, _MAX_SEED)

    def text(self, node: FlatNode, name: str) -> str | None:
        """Return a text."""
        folded = self.value(node, name)
        if not folded.is_known:
            return None
        if not isinstance(folded.value, str):
            self.fail(node, "invalid_input_type", "not a text", name, got=folded.value, allowed="text")
            return None
        return folded.value

    def choice(self, node: FlatNode, name: str, allowed: Iterable[str], why: str) -> str | None:
        """Return one of some names."""
        text, names = self.text(node, name), tuple(allowed)
        if text is None or text in names:
            return text
        near = get_close_matches(text, names, n=1, cutoff=0.0)
        self.fail(
            node, "value_not_in_list", why, name, got=text, allowed=", ".join(names), nearest=next(iter(near), "")
        )
        return None

    def file(self, node: FlatNode, name: str) -> str | None:
        """Return a file name that stays within ComfyUI's folders."""
        text = self.text(node, name)
        if text is None:
            return None
        problem = name_problem(text)
        if problem is not None:
            self.fail(node, "invalid_file_name", problem, name, got=text, allowed="a name below ComfyUI's folder")
            return None
        return text

    def is_refused(self, node: FlatNode) -> bool:
        """Whether a node's type does not compile, so that what depends on it is not judged."""
        return node.node_id in self.refused

    def unexpected(self, node: FlatNode, name: str, found: FlatNode, wanted: str) -> None:
        """Note that an input comes from a node that does not belong there, unless that one is refused anyway."""
        if not self.is_refused(found):
            self.fail(
                node,
                "return_type_mismatch",
                f"comes from {found.type} (node {found.node_id}), which has no meaning there",
                name,
                allowed=wanted,
            )
