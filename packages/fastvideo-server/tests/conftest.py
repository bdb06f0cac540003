"""Servers on loopback around the tiny card, each with a folder of its own."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest
import torch

from fastvideo_core.runtime.engine import RuntimeOptions
from fastvideo_core.runtime.scheduler.base import SchedulerConfig
from fastvideo_server.config import ServerConfig
from fastvideo_server.http.app import create_app
from fastvideo_server.http.parts import Parts
from fastvideo_server.protocol import DrainingServer, uvicorn_config
from fastvideo_server.serve import open_parts
from fastvideo_testing.tiny import tiny_causal_card, write_tiny_checkpoint

OPTIONS = RuntimeOptions(SchedulerConfig(max_running=4), memory_bytes=2 << 30)


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    torch.set_num_threads(1)


@dataclass
class Running:
    """A server that runs on a thread."""

    url: str
    parts: Parts
    server: DrainingServer

    def client(self, key: str | None = None, **options) -> httpx2.Client:
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        return httpx2.Client(base_url=self.url, headers=headers, timeout=30, **options)


@contextmanager
def running_server(card, folder: Path, *, options=OPTIONS, setup=None, **settings):
    """Run a server until the context ends."""
    config = ServerConfig(folder=folder, port=0, **{"min_free": 0, **settings})
    with open_parts(config, card, options=options, setup=setup) as parts:
        started, addresses = threading.Event(), []

        def tell(address):
            addresses.append(address)
            started.set()

        server = DrainingServer(uvicorn_config(create_app(parts), config), parts.service.drain, tell)
        thread = threading.Thread(target=server.run, name="server")
        thread.start()
        try:
            assert started.wait(30)
            yield Running(addresses[0], parts, server)
        finally:
            server.stop()
            thread.join(60)
            assert not thread.is_alive()


@pytest.fixture
def serve(tiny_card, tmp_path):
    """Start servers around the tiny card; by default in one folder."""

    def start(folder: Path | None = None, **settings):
        return running_server(tiny_card, folder or tmp_path / "server", **settings)

    return start


@pytest.fixture(scope="session")
def running():
    """Start servers around any card."""
    return running_server


@pytest.fixture(scope="session")
def causal_card(tmp_path_factory):
    """A card whose streams are coloured noise."""
    folder = tmp_path_factory.mktemp("tiny-causal")
    write_tiny_checkpoint(folder)
    return tiny_causal_card(folder)


@pytest.fixture(scope="module")
def shared(tiny_card, tmp_path_factory):
    """A server that the tests of a module share."""
    with running_server(tiny_card, tmp_path_factory.mktemp("shared")) as running:
        yield running


@pytest.fixture
def client(shared):
    with shared.client() as client:
        yield client
