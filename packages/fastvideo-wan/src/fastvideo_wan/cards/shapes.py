"""The cards of the shipped models: each lies beside its weights, written by the recipe that made them."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files

from fastvideo_core.card import CheckpointSource, ModelCard

__all__ = ["shapes_cards"]

_FOLDERS = ("data/wan-shapes", "data/wan-shapes-4step", "data/wan-shapes-nft", "data/wan-shapes-causal")


def shapes_cards() -> Sequence[ModelCard]:
    """Return the cards of `wan-shapes` and of what was made of it, but for those whose weights the build lacks."""
    return tuple(card for folder in _FOLDERS if (card := _card(folder)) is not None)


def _card(folder: str) -> ModelCard | None:
    path = files("fastvideo_wan").joinpath(folder, "card.json")
    if not path.is_file():
        return None
    card = ModelCard.from_json(path.read_text(encoding="utf-8"), origin=str(path))
    source = CheckpointSource(kind="package", location=f"fastvideo_wan:{folder}")
    return card.model_copy(update={"checkpoint": card.checkpoint.model_copy(update={"source": source})})
