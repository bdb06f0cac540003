"""Transports for FastVideo. Imports no torch."""

__all__: list[str] = []
