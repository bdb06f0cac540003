"""The suite passes the transport within a process, and each check catches one that breaks that promise."""

from __future__ import annotations

import time

import pytest
import torch

from fastvideo_core.errors import TransferTimeoutError
from fastvideo_core.extend import TransportSpec
from fastvideo_core.transport import LocalTransport, Message
from fastvideo_testing.contract import ContractError, TransportContract, transport

LOCAL = TransportSpec(
    "local", "fastvideo_core.transport.local:LocalTransport", "within one process", crosses_processes=False
)


class TestLocal(TransportContract):
    @pytest.fixture
    def spec(self):
        return LOCAL


def broken(*, send=None, receive=None, accept=None, connect=None, close=None):
    """Return a local transport with some methods of its ends replaced; each gets the end and its own arguments."""

    class End:
        def __init__(self, inner):
            self.inner = inner

        def send(self, message, *, timeout_s):
            return (send or type(self.inner).send)(self.inner, message, timeout_s=timeout_s)

        def receive(self, *, timeout_s):
            return (receive or type(self.inner).receive)(self.inner, timeout_s=timeout_s)

        def close(self):
            return (close or type(self.inner).close)(self.inner)

    class Listener:
        def __init__(self, inner):
            self.inner = inner
            self.address = inner.address

        def accept(self, *, timeout_s):
            return End((accept or type(self.inner).accept)(self.inner, timeout_s=timeout_s))

        def close(self):
            self.inner.close()

    class Broken(LocalTransport):
        def listen(self):
            return Listener(super().listen())

        def connect(self, address, *, timeout_s):
            if connect is not None:
                return connect(self, address)
            return End(super().connect(address, timeout_s=timeout_s))

    return Broken


def plain_send(end, message, *, timeout_s):
    type(end).send(end, message, timeout_s=timeout_s)


def as_float(end, message, *, timeout_s):
    tensors = {name: one.float() if one.is_floating_point() else one for name, one in message.tensors.items()}
    plain_send(end, Message(message.header, tensors), timeout_s=timeout_s)


def flipped(end, message, *, timeout_s):
    tensors = {name: one.clone().fill_(0) if one.numel() == 1_000_003 else one for name, one in message.tensors.items()}
    plain_send(end, Message(message.header, tensors), timeout_s=timeout_s)


def without_empty(end, message, *, timeout_s):
    plain_send(
        end, Message(message.header, {n: t for n, t in message.tensors.items() if t.numel()}), timeout_s=timeout_s
    )


def without_header(end, message, *, timeout_s):
    plain_send(end, Message({}, message.tensors), timeout_s=timeout_s)


@pytest.mark.parametrize(
    ("send", "why"),
    [
        (as_float, "arrives as torch.float32"),
        (flipped, r"torch.float32 of shape \(1000003,\) .*: arrives with other bits"),
        (without_empty, r"of shape \(0,\) .*: does not arrive"),
        (without_header, "the header arrives as {}"),
    ],
)
def test_tensors_that_change_on_the_way_are_caught(send, why):
    with pytest.raises(ContractError, match=why):
        transport.check_tensors(broken(send=send))


def test_messages_out_of_order_are_caught():
    held = []

    def send(end, message, *, timeout_s):
        held.append(message)
        if len(held) == 2:
            for one in reversed(held):
                plain_send(end, one, timeout_s=timeout_s)
            held.clear()

    with pytest.raises(ContractError, match="in another order"):
        transport.check_order(broken(send=send))


def test_shared_memory_is_caught():
    def send(end, message, *, timeout_s):
        end._outgoing.put(message, timeout_s=timeout_s)

    with pytest.raises(ContractError, match="arrives changed"):
        transport.check_copies(broken(send=send))


def test_connections_that_mix_are_caught():
    first = {}

    def receive(end, *, timeout_s):
        chosen = first.setdefault("end", end)
        return type(chosen).receive(chosen, timeout_s=0.2)

    with pytest.raises((ContractError, TransferTimeoutError)):
        transport.check_both_ways(broken(receive=receive))


def raising(error):
    def method(end, **_):
        raise error

    return method


def dawdling(end, *, timeout_s):
    time.sleep(5.2)
    raise TransferTimeoutError("at last")


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"accept": raising(OSError("no"))}, "accept ends with OSError at its time-out"),
        ({"receive": raising(ValueError("no"))}, "receive ends with ValueError at its time-out"),
        ({"receive": lambda end, *, timeout_s: Message()}, "receive gives something where nothing is"),
        pytest.param({"accept": dawdling}, "accept waits far longer than its time-out", marks=pytest.mark.slow),
    ],
)
def test_waiting_that_does_not_end_as_it_should_is_caught(fields, why, monkeypatch):
    if "receive" in fields:
        monkeypatch.setattr(transport, "_TIMEOUT_S", 0.5)
    with pytest.raises(ContractError, match=why):
        transport.check_timeouts(broken(**fields))


def test_a_death_that_nobody_tells_is_caught(monkeypatch):
    monkeypatch.setattr(transport, "_TIMEOUT_S", 0.3)
    with pytest.raises(ContractError, match="receive ends with TransferTimeoutError where its peer is gone"):
        transport.check_dead_peer(broken(close=lambda end: None))


def test_a_peer_that_cannot_be_another_process_is_caught(monkeypatch):
    claims = TransportSpec("local", LOCAL.implementation, crosses_processes=True)
    listener = LocalTransport().listen()
    monkeypatch.setattr(
        type(listener), "accept", lambda self, *, timeout_s: (_ for _ in ()).throw(TransferTimeoutError("nobody came"))
    )
    with pytest.raises(ContractError, match="another process cannot be talked to: nobody came"):
        transport.check_killed_peer(claims)


def test_connecting_to_nobody_is_caught():
    with pytest.raises(ContractError, match="connecting to a closed listener succeeds"):
        transport.check_nobody(broken(connect=lambda self, address: torch.zeros(1)))
