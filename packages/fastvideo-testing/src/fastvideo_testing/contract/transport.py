"""What a transport is held to, one function a promise; each raises `ContractError`, or passes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch

from fastvideo_core.card import resolve_ref
from fastvideo_core.errors import PeerLostError, TransferTimeoutError, TransportError
from fastvideo_core.extend import TransportSpec
from fastvideo_core.transport import Channel, Message, Transport
from fastvideo_testing.contract.base import ContractError

__all__ = [
    "check_both_ways",
    "check_copies",
    "check_dead_peer",
    "check_killed_peer",
    "check_nobody",
    "check_order",
    "check_tensors",
    "check_timeouts",
    "serve_until_killed",
]

_TIMEOUT_S = 10.0
_DTYPES = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.int8,
    torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool, torch.complex64,
)  # fmt: skip
_SHAPES: tuple[tuple[int, ...], ...] = ((), (0,), (1,), (3, 0, 2), (7, 5), (2, 3, 4, 5, 6), (1_000_003,))


def check_tensors(make: Callable[[], Transport]) -> None:
    """Every dtype and size arrives with the same bits, also where it is not contiguous, and with the header."""
    with _connected(make) as (one, other):
        for dtype in _DTYPES:
            tensors = {str(index): _values(shape, dtype) for index, shape in enumerate(_SHAPES)}
            tensors["turned"] = _values((6, 4), dtype).t()
            tensors["part"] = _values((9, 5), dtype)[1::2, 2:]
            header = {"dtype": str(dtype), "nested": {"list": [1, 2.5, None, True, "ü"]}, "empty": {}}
            got = _exchange(one, other, Message(header, tensors))
            if dict(got.header) != header:
                raise ContractError(f"the header arrives as {dict(got.header)!r}; sent: {header!r}")
            for name, sent in tensors.items():
                _compare(sent, got.tensors.get(name), f"{dtype} of shape {tuple(sent.shape)} ({name})")
            if extra := sorted(set(got.tensors) - set(tensors)):
                raise ContractError(f"tensors arrive that were not sent: {', '.join(extra)}")


def check_order(make: Callable[[], Transport]) -> None:
    """Messages arrive in their order, large and small ones mixed, none lost and none twice."""
    sizes = [1 if index % 3 else 40_000 for index in range(60)]
    with _connected(make) as (one, other):
        sender = threading.Thread(target=_send_all, args=(one, sizes))
        sender.start()
        got = [other.receive(timeout_s=_TIMEOUT_S) for _ in sizes]
        sender.join(_TIMEOUT_S)
    indices = [message.header["index"] for message in got]
    if indices != list(range(len(sizes))):
        raise ContractError(f"messages arrive in another order than they were sent: {indices}")
    if any(int(message.tensors["x"][0]) != index for index, message in enumerate(got)):
        raise ContractError("tensors arrive with another message than theirs")


def check_both_ways(make: Callable[[], Transport]) -> None:
    """Both ends send and receive, and connections of one listener are apart."""
    transport = make()
    listener = transport.listen()
    try:
        ends = [_connect(transport, listener) for _ in range(2)]
        for index, (here, there) in enumerate(ends):
            there.send(Message({"from": f"there {index}"}), timeout_s=_TIMEOUT_S)
            here.send(Message({"from": f"here {index}"}), timeout_s=_TIMEOUT_S)
        for index, (here, there) in enumerate(ends):
            got = (here.receive(timeout_s=_TIMEOUT_S).header, there.receive(timeout_s=_TIMEOUT_S).header)
            if got != ({"from": f"there {index}"}, {"from": f"here {index}"}):
                raise ContractError(f"connection {index} of two receives {got}")
        for pair in ends:
            for end in pair:
                end.close()
                end.close()
    finally:
        listener.close()
        listener.close()


def check_copies(make: Callable[[], Transport]) -> None:
    """What was sent may be changed at once, and what was received belongs to its receiver."""
    sent = torch.arange(1000.0)
    with _connected(make) as (one, other):
        one.send(Message({}, {"x": sent}), timeout_s=_TIMEOUT_S)
        sent.zero_()
        got = other.receive(timeout_s=_TIMEOUT_S).tensors["x"]
        if not torch.equal(got, torch.arange(1000.0)):
            raise ContractError("a tensor that is changed after it was sent arrives changed")
        got.add_(1)
        if sent.any():
            raise ContractError("a tensor that was received shares memory with the one that was sent")


def check_timeouts(make: Callable[[], Transport]) -> None:
    """Waiting ends in time, with its own error; what comes later can still be received."""
    transport = make()
    listener = transport.listen()
    try:
        _times_out(lambda: listener.accept(timeout_s=0.2), "accept")
    finally:
        listener.close()
    with _connected(make) as (one, other):
        _times_out(lambda: other.receive(timeout_s=0.2), "receive")
        if dict(_exchange(one, other, Message({"late": True})).header) != {"late": True}:
            raise ContractError("a message that comes after a time-out is lost")


def check_dead_peer(make: Callable[[], Transport]) -> None:
    """What a closed end had sent can be received; then, and at the next send, its end is told."""
    with _connected(make) as (one, other):
        one.send(Message({"last": 1}), timeout_s=_TIMEOUT_S)
        one.close()
        if dict(other.receive(timeout_s=_TIMEOUT_S).header) != {"last": 1}:
            raise ContractError("what a closed end had sent is lost")
        _is_lost(other)


def check_killed_peer(spec: TransportSpec) -> None:
    """A process that is killed is told of to whoever waits for it; only where the transport crosses processes."""
    if not spec.crosses_processes:
        return
    transport = resolve_ref(spec.implementation)()
    listener = transport.listen()
    code = "from fastvideo_testing.contract.transport import serve_until_killed as run; run()"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-c", code, spec.implementation, listener.address]
    peer = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        channel = listener.accept(timeout_s=60.0)
        if channel.receive(timeout_s=_TIMEOUT_S).header.get("pid") != peer.pid:
            raise ContractError("another process than the peer has connected")
        peer.kill()
        _is_lost(channel)
    except TransportError as error:
        raise ContractError(f"another process cannot be talked to: {error}") from error
    finally:
        peer.kill()
        peer.wait()
        listener.close()


def check_nobody(make: Callable[[], Transport]) -> None:
    """Where nobody listens, connecting says so, soon."""
    transport = make()
    listener = transport.listen()
    address = listener.address
    listener.close()
    started_at = time.monotonic()
    try:
        transport.connect(address, timeout_s=1.0)
    except TransportError:
        if time.monotonic() - started_at > 5.0:
            raise ContractError("connecting to nobody takes far longer than its time-out") from None
        return
    raise ContractError("connecting to a closed listener succeeds")


def _send_all(end: Channel, sizes: Sequence[int]) -> None:
    for index, size in enumerate(sizes):
        end.send(Message({"index": index}, {"x": torch.full((size,), index)}), timeout_s=_TIMEOUT_S)


def serve_until_killed() -> None:
    """Connect to an address, say who this is, and wait; run in a process of its own."""
    transport = resolve_ref(sys.argv[1])()
    channel = transport.connect(sys.argv[2], timeout_s=30.0)
    channel.send(Message({"pid": os.getpid()}, {"x": torch.zeros(10)}), timeout_s=30.0)
    while True:
        time.sleep(60.0)


@contextmanager
def _connected(make: Callable[[], Transport]) -> Iterator[tuple[Channel, Channel]]:
    transport = make()
    listener = transport.listen()
    one, other = _connect(transport, listener)
    try:
        yield one, other
    finally:
        for end in (one, other):
            with suppress(TransportError):
                end.close()
        listener.close()


def _connect(transport: Transport, listener: Any) -> tuple[Channel, Channel]:
    accepted: list[Channel] = []
    thread = threading.Thread(target=lambda: accepted.append(listener.accept(timeout_s=_TIMEOUT_S)))
    thread.start()
    here = transport.connect(listener.address, timeout_s=_TIMEOUT_S)
    thread.join(_TIMEOUT_S)
    if not accepted:
        raise ContractError("a connection is not accepted")
    return here, accepted[0]


def _exchange(one: Channel, other: Channel, message: Message) -> Message:
    """Send and receive at once: a large message may need its receiver to be there."""
    failed: list[BaseException] = []

    def send() -> None:
        try:
            one.send(message, timeout_s=_TIMEOUT_S)
        except Exception as error:  # noqa: BLE001 - told below
            failed.append(error)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        return other.receive(timeout_s=_TIMEOUT_S)
    except TransportError as error:
        raise ContractError(f"a message does not arrive: {failed[0] if failed else error}") from error
    finally:
        thread.join(_TIMEOUT_S)


def _times_out(wait: Callable[[], Any], what: str) -> None:
    started_at = time.monotonic()
    try:
        wait()
    except TransferTimeoutError:
        if time.monotonic() - started_at > 5.0:
            raise ContractError(f"{what} waits far longer than its time-out") from None
        return
    except Exception as error:
        raise ContractError(f"{what} ends with {type(error).__name__} at its time-out") from error
    raise ContractError(f"{what} gives something where nothing is")


def _is_lost(channel: Channel) -> None:
    try:
        channel.receive(timeout_s=_TIMEOUT_S)
    except PeerLostError:
        pass
    except Exception as error:
        raise ContractError(f"receive ends with {type(error).__name__} where its peer is gone") from error
    else:
        raise ContractError("receive gives something where its peer is gone")
    deadline = time.monotonic() + _TIMEOUT_S
    while time.monotonic() < deadline:  # a first message may still go into a buffer
        try:
            channel.send(Message({}, {"x": torch.zeros(100_000)}), timeout_s=1.0)
        except PeerLostError:
            return
        except Exception as error:
            raise ContractError(f"send ends with {type(error).__name__} where its peer is gone") from error
    raise ContractError("send goes on where its peer is gone")


def _values(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(len(shape))
    count = 1
    for size in shape:
        count *= size
    if dtype is torch.bool:
        return (torch.rand(shape, generator=generator) > 0.5).reshape(shape)
    width = torch.empty(0, dtype=dtype).element_size()
    raw = torch.randint(0, 256, (count * width,), dtype=torch.uint8, generator=generator)
    return raw.view(dtype).reshape(shape) if count else torch.empty(shape, dtype=dtype)


def _compare(sent: torch.Tensor, got: torch.Tensor | None, what: str) -> None:
    if got is None:
        raise ContractError(f"{what}: does not arrive")
    if (got.dtype, got.shape) != (sent.dtype, sent.shape):
        raise ContractError(f"{what}: arrives as {got.dtype} of shape {tuple(got.shape)}")
    if not torch.equal(_bits(sent), _bits(got)):
        raise ContractError(f"{what}: arrives with other bits")


def _bits(value: torch.Tensor) -> torch.Tensor:
    flat = value.reshape(-1).contiguous()
    return flat if value.dtype is torch.bool else flat.view(torch.uint8)
