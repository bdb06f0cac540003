"""What a session tells besides its media: that it is there, held, suspended, forked, over, and what was pushed."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from fastvideo_core.request.event_base import EventBase

__all__ = [
    "SessionChunk",
    "SessionCreated",
    "SessionEnded",
    "SessionFailed",
    "SessionForked",
    "SessionHeld",
    "SessionPushed",
    "SessionRefused",
    "SessionResumed",
    "SessionSuspended",
]


class SessionCreated(EventBase):
    """A session is there; its parameters are resolved."""

    type: Literal["session.created"] = "session.created"
    card: str
    task: str
    parameters: dict[str, Any]
    parent: str | None = None
    """The session that it was forked from."""
    chunk: int = Field(default=0, ge=0)
    """Its first chunk."""


class SessionPushed(EventBase):
    """A push was applied, after so many steps of the stream; the same pushes at the same steps give the same stream."""

    type: Literal["session.pushed"] = "session.pushed"
    kind: Literal["text", "image", "action"]
    step: int = Field(ge=0)
    chunk: int = Field(ge=0)
    """The chunk in progress, or the next one between two."""


class SessionRefused(EventBase):
    """The loop did not take a push; the stream goes on as it was."""

    type: Literal["session.refused"] = "session.refused"
    kind: Literal["text", "image", "action"]
    error: str
    message: str


class SessionHeld(EventBase):
    """No chunk is begun for now: the caller has paused it, or its viewer has enough."""

    type: Literal["session.held"] = "session.held"
    reason: Literal["caller", "viewer"]


class SessionResumed(EventBase):
    """Chunks are made again."""

    type: Literal["session.resumed"] = "session.resumed"


class SessionSuspended(EventBase):
    """Its state has left the device; it comes back when it is resumed."""

    type: Literal["session.suspended"] = "session.suspended"
    reason: Literal["caller", "idle"]
    chunk: int = Field(ge=0)
    """The chunk that comes next."""
    num_bytes: int = Field(ge=0)


class SessionForked(EventBase):
    """Another session goes on from one of its chunks."""

    type: Literal["session.forked"] = "session.forked"
    child: str
    chunk: int = Field(ge=0)


class SessionChunk(EventBase):
    """A chunk is complete."""

    type: Literal["session.chunk"] = "session.chunk"
    chunk: int = Field(ge=0)
    latency_s: float = Field(ge=0)
    """From its first step to its last frame."""
    lag_s: float = Field(ge=0)
    """How much later its last frame came than a viewer wanted its first, who plays on since the first chunk."""
    ahead_s: float = Field(ge=0)
    """Video that its viewer has not seen yet."""


class SessionEnded(EventBase):
    """The session has ended as it should; nothing follows."""

    type: Literal["session.ended"] = "session.ended"
    reason: str
    num_chunks: int = Field(ge=0)


class SessionFailed(EventBase):
    """The session has ended with an error; nothing follows."""

    type: Literal["session.failed"] = "session.failed"
    error: str
    message: str
