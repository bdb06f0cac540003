"""The card of the shipped model: it lies beside the weights, written by the recipe that made them."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files

from fastvideo_core.card import CheckpointSource, ModelCard

__all__ = ["shapes_cards"]

_FOLDER = "data/wan-shapes"


def shapes_cards() -> Sequence[ModelCard]:
    """Return the card of `wan-shapes`; none in a build without the weights."""
    path = files("fastvideo_wan").joinpath(_FOLDER, "card.json")
    if not path.is_file():
        return ()
    card = ModelCard.from_json(path.read_text(encoding="utf-8"), origin=str(path))
    source = CheckpointSource(kind="package", location=f"fastvideo_wan:{_FOLDER}")
    return (card.model_copy(update={"checkpoint": card.checkpoint.model_copy(update={"source": source})}),)
