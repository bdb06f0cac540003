"""The transport within one process: messages are copied from one thread to another."""

from __future__ import annotations

import itertools
import json
import threading
from collections import deque
from collections.abc import Callable

from fastvideo_core.errors import PeerLostError, TransferTimeoutError, TransportError
from fastvideo_core.transport.base import Channel, Listener, Message

__all__ = ["LocalTransport"]

_MAX_WAITING = 64
"""Messages that may wait for their receiver; then their sender waits."""


class LocalTransport:
    """Connects the threads that share this object."""

    def __init__(self) -> None:
        self._listeners: dict[str, _LocalListener] = {}
        self._numbers = itertools.count()

    def listen(self) -> Listener:
        """Begin to listen at a fresh address."""
        address = f"local-{next(self._numbers)}"
        listener = _LocalListener(address, lambda: self._listeners.pop(address, None))
        self._listeners[address] = listener
        return listener

    def connect(self, address: str, *, timeout_s: float) -> Channel:
        """Connect to a listener of this object; it is there or not, so that there is no waiting.

        Raises:
            TransportError: Nobody listens there.
        """
        listener = self._listeners.get(address)
        if listener is None:
            raise TransportError(f"nobody listens at {address!r}; listening: {', '.join(self._listeners) or 'nobody'}")
        here, there = _Pipe(), _Pipe()
        listener.arrived.put(_LocalChannel(here, there))
        return _LocalChannel(there, here)


class _Pipe:
    """One direction of a connection, or a queue of connections."""

    def __init__(self) -> None:
        self._items: deque[object] = deque()
        self._changed = threading.Condition()
        self._is_closed = False

    def put(self, item: object, *, timeout_s: float | None = None) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: self._is_closed or len(self._items) < _MAX_WAITING, timeout_s):
                raise TransferTimeoutError(f"the other end took nothing for {timeout_s} s")
            if self._is_closed:
                raise PeerLostError("the other end is closed")
            self._items.append(item)
            self._changed.notify_all()

    def get(self, *, timeout_s: float) -> object:
        with self._changed:
            if not self._changed.wait_for(lambda: self._is_closed or bool(self._items), timeout_s):
                raise TransferTimeoutError(f"nothing came for {timeout_s} s")
            if not self._items:
                raise PeerLostError("the other end is closed")
            item = self._items.popleft()
            self._changed.notify_all()
            return item

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()


class _LocalChannel:
    def __init__(self, outgoing: _Pipe, incoming: _Pipe) -> None:
        self._outgoing = outgoing
        self._incoming = incoming

    def send(self, message: Message, *, timeout_s: float) -> None:
        header = json.loads(json.dumps(dict(message.header)))
        tensors = {name: tensor.detach().clone() for name, tensor in message.tensors.items()}
        self._outgoing.put(Message(header, tensors), timeout_s=timeout_s)

    def receive(self, *, timeout_s: float) -> Message:
        message = self._incoming.get(timeout_s=timeout_s)
        assert isinstance(message, Message)
        return message

    def close(self) -> None:
        self._outgoing.close()
        self._incoming.close()


class _LocalListener:
    def __init__(self, address: str, on_close: Callable[[], object]) -> None:
        self.arrived = _Pipe()
        self._address = address
        self._on_close = on_close

    @property
    def address(self) -> str:
        return self._address

    def accept(self, *, timeout_s: float) -> Channel:
        channel = self.arrived.get(timeout_s=timeout_s)
        assert isinstance(channel, _LocalChannel)
        return channel

    def close(self) -> None:
        self._on_close()
        self.arrived.close()
