"""Wording that the messages of this folder share: sizes, samples of names, nearest names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from fastvideo_core.memory.budget import format_bytes

__all__ = ["format_bytes", "nearest_name", "sample_names"]


def sample_names(names: Sequence[str], *, max_names: int = 3) -> str:
    """Return the first names and how many more there are: `a, b, c and 7 more`."""
    shown = ", ".join(names[:max_names])
    num_more = len(names) - max_names
    return f"{shown} and {num_more} more" if num_more > 0 else shown


def nearest_name(name: str, candidates: Iterable[str]) -> str | None:
    """Return the candidate that is spelt most like the name, or None if none comes close."""
    matches = difflib.get_close_matches(name, list(candidates), n=1, cutoff=0.6)
    return matches[0] if matches else None
