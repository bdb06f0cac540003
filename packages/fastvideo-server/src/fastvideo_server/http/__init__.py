"""The HTTP side: routes, bodies, answers. It knows jobs and no model."""

from __future__ import annotations

__all__ = [
    "app",
    "bodies",
    "chat",
    "clients",
    "context",
    "events",
    "images",
    "models",
    "operations",
    "pages",
    "parts",
    "ranges",
    "schemas",
    "sessions",
    "videos",
]
