"""Observers for FastVideo: ParityAligner, Profiler, NaNWatch and ActivationTrace."""

from __future__ import annotations

__all__ = ["activationtrace", "clocks", "nanwatch", "options", "parityaligner", "profiler", "recordings"]
