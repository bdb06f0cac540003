"""The transport between processes of one machine: small things over a socket, tensors through shared memory.

A connection has two directions, each with a socket of its own and a ring. Sockets and memory have no names either; the
one that has a name is the listener's, in a folder that only its owner can enter. Ends of a killed process are closed by
the system, which is how the other side hears of it.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from fastvideo_core.errors import PeerLostError, TransferTimeoutError, TransportError
from fastvideo_core.loop.state import host_tensor
from fastvideo_core.transport import Channel, Listener, Message
from fastvideo_transports.ring import RingReader, RingWriter, make_memory

__all__ = ["SharedMemoryTransport"]

_HANDSHAKE_S = 10.0
_MAX_HEADER_BYTES = 256 << 20
_HELLO = b"fastvideo-shm/1"


class SharedMemoryTransport:
    """Connects processes of one machine."""

    def listen(self) -> Listener:
        """Begin to listen at a fresh address: the path of a socket."""
        return _Listener()

    def connect(self, address: str, *, timeout_s: float) -> Channel:
        """Connect to a listener of this machine.

        Raises:
            TransportError: Nobody listens there.
        """
        deadline = time.monotonic() + timeout_s
        pairs = [socket.socketpair() for _ in range(2)]
        memories = [make_memory() for _ in range(2)]
        theirs = [pair[1] for pair in pairs]
        try:
            with socket.socket(socket.AF_UNIX) as door:
                door.settimeout(max(0.001, deadline - time.monotonic()))
                door.connect(address)
                descriptors = [theirs[0].fileno(), theirs[1].fileno(), *memories]
                socket.send_fds(door, [_HELLO], descriptors)
                if door.recv(1) != b"\1":
                    raise TransportError(f"whoever listens at {address!r} takes no more connections")
        except OSError as error:
            _close_all([*(pair[0] for pair in pairs)], memories)
            raise TransportError(f"nobody listens at {address!r}: {error.strerror or error}") from error
        finally:
            for end in theirs:
                end.close()
        return _Channel(pairs[0][0], RingWriter(memories[0], pairs[0][0]), pairs[1][0],
                        RingReader(memories[1], pairs[1][0]))  # fmt: skip


class _Listener:
    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="fastvideo-"))
        self._path = str(self._folder / "door")
        self._door = socket.socket(socket.AF_UNIX)
        self._door.bind(self._path)
        self._door.listen(64)

    @property
    def address(self) -> str:
        return self._path

    def accept(self, *, timeout_s: float) -> Channel:
        try:
            self._door.settimeout(timeout_s)
            visitor, _ = self._door.accept()
        except TimeoutError as error:
            raise TransferTimeoutError(f"nobody has connected for {timeout_s} s") from error
        except OSError as error:
            raise TransportError(f"the listener is closed: {error.strerror or error}") from error
        with visitor:
            visitor.settimeout(_HANDSHAKE_S)
            try:
                hello, descriptors, _, _ = socket.recv_fds(visitor, len(_HELLO), 4)
                if hello != _HELLO or len(descriptors) != 4:
                    _close_all([], list(descriptors))
                    raise TransportError("whoever has connected speaks something else")
                visitor.sendall(b"\1")
            except OSError as error:
                raise TransportError(f"whoever has connected went away: {error}") from error
        incoming, outgoing = (socket.socket(fileno=number) for number in descriptors[:2])
        return _Channel(outgoing, RingWriter(descriptors[3], outgoing), incoming,
                        RingReader(descriptors[2], incoming))  # fmt: skip

    def close(self) -> None:
        self._door.close()
        shutil.rmtree(self._folder, ignore_errors=True)


class _Channel:
    """One end: a direction out and a direction in."""

    def __init__(
        self, outgoing: socket.socket, writer: RingWriter, incoming: socket.socket, reader: RingReader
    ) -> None:
        self._outgoing = outgoing
        self._writer = writer
        self._incoming = incoming
        self._reader = reader

    def send(self, message: Message, *, timeout_s: float) -> None:
        tensors = {name: host_tensor(tensor).contiguous() for name, tensor in message.tensors.items()}
        text = json.dumps({"header": dict(message.header), "tensors": _describe(tensors)}).encode()
        clock = _Clock(timeout_s)
        try:
            clock.apply(self._outgoing)
            self._outgoing.sendall(len(text).to_bytes(8, "little") + text)
            for tensor in tensors.values():
                self._writer.write(_bytes_of(tensor), clock.receive)
            self._writer.flush()
        except TimeoutError as error:
            self.close()  # half a message is no message
            raise TransferTimeoutError(f"the other end took nothing for {timeout_s} s") from error
        except OSError as error:
            self.close()
            raise PeerLostError(f"the other end is closed or dead: {error.strerror or error}") from error

    def receive(self, *, timeout_s: float) -> Message:
        clock = _Clock(timeout_s)
        has_begun = False
        try:
            size = int.from_bytes(clock.receive(self._incoming, 8), "little")
            has_begun = True
            if size > _MAX_HEADER_BYTES:
                raise TransportError(f"a message of {size} bytes of JSON; allowed: {_MAX_HEADER_BYTES}")
            content = json.loads(clock.receive(self._incoming, size))
            tensors = {name: self._tensor(dtype, shape, clock) for name, (dtype, shape) in content["tensors"].items()}
        except TimeoutError as error:
            if has_begun:
                self.close()
            raise TransferTimeoutError(f"nothing came for {timeout_s} s") from error
        except OSError as error:
            self.close()
            raise PeerLostError(f"the other end is closed or dead: {error.strerror or error}") from error
        return Message(content["header"], tensors)

    def close(self) -> None:
        for end in (self._outgoing, self._incoming):
            end.close()

    def _tensor(self, dtype_name: str, shape: list[int], clock: _Clock) -> torch.Tensor:
        dtype = getattr(torch, dtype_name, None)
        if not isinstance(dtype, torch.dtype):
            raise TransportError(f"a tensor of {dtype_name!r} has come, which torch does not have here")
        tensor = torch.empty(shape, dtype=dtype)
        self._reader.read_into(_bytes_of(tensor), clock.receive)
        return tensor


class _Clock:
    """The time that is left of one call.

    Args:
        timeout_s: Seconds of the call.
    """

    def __init__(self, timeout_s: float) -> None:
        self._deadline = time.monotonic() + timeout_s

    def apply(self, end: socket.socket) -> None:
        """Let a socket wait no longer than that."""
        end.settimeout(max(1e-3, self._deadline - time.monotonic()))

    def receive(self, end: socket.socket, size: int) -> bytes:
        """Return so many bytes.

        Raises:
            TimeoutError: They do not come in time.
            ConnectionResetError: The other end is closed.
        """
        parts = []
        while size:
            self.apply(end)
            part = end.recv(min(size, 1 << 20))
            if not part:
                raise ConnectionResetError("it has sent nothing more")
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


def _describe(tensors: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    return {name: (str(tensor.dtype).removeprefix("torch."), list(tensor.shape)) for name, tensor in tensors.items()}


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)


def _close_all(ends: list[socket.socket], descriptors: list[int]) -> None:
    for end in ends:
        end.close()
    for descriptor in descriptors:
        os.close(descriptor)
