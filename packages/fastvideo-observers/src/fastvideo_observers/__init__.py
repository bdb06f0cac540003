"""Observers for FastVideo: NaNWatch and Profiler."""

from __future__ import annotations

__all__ = ["nanwatch", "options", "profiler"]
