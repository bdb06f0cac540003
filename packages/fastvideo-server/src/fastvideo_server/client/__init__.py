"""A client for a server, in two forms with one set of names: `Client` blocks, `AsyncClient` is awaited."""

from __future__ import annotations

from fastvideo_server.client.asynchronous import AsyncClient
from fastvideo_server.client.base import ServerError
from fastvideo_server.client.synchronous import Client

__all__ = ["AsyncClient", "Client", "ServerError"]
