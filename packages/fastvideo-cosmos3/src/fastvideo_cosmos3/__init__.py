"""Cosmos3 omni for FastVideo: one resident model that reasons, and makes video, sound and action."""

from __future__ import annotations

__all__ = ["cards", "commands", "components", "loops", "models", "programs", "testing"]
