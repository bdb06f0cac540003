"""Evaluation of what can be known before anything runs: lazily, and without recursion, so that depth has no limit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from fastvideo_comfy.fold.rules import FOLDS, SWITCH, Fold, FoldError
from fastvideo_comfy.graph.base import ACTIVE, FlatGraph, FlatNode, Link, Problem

__all__ = ["Folded", "Folder"]


@dataclass(frozen=True, slots=True)
class Folded:
    """What a link comes to: a value, or the output of a node that has to run; neither where it is broken."""

    value: Any = None
    source: Link | None = None
    is_known: bool = False

    @property
    def is_broken(self) -> bool:
        """Whether it comes to nothing, for a reason that is noted as a problem."""
        return not self.is_known and self.source is None


BROKEN = Folded()


class Folder:
    """Evaluates the inputs of one flat graph.

    Args:
        flat: The graph; problems are added to it.
        brought: Further rules by node type, as of `FOLDS`.
    """

    def __init__(self, flat: FlatGraph, brought: Mapping[str, Fold] = MappingProxyType({})) -> None:
        self._flat = flat
        self._folds: Mapping[str, Fold] = {**FOLDS, **brought}
        self._known: dict[Link, Folded] = {}
        self._noted: set[tuple[str, str, str]] = set()
        self.folded: set[str] = set()
        """Nodes that were evaluated."""

    def input(self, node: FlatNode, name: str) -> Folded:
        """Return what an input comes to; a value of None where there is no such input."""
        given = node.inputs.get(name)
        return self.link(given) if isinstance(given, Link) else Folded(value=given, is_known=True)

    def link(self, link: Link) -> Folded:
        """Return what a link comes to."""
        stack: list[Link] = [link]
        on_path: set[Link] = {link}
        while stack:
            top = stack[-1]
            if top not in self._known:
                missing = self._missing(top)
                if missing is not None and missing in on_path:
                    self._flat.problems.append(Problem(top.node, "cycle", "its value depends on itself"))
                    self._known[missing] = BROKEN
                elif missing is not None:
                    stack.append(missing)
                    on_path.add(missing)
                    continue
                else:
                    self._known[top] = self._evaluate(top)
            stack.pop()
            on_path.discard(top)
        return self._known.get(link, BROKEN)

    def _missing(self, link: Link) -> Link | None:
        """Return a link that has to be known before this one, or None."""
        node = self._flat.nodes.get(link.node)
        if node is None or node.activity != ACTIVE or (node.type not in self._folds and node.type != SWITCH):
            return None
        if node.type == SWITCH:
            return self._missing_of_switch(node)
        return next((one for one in node.links().values() if one not in self._known), None)

    def _missing_of_switch(self, node: FlatNode) -> Link | None:
        given = node.inputs.get("switch")
        if isinstance(given, Link) and given not in self._known:
            return given
        chosen = node.inputs.get(_branch(self._now(given)))
        return chosen if isinstance(chosen, Link) and chosen not in self._known else None

    def _now(self, given: Any) -> Any:
        if not isinstance(given, Link):
            return given
        known = self._known[given]
        return known.value if known.is_known else None

    def _evaluate(self, link: Link) -> Folded:
        node = self._flat.nodes.get(link.node)
        if node is None or node.activity != ACTIVE:
            return BROKEN
        if node.type == SWITCH:
            return self._switch(node)
        fold = self._folds.get(node.type)
        if fold is None:
            return Folded(source=link)
        return self._compute(node, link, fold)

    def _switch(self, node: FlatNode) -> Folded:
        choice = self._now(node.inputs.get("switch"))
        if not isinstance(choice, bool):
            self._note(node, "the switch depends on what is only known while it runs", "switch", "true or false")
            return BROKEN
        self.folded.add(node.node_id)
        name = _branch(choice)
        chosen = node.inputs.get(name)
        if chosen is None:
            self._note(node, "the chosen side of the switch is not connected", name)
            return BROKEN
        return self._known.get(chosen, BROKEN) if isinstance(chosen, Link) else Folded(value=chosen, is_known=True)

    def _compute(self, node: FlatNode, link: Link, fold: Fold) -> Folded:
        if node.unnamed:
            self._note(node, f"the file stores {len(node.unnamed)} widget values, which is more than it has")
            return BROKEN
        inputs: dict[str, Any] = {}
        for name, given in node.inputs.items():
            known = self._known.get(given, BROKEN) if isinstance(given, Link) else Folded(given, is_known=True)
            if known.is_broken:
                return BROKEN
            if not known.is_known:
                self._note(node, "it depends on what is only known while it runs", name, "a value")
                return BROKEN
            inputs[name] = known.value
        try:
            outputs = fold(inputs)
        except FoldError as error:
            self._flat.problems.append(
                Problem(
                    node.node_id, "not_foldable", str(error), error.input_name, got=error.got, allowed=error.allowed
                )
            )
            return BROKEN
        self.folded.add(node.node_id)
        if not 0 <= link.slot < len(outputs):
            self._note(node, f"it has no output {link.slot}")
            return BROKEN
        return Folded(value=outputs[link.slot], is_known=True)

    def _note(self, node: FlatNode, message: str, name: str = "", allowed: str = "") -> None:
        if (node.node_id, name, message) not in self._noted:
            self._noted.add((node.node_id, name, message))
            self._flat.problems.append(Problem(node.node_id, "not_foldable", message, name, allowed=allowed))


def _branch(choice: Any) -> str:
    return {True: "on_true", False: "on_false"}.get(choice, "") if isinstance(choice, bool) else ""
