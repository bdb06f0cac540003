"""Who listens at `/ws`: each client has an outbox, and one that takes nothing out of it is let go."""

from __future__ import annotations

import asyncio
import io
import struct
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from PIL import Image

__all__ = ["Hub", "Listener", "preview_message"]

_MAX_WAITING = 2000
_PREVIEW_IMAGE, _JPEG = 1, 1
_MAX_EDGE = 512

Message = dict[str, Any] | bytes
"""A message of JSON, or the bytes of a preview."""


@dataclass(slots=True, eq=False)
class Listener:
    """A connection.

    Attributes:
        owner: Whose it is.
        client_id: The client's name for itself.
        outbox: What waits to be sent; None ends the connection.
    """

    owner: str
    client_id: str
    outbox: asyncio.Queue[Message | None] = field(default_factory=lambda: asyncio.Queue(_MAX_WAITING))

    def put(self, message: Message | None) -> bool:
        """Let a message wait to be sent; say whether there was room."""
        try:
            self.outbox.put_nowait(message)
        except asyncio.QueueFull:
            return False
        return True

    def end(self) -> None:
        """End the connection, whatever waits."""
        while not self.put(None):
            self.outbox.get_nowait()


class Hub:
    """The listeners; used on the event loop alone."""

    def __init__(self) -> None:
        self._listeners: dict[tuple[str, str], Listener] = {}

    def join(self, owner: str, client_id: str) -> Listener:
        """Return a new listener; an earlier one of the same client is let go."""
        self._let_go(owner, client_id)
        listener = Listener(owner, client_id)
        self._listeners[owner, client_id] = listener
        return listener

    def leave(self, listener: Listener) -> None:
        """Forget a listener."""
        key = (listener.owner, listener.client_id)
        if self._listeners.get(key) is listener:
            del self._listeners[key]

    def has(self, owner: str, client_id: str | None) -> bool:
        """Whether a client listens."""
        return client_id is not None and (owner, client_id) in self._listeners

    def tell(self, owner: str, client_id: str | None, kind: str, data: dict[str, Any]) -> None:
        """Send something to one client, if it listens."""
        if client_id is not None:
            self._send(owner, client_id, {"type": kind, "data": data})

    def tell_bytes(self, owner: str, client_id: str | None, data: bytes) -> None:
        """Send bytes to one client, if it listens."""
        if client_id is not None:
            self._send(owner, client_id, data)

    def tell_all(self, owner: str, kind: str, data: dict[str, Any]) -> None:
        """Send something to all clients of an owner."""
        for _, client_id in [key for key in self._listeners if key[0] == owner]:
            self._send(owner, client_id, {"type": kind, "data": data})

    def close(self) -> None:
        """End all connections."""
        for listener in self._listeners.values():
            listener.end()
        self._listeners.clear()

    def _send(self, owner: str, client_id: str, message: Message) -> None:
        listener = self._listeners.get((owner, client_id))
        if listener is not None and not listener.put(message):
            self._let_go(owner, client_id)

    def _let_go(self, owner: str, client_id: str) -> None:
        listener = self._listeners.pop((owner, client_id), None)
        if listener is not None:
            listener.end()


def preview_message(frames_THWC: Any) -> bytes:
    """Return the first frame as ComfyUI sends previews: two big-endian numbers, kind and format, then a JPEG."""
    image = Image.fromarray(np.asarray(frames_THWC)[0])
    image.thumbnail((_MAX_EDGE, _MAX_EDGE))
    buffer = io.BytesIO()
    image.save(buffer, format="JPEG", quality=80)
    return struct.pack(">II", _PREVIEW_IMAGE, _JPEG) + buffer.getvalue()
