"""Step and block caching for FastVideo, by the cache-dit library, with its state in the request's."""

from __future__ import annotations

__all__ = ["blocks", "library", "masks", "options", "state", "steps"]
