"""What a client says over a session's WebSocket. Each message is a JSON object; unknown fields are refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from fastvideo_core.runtime.sessions import SessionOptions
from fastvideo_server.errors import ApiError
from fastvideo_server.http.bodies import parse_json

__all__ = [
    "Ack",
    "Attach",
    "Close",
    "Create",
    "Fork",
    "Message",
    "Pause",
    "PushAction",
    "PushImage",
    "PushText",
    "Resume",
    "StreamOptions",
    "id_of",
    "read_content",
    "read_message",
    "session_options",
]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class _Said(_Strict):
    id: str | None = Field(default=None, max_length=100, description="comes back in the reply")


class StreamOptions(_Strict):
    """How a session's stream runs."""

    num_chunks: int | None = Field(default=None, ge=1, description="ends after so many chunks; else endless")
    buffer_s: float = Field(default=5.0, ge=0, le=60, description="seconds that may wait for the viewer")
    chunk_deadline_s: float | None = Field(default=None, gt=0, description="seconds in which a chunk is to be made")
    history_chunks: int = Field(default=0, ge=0, le=64, description="past chunks from which it can be forked")


class Create(_Said):
    """Begin a session; further fields are those of a video's creation."""

    type: Literal["session.create"]
    options: StreamOptions = StreamOptions()
    fields: dict[str, Any] = Field(default_factory=dict)
    image: bytes | None = None


class Attach(_Said):
    """Go on with a session of an earlier connection, after the last message that arrived there."""

    type: Literal["session.attach"]
    session_id: str = Field(max_length=100)
    received: int = Field(default=-1, ge=-1, description="number of the last message that arrived; -1 for none")


class PushText(_Said):
    """A new prompt."""

    type: Literal["session.push_text"]
    text: str
    now: bool = Field(default=False, description="begin the chunk in progress anew with it")


class PushImage(_Said):
    """An image to go on from."""

    type: Literal["session.push_image"]
    image_url: str = Field(description="a data URL")
    now: bool = False


class PushAction(_Said):
    """Actions, one row of numbers a step of the world."""

    type: Literal["session.push_action"]
    values: list[list[float]] = Field(min_length=1, max_length=1024)
    now: bool = False


class Pause(_Said):
    """Begin no chunk."""

    type: Literal["session.pause"]


class Resume(_Said):
    """Go on."""

    type: Literal["session.resume"]


class Fork(_Said):
    """Let another session go on from the beginning of a chunk."""

    type: Literal["session.fork"]
    chunk: int | None = Field(default=None, ge=0, description="a chunk that is kept; else the one in progress")


class Close(_Said):
    """End it."""

    type: Literal["session.close"]
    at: Literal["step", "chunk"] = "step"


class Ack(_Said):
    """Say what has arrived, and how far the viewer is; without that nothing is made beyond the buffer."""

    type: Literal["session.ack"]
    received: int = Field(ge=0, description="number of the last message that arrived")
    viewed_s: float | None = Field(default=None, ge=0, description="where the viewer is; else at the end of it")


Message = Attach | PushText | PushImage | PushAction | Pause | Resume | Fork | Close | Ack

_OTHERS: TypeAdapter[Any] = TypeAdapter(Annotated[Message, Field(discriminator="type")])
_TYPES = (
    "session.create", "session.attach", "session.push_text", "session.push_image", "session.push_action",
    "session.pause", "session.resume", "session.fork", "session.close", "session.ack",
)  # fmt: skip


def read_content(text: str | None) -> dict[str, Any]:
    """Return the fields of a message.

    Args:
        text: What arrived; None for bytes, which no client has to send.

    Raises:
        ApiError: It is no JSON object.
    """
    if text is None:
        raise ApiError(400, "a client's messages are text", code="malformed_body", allowed="an object of fields")
    return parse_json(text.encode("utf-8", "surrogatepass"))


def id_of(content: Mapping[str, Any]) -> str | None:
    """Return what a reply to a message is to say which one it is for, be the rest of it right or wrong."""
    message_id = content.get("id")
    return message_id[:100] if isinstance(message_id, str) else None


def read_message(content: Mapping[str, Any]) -> Create | Message:
    """Return the message that fields are.

    Raises:
        ApiError: There is no such message, or a field is wrong.
    """
    kind = content.get("type")
    if kind not in _TYPES:
        raise ApiError(
            400, f"there is no message {str(kind)[:60]!r}", code="invalid_value", param="type",
            allowed=", ".join(_TYPES),
        )  # fmt: skip
    try:
        return _create(content) if kind == "session.create" else _OTHERS.validate_python(content)
    except ValidationError as error:
        raise _refusal(error) from None


def session_options(options: StreamOptions, *, suspend_after_s: float | None) -> SessionOptions:
    """Return what the engine is told of a stream."""
    return SessionOptions(**options.model_dump(), suspend_after_s=suspend_after_s)


def _create(content: Mapping[str, Any]) -> Create:
    own = {name: content[name] for name in ("type", "id", "options") if name in content}
    return Create(**own, fields={name: value for name, value in content.items() if name not in own})


def _refusal(error: ValidationError) -> ApiError:
    first = error.errors(include_url=False)[0]
    place = [str(part) for part in first["loc"] if not str(part).startswith("session.")]
    name = ".".join(place) or "type"
    got = json.dumps(first["input"], default=str)[:100]
    if first["type"] == "extra_forbidden":
        return ApiError(400, f"there is no field {name[:100]!r} here", code="unknown_parameter", param=name[:100])
    return ApiError(
        400, f"{name}={got} is not allowed: {first['msg']}", code="invalid_value", param=name, allowed=first["msg"]
    )
