"""The flash-attn kernels, versions 2 and 3, as attention backends for FastVideo."""

from __future__ import annotations

__all__ = ["attention", "availability"]
