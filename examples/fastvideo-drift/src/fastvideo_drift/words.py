"""The words that the family knows. Imports no torch."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from fastvideo_core.card import LoopSpec

__all__ = ["COLOURS", "DRIFTS", "WORDS", "check_prompt", "word_ids"]

COLOURS = {"red": (0.9, 0.1, 0.1), "green": (0.1, 0.8, 0.1), "blue": (0.1, 0.2, 0.9), "yellow": (0.9, 0.9, 0.1)}
"""Red, green and blue of each colour, from 0 to 1."""

DRIFTS = {"left": -1, "still": 0, "right": 1}
"""Pixels a frame, to the right."""

WORDS = (*COLOURS, *DRIFTS)
"""All words; the position of one is its id."""


def word_ids(prompt: str) -> tuple[int, ...]:
    """Return the ids of the known words of a prompt, in its order."""
    return tuple(WORDS.index(word) for word in re.findall(r"[a-z]+", prompt.lower()) if word in WORDS)


def check_prompt(spec: LoopSpec, model: Any, parameters: Any, inputs: Mapping[str, Any]) -> Sequence[str]:
    """Warn of a prompt without a known word, and of one that names several colours."""
    ids = word_ids(inputs["prompt"])
    if not ids:
        return [f"no word of the prompt is known, so that the bar may be any; known: {', '.join(WORDS)}"]
    colours = {WORDS[index] for index in ids} & set(COLOURS)
    return [f"the prompt names {len(colours)} colours, and a bar has one"] if len(colours) > 1 else []
