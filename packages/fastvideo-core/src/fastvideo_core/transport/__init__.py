"""Moving tensors between workers: the contract, and the transport within one process."""

from fastvideo_core.transport.base import Channel, Listener, Message, Transport
from fastvideo_core.transport.local import LocalTransport

__all__ = ["Channel", "Listener", "LocalTransport", "Message", "Transport"]
