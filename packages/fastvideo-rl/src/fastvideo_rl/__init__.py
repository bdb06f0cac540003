"""Reinforcement learning and distillation of video models, on the loops that serve them."""

from __future__ import annotations

__all__ = ["__version__"]

__version__ = "0.1.0"
