"""Memory of a device: who has how much of it. Accounting only; imports no torch."""

from fastvideo_core.memory.budget import MemoryBudget, Reservation, conservative_limit, format_bytes

__all__ = ["MemoryBudget", "Reservation", "conservative_limit", "format_bytes"]
