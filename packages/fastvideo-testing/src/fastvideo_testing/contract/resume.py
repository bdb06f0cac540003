"""Goes on with a stored request in a fresh process; run by the contract suite with a card, a store, and a file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from fastvideo_core.card import ModelCard
from fastvideo_core.runtime.durable import SavedJob, StateStore
from fastvideo_testing.contract.base import load, numbers_of
from fastvideo_testing.gate.pool import Pool

__all__ = ["main"]


def main() -> None:
    """Load the card, take the one request of the store up, run it to its end, and write its numbers."""
    card_file, store_folder, result = map(Path, sys.argv[1:4])
    card = ModelCard.from_json(card_file.read_text(encoding="utf-8"), origin=str(card_file))
    instance = load(card)
    with StateStore(store_folder) as store:
        (saved,) = store.load(instance)
        if not isinstance(saved, SavedJob):
            raise saved.error
        np.save(result, _numbers(instance, saved))


def _numbers(instance: Any, saved: SavedJob) -> Any:
    pool = Pool(instance)
    outcome = pool.go_on(saved.prepared, saved.nodes)
    if outcome.error is not None:
        raise outcome.error
    return numbers_of(outcome.artifacts)
