"""Log lines that programs read: one JSON object a line, with the request that it belongs to."""

from __future__ import annotations

import json
import logging
import sys
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Literal

__all__ = ["REQUEST_ID", "configure"]

REQUEST_ID: ContextVar[str | None] = ContextVar("fastvideo_request_id", default=None)
"""The request that is being answered."""


class _JsonFormatter(logging.Formatter):
    """Writes a record as one line of JSON; fields given as `extra={"fields": {...}}` are in it."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if (request_id := REQUEST_ID.get()) is not None:
            line["request_id"] = request_id
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


class _TextFormatter(logging.Formatter):
    """Writes a record for people."""

    def format(self, record: logging.LogRecord) -> str:
        fields = " ".join(f"{name}={value}" for name, value in getattr(record, "fields", {}).items())
        # A line break in what a client sent would begin a line that looks like one of ours.
        text = f"{record.levelname.lower():<8}{record.getMessage()} {fields}".rstrip().replace("\n", "\\n")
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


def configure(form: Literal["json", "text"]) -> None:
    """Write the logs of the server, of core and of uvicorn to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter() if form == "json" else _TextFormatter())
    for name in ("fastvideo_server", "fastvideo_core", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(logging.INFO if name != "uvicorn" else logging.WARNING)
