"""What holds for every test: no network but loopback, no accelerator assumed, the same random choices each time."""

from __future__ import annotations

import ipaddress
import os
import socket
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest

# Set before anything imports the hub's library, which reads them once: what a person has downloaded must not matter.
_HUB_HOME = tempfile.TemporaryDirectory(prefix="fastvideo-hub-")
os.environ["HF_HOME"] = _HUB_HOME.name
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"

hypothesis.settings.register_profile("fastvideo", derandomize=True, deadline=None)
hypothesis.settings.load_profile("fastvideo")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked `gpu` where there is no accelerator."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and not has_accelerator():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="no accelerator"))


def has_accelerator() -> bool:
    """Say whether torch sees a CUDA device."""
    import torch

    return torch.cuda.is_available()


def is_local(address: Any) -> bool:
    """Say whether a socket address stays on this machine."""
    if not isinstance(address, tuple):  # a Unix socket's path
        return True
    host = str(address[0])
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@pytest.fixture(scope="session", autouse=True)
def no_network() -> Iterator[None]:
    """Refuse connections and name look-ups that would leave this machine."""
    connect, getaddrinfo = socket.socket.connect, socket.getaddrinfo

    def guarded_connect(self: socket.socket, address: Any) -> None:
        if not is_local(address):
            raise OSError(f"tests do not use the network: {address!r}")
        connect(self, address)

    def guarded_getaddrinfo(host: Any, *args: Any, **kwargs: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else host
        if name is not None and not is_local((name,)):
            raise socket.gaierror(socket.EAI_NONAME, f"tests do not use the network: {name!r}")
        return getaddrinfo(host, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", guarded_connect)
        patch.setattr(socket, "getaddrinfo", guarded_getaddrinfo)
        yield


def pytest_report_header() -> str:
    """Name the interpreter, so that a log tells which environment was tested."""
    return f"interpreter: {sys.executable}"
