"""A whole session taken apart, to be sent or written: its request, its state, what nobody has read, what was pushed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fastvideo_core.card import ModelCard
from fastvideo_core.errors import StateError, describe_failure
from fastvideo_core.loop.chunks import PushAction, PushImage, PushText
from fastvideo_core.loop.work import StreamChunk
from fastvideo_core.runtime.durable.document import read_request, write_request
from fastvideo_core.runtime.prepare import PreparedRequest
from fastvideo_core.runtime.sessions.base import Cut, LoggedPush, SessionOptions
from fastvideo_core.runtime.sessions.parked import ParkedState
from fastvideo_core.runtime.sessions.session import Session
from fastvideo_core.runtime.sessions.side import Beside

__all__ = ["MovedSession", "pack_session", "unpack_session"]

_FORMAT = "fastvideo-moved-session/1"
_OPTIONS = ("num_chunks", "buffer_s", "is_paced", "chunk_deadline_s", "history_chunks", "suspend_after_s")


@dataclass(frozen=True, slots=True)
class MovedSession:
    """A session that is to go on somewhere.

    Attributes:
        prepared: Its request.
        options: How it runs.
        parked: Its state; None where it begins anew.
        pending: Media that have come out and that nobody has read.
        waiting: Pushes that have not been applied.
        log: Pushes that have been.
        is_paused: Whether its caller holds it.
    """

    prepared: PreparedRequest
    options: SessionOptions
    parked: ParkedState | None
    pending: tuple[StreamChunk, ...]
    waiting: tuple[LoggedPush, ...]
    log: tuple[LoggedPush, ...]
    is_paused: bool


def pack_session(session: Session, parked: ParkedState | None, beside: Beside) -> ParkedState:
    """Take a session apart.

    Args:
        session: The session.
        parked: Its state; None for one that is to begin anew.
        beside: What belongs to that state besides.

    Raises:
        StateError: An input of its request is a file that is read later, which would not be there.
    """
    request = write_request(session.prepared)
    if request.files:
        raise StateError(f"session {session.session_id} reads files: {', '.join(map(str, request.files.values()))}")
    tensors = {f"input.{name}": tensor for name, tensor in request.arrays.items()}
    for event in beside.pending:
        tensors[f"media.{event.index}"] = torch.as_tensor(event.data)
    if parked is not None:
        tensors |= {f"state.{name}": tensor for name, tensor in parked.tensors.items()}
    document = {
        "format": _FORMAT,
        "session_id": session.session_id,
        "card": session.prepared.card.model_id,
        "request": request.content,
        "options": {name: getattr(session.options, name) for name in _OPTIONS},
        "state": None if parked is None else dict(parked.document),
        "pending": [(event.stream, event.index, event.start_s, event.end_s) for event in beside.pending],
        "waiting": [_write_push(one, tensors) for one in beside.waiting],
        "log": [_write_push(one, tensors) for one in beside.log],
        "is_paused": session.side.is_paused,
    }
    return ParkedState(document, tensors)


def unpack_session(packed: ParkedState, card: ModelCard) -> MovedSession:
    """Put a session together again, of a card.

    Raises:
        StateError: It is no session, or of another card.
    """
    document, tensors = packed.document, packed.tensors
    try:
        if document["format"] != _FORMAT:
            raise StateError(f"the session is of format {document['format']!r}; this version reads {_FORMAT!r}")
        if document["card"] != card.model_id:
            raise StateError(f"the session is of card {document['card']}; {card.model_id} is loaded here")
        state = document["state"]
        return MovedSession(
            prepared=read_request(document["request"], _part(tensors, "input."), Path(), card),
            options=SessionOptions(**document["options"]),
            parked=None if state is None else ParkedState(state, _part(tensors, "state.")),
            pending=tuple(_chunk(one, tensors) for one in document["pending"]),
            waiting=tuple(_read_push(one, tensors) for one in document["waiting"]),
            log=tuple(_read_push(one, tensors) for one in document["log"]),
            is_paused=bool(document["is_paused"]),
        )
    except (LookupError, TypeError, ValueError) as error:
        raise StateError(f"what has come is no session: {describe_failure(error)}") from error


def _part(tensors: Any, prefix: str) -> dict[str, torch.Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _chunk(described: Sequence[Any], tensors: Any) -> StreamChunk:
    stream, index, start_s, end_s = described
    return StreamChunk(stream, "media", index, tensors[f"media.{index}"], start_s, end_s)


def _write_push(logged: LoggedPush, tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    match logged.push:
        case PushText(text):
            content: dict[str, Any] = {"text": text}
        case PushAction(values):
            content = {"action": values}
        case PushImage(pixels):
            name = f"push.{len(tensors)}"
            tensors[name] = pixels
            content = {"image": name}
        case Cut():
            content = {"cut": True}
    return {"step": logged.step, **content}


def _read_push(content: dict[str, Any], tensors: Any) -> LoggedPush:
    if "text" in content:
        return LoggedPush(content["step"], PushText(content["text"]))
    if "action" in content:
        return LoggedPush(content["step"], PushAction(tuple(tuple(row) for row in content["action"])))
    if "image" in content:
        return LoggedPush(content["step"], PushImage(tensors[content["image"]]))
    return LoggedPush(content["step"], Cut())
