from __future__ import annotations

import threading

import pytest
import torch

from fastvideo_core.errors import TransferTimeoutError, TransportError
from fastvideo_core.transport import LocalTransport, Message


def connected():
    transport = LocalTransport()
    listener = transport.listen()
    here = transport.connect(listener.address, timeout_s=1.0)
    return here, listener.accept(timeout_s=1.0)


def test_only_the_same_object_is_connected():
    one, other = LocalTransport(), LocalTransport()
    listener = one.listen()
    with pytest.raises(TransportError, match="nobody listens at 'local-0'; listening: nobody"):
        other.connect(listener.address, timeout_s=1.0)


def test_a_sender_waits_for_a_slow_receiver_and_no_longer_than_it_may():
    here, there = connected()
    for index in range(64):
        here.send(Message({"index": index}), timeout_s=1.0)
    with pytest.raises(TransferTimeoutError, match="took nothing for 0.1 s"):
        here.send(Message(), timeout_s=0.1)
    sender = threading.Thread(target=lambda: here.send(Message({"index": 64}), timeout_s=5.0))
    sender.start()
    got = [there.receive(timeout_s=1.0).header["index"] for _ in range(65)]
    sender.join()
    assert got == list(range(65))


def test_a_header_is_plain_data():
    here, _ = connected()
    with pytest.raises(TypeError):
        here.send(Message({"tensor": torch.zeros(1)}), timeout_s=1.0)
