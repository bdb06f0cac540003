from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch

from fastvideo_core.errors import TransportError
from fastvideo_core.transport import Message
from fastvideo_testing.contract import TransportContract
from fastvideo_transports.plugin import transports, why_not
from fastvideo_transports.ring import NUM_SLOTS, SLOT_BYTES
from fastvideo_transports.shm import SharedMemoryTransport


class TestSharedMemory(TransportContract):
    @pytest.fixture
    def spec(self):
        (spec,) = transports()
        return spec


def test_a_message_larger_than_the_ring_arrives_whole():
    if why_not() is not None:
        pytest.skip(why_not())
    transport = SharedMemoryTransport()
    listener = transport.listen()
    accepted = []
    thread = threading.Thread(target=lambda: accepted.append(listener.accept(timeout_s=30)))
    thread.start()
    sender = transport.connect(listener.address, timeout_s=30)
    thread.join()
    (receiver,) = accepted
    sent = {"large": torch.arange((NUM_SLOTS + 2) * SLOT_BYTES // 8 + 3), "small": torch.ones(3)}
    sending = threading.Thread(target=lambda: sender.send(Message({"n": 1}, sent), timeout_s=60))
    sending.start()
    got = receiver.receive(timeout_s=60)
    sending.join()
    assert all(torch.equal(got.tensors[name], sent[name]) for name in sent)
    for end in (sender, receiver, listener):
        end.close()


def num_open():
    return len(list(Path("/proc/self/fd").iterdir()))


def test_nothing_is_left_open():
    if why_not() is not None:
        pytest.skip(why_not())
    transport = SharedMemoryTransport()

    def round_trip():
        listener = transport.listen()
        accepted = []
        thread = threading.Thread(target=lambda: accepted.append(listener.accept(timeout_s=30)))
        thread.start()
        sender = transport.connect(listener.address, timeout_s=30)
        thread.join()
        for end in (sender, *accepted, listener):
            end.close()
        assert not Path(listener.address).parent.exists()

    round_trip()
    before = num_open()
    for _ in range(5):
        round_trip()
        with pytest.raises(TransportError, match="nobody listens"):
            transport.connect("/nowhere/at-all", timeout_s=1)
    assert num_open() == before
