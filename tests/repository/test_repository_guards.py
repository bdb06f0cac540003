"""The shared test set-up: no network but loopback, and a hub folder of its own."""

from __future__ import annotations

import os
import socket
import tempfile

import pytest


def test_a_connection_that_leaves_the_machine_is_refused():
    with socket.socket() as client, pytest.raises(OSError, match="do not use the network"):
        client.connect(("192.0.2.1", 80))  # a documentation address, RFC 5737


def test_a_name_look_up_is_refused():
    with pytest.raises(socket.gaierror, match="do not use the network"):
        socket.getaddrinfo("host.example", 443)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_loopback_works(host):
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection((host, server.getsockname()[1]), timeout=5) as client,
    ):
        assert client.getpeername()[0] == "127.0.0.1"


def test_the_hub_folder_is_temporary():
    assert os.environ["HF_HOME"].startswith(tempfile.gettempdir())
