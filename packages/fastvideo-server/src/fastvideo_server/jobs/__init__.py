"""Jobs: what was accepted, how far it is, what came of it; kept where they outlive the process."""

from __future__ import annotations

__all__ = [
    "artifacts",
    "asks",
    "database",
    "fair",
    "health",
    "live",
    "pictures",
    "postgres",
    "preparing",
    "pump",
    "quotas",
    "records",
    "recovery",
    "remote",
    "service",
    "sqlite",
    "talks",
]
