"""What all events have."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["EventBase"]


class EventBase(BaseModel):
    """An event of a request or a session."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    request_id: str
    """The request, or the session."""
    sequence: int = Field(ge=0)
    """Position in its stream, from 0, without gaps."""
    time_s: float
    """Wall-clock time, seconds since the epoch."""
