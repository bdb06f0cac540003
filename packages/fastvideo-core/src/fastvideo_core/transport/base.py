"""The contract of transports: two ends, messages in order, and an end that is noticed.

A transport object is made once in each process. One side listens and gives its address to the other in whatever way,
which connects; from then on both ends of the channel are alike. Methods may be called from any thread, those of one end
of a channel from one at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch

__all__ = ["Channel", "Listener", "Message", "Transport"]


@dataclass(frozen=True, slots=True)
class Message:
    """What is sent at once.

    Attributes:
        header: Plain data, as JSON can hold it.
        tensors: Tensors by name; any dtype and size, in any order in memory. They come to the other end with the same
            bits, dtype and shape, in memory of their own.
    """

    header: Mapping[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, torch.Tensor] = field(default_factory=dict)


class Channel(Protocol):
    """One end of a connection."""

    def send(self, message: Message, *, timeout_s: float) -> None:
        """Send a message; once this returns, its tensors may be changed.

        Raises:
            TransferTimeoutError: The other end does not take it in time; the channel is of no use then.
            PeerLostError: The other end is closed or dead.
        """
        ...

    def receive(self, *, timeout_s: float) -> Message:
        """Return the next message, in the order in which they were sent.

        Raises:
            TransferTimeoutError: None comes in time; one may come later.
            PeerLostError: The other end is closed or dead, and nothing that it had sent is left.
        """
        ...

    def close(self) -> None:
        """End the connection; what was sent can still be received. Again, it does nothing."""
        ...


class Listener(Protocol):
    """Waits for others to connect."""

    @property
    def address(self) -> str:
        """Where to connect to."""
        ...

    def accept(self, *, timeout_s: float) -> Channel:
        """Return this side's end of the next connection.

        Raises:
            TransferTimeoutError: Nobody connects in time.
        """
        ...

    def close(self) -> None:
        """Listen no more; connections stay. Again, it does nothing."""
        ...


class Transport(Protocol):
    """A way to move messages; named by `TransportSpec.implementation` and made without arguments."""

    def listen(self) -> Listener:
        """Begin to listen at a fresh address."""
        ...

    def connect(self, address: str, *, timeout_s: float) -> Channel:
        """Connect to a listener.

        Raises:
            TransportError: Nobody listens there.
        """
        ...
