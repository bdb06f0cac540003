"""What a request, or a session, tells while it runs: one ordered stream of typed events.

An invalid combination cannot be built: a media chunk always knows its stream, its place in time and whether it is a
preview; a failure always has its reason.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, model_validator

from fastvideo_core.request import session_events
from fastvideo_core.request.event_base import EventBase

__all__ = [
    "ArtifactCreated",
    "Event",
    "MediaChunk",
    "MediaComplete",
    "MediaInit",
    "RequestAccepted",
    "RequestCancelled",
    "RequestCompleted",
    "RequestFailed",
    "RequestProgress",
    "RequestStarted",
    "RequestWarning",
    "TextDelta",
    "parse_event",
]


class RequestAccepted(EventBase):
    """The request is valid and queued; its parameters are resolved."""

    type: Literal["request.accepted"] = "request.accepted"
    card: str
    task: str
    parameters: dict[str, Any]


class RequestWarning(EventBase):
    """Something is allowed and yet will not give what was asked for."""

    type: Literal["request.warning"] = "request.warning"
    message: str


class RequestStarted(EventBase):
    """The first step is about to run."""

    type: Literal["request.started"] = "request.started"


class RequestProgress(EventBase):
    """A step was committed."""

    type: Literal["request.progress"] = "request.progress"
    node: str
    step: int = Field(ge=0)
    num_steps: int | None = None
    fraction: float = Field(ge=0, le=1)
    remaining_s: float | None = Field(default=None, ge=0)


class RequestCompleted(EventBase):
    """All artifacts are there; nothing follows."""

    type: Literal["request.completed"] = "request.completed"
    artifacts: tuple[str, ...]
    duration_s: float


class RequestFailed(EventBase):
    """The request ended with an error; nothing follows."""

    type: Literal["request.failed"] = "request.failed"
    error: str
    message: str


class RequestCancelled(EventBase):
    """The request was cancelled; nothing follows."""

    type: Literal["request.cancelled"] = "request.cancelled"
    reason: str


class ArtifactCreated(EventBase):
    """An artifact is ready."""

    type: Literal["artifact.created"] = "artifact.created"
    name: str
    kind: str


class MediaInit(EventBase):
    """A media stream begins."""

    type: Literal["media.init"] = "media.init"
    stream: str
    codec: str
    width: int = Field(gt=0)
    height: int = Field(gt=0)
    fps: float = Field(gt=0)


class MediaChunk(EventBase):
    """Part of a media stream."""

    type: Literal["media.chunk"] = "media.chunk"
    stream: str
    index: int = Field(ge=0)
    start_s: float = Field(ge=0)
    end_s: float = Field(ge=0)
    is_preview: bool = False
    image: str | None = None
    """Of a preview that has left the process: its picture, as a data URL."""
    data: Any = Field(default=None, exclude=True, repr=False)
    """Reference to the frames, uint8 (T, H, W, 3); not part of the JSON form."""

    @model_validator(mode="after")
    def _ends_after_its_start(self) -> MediaChunk:
        if self.end_s < self.start_s:
            raise ValueError(f"a chunk from {self.start_s} s cannot end at {self.end_s} s")
        return self


class MediaComplete(EventBase):
    """A media stream ends."""

    type: Literal["media.complete"] = "media.complete"
    stream: str
    num_chunks: int = Field(ge=0)


class TextDelta(EventBase):
    """Text that a model has gone on to write."""

    type: Literal["text.delta"] = "text.delta"
    stream: str
    index: int = Field(ge=0)
    text: str
    is_final: bool = False


Event = Annotated[
    RequestAccepted
    | RequestWarning
    | RequestStarted
    | RequestProgress
    | RequestCompleted
    | RequestFailed
    | RequestCancelled
    | ArtifactCreated
    | MediaInit
    | MediaChunk
    | MediaComplete
    | session_events.SessionCreated
    | session_events.SessionPushed
    | session_events.SessionRefused
    | session_events.SessionHeld
    | session_events.SessionResumed
    | session_events.SessionSuspended
    | session_events.SessionForked
    | session_events.SessionChunk
    | session_events.SessionEnded
    | session_events.SessionFailed
    | TextDelta,
    Field(discriminator="type"),
]

_ADAPTER: TypeAdapter[Any] = TypeAdapter(Event)


def parse_event(data: str | bytes) -> Any:
    """Read an event from JSON.

    Raises:
        pydantic.ValidationError: It is not a valid event.
    """
    return _ADAPTER.validate_json(data)
