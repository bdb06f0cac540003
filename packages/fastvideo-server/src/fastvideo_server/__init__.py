"""FastVideo over HTTP: an API that OpenAI clients speak, durable jobs, event streams, operations, a client."""

from __future__ import annotations

__all__ = ["client", "config", "errors", "http", "jobs", "logs", "metrics", "protocol", "serve", "tracing", "watch"]
