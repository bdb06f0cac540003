"""Transports for FastVideo. The transports themselves need torch, and are imported by name."""

from fastvideo_transports.plugin import transports

__all__ = ["transports"]
