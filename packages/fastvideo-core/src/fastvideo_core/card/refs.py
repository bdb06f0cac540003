"""The objects that a card names: all references in it, and those that lead out of the installed plugins."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from fastvideo_core.card.base import Contract
from fastvideo_core.card.card import ModelCard

__all__ = ["foreign_refs", "object_refs"]

_REF_FIELDS = {
    "behavior_schema",
    "can_batch",
    "check",
    "config_schema",
    "estimate",
    "factory",
    "io_schema",
    "key_map",
    "loop",
    "outputs_schema",
    "predict",
    "program",
    "result_schema",
    "state_schema",
    "step",
    "step_cost_model",
    "step_schema",
}
"""Fields of a card's contracts that hold an `ObjectRef`."""


def object_refs(card: ModelCard) -> Iterator[tuple[str, str]]:
    """Yield place and text of every `ObjectRef` in a card, for instance `card.loops.decode.step`."""
    yield from _walk(card, "card")


def foreign_refs(card: ModelCard, packages: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield place and text of the references that lead out of some packages, or to Python's own names in them.

    A card that comes with a checkpoint is a stranger's text. Were it free to name any function, `os:system` among
    them, reading weights could run anything.

    Args:
        card: The card.
        packages: Names of top-level packages that it may name; `fastvideo_…` packages always may be.
    """
    for place, ref in object_refs(card):
        parts = ref.replace(":", ".").split(".")
        is_ours = parts[0] in packages or parts[0].startswith("fastvideo_")
        # `__main__` runs a program when it is imported; `__builtins__` leads out of every module.
        if not is_ours or any(part.startswith("__") for part in parts):
            yield place, ref


def _walk(value: Any, place: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, Contract):
        for name in type(value).model_fields:
            part = getattr(value, name)
            if name in _REF_FIELDS:
                parts = part if isinstance(part, tuple) else (part,)
                yield from ((f"{place}.{name}", ref) for ref in parts if ref is not None)
            else:
                yield from _walk(part, f"{place}.{name}")
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from _walk(part, f"{place}.{key}")
    elif isinstance(value, tuple):
        for index, part in enumerate(value):
            yield from _walk(part, f"{place}.{index}")
