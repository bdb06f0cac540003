"""Which cards are meant where none is named. Both ship with fastvideo-wan and need no download."""

from __future__ import annotations

__all__ = ["DEFAULT_CARD", "DEFAULT_STREAM_CARD"]

DEFAULT_CARD = "wan-shapes-4step"
DEFAULT_STREAM_CARD = "wan-shapes-causal"
