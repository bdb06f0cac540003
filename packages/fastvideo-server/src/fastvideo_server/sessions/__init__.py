"""Streams that are steered while they play, and outlive the connections of whoever watches them."""

from __future__ import annotations

__all__ = ["live", "messages", "segments", "service"]
