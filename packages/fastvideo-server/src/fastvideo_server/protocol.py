"""uvicorn, with what it lacks: limits for the time that a head and a reader may take, and signals that drain first."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import sys
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from fastvideo_server.config import ServerConfig

__all__ = ["DrainingServer", "TimedProtocol", "TimedWebSocket", "uvicorn_config"]

_TURN_S = 5e-4
_LOG = logging.getLogger(__name__)


class _TimedWriting:
    """Leaves readers who take nothing: what waits for them is dropped, and whoever sends it is told that they went."""

    write_timeout_s = 60.0
    """Seconds for a reader to take a part of what waits for it."""
    transport: asyncio.Transport
    loop: asyncio.AbstractEventLoop
    _write_timer: asyncio.TimerHandle | None = None

    def pause_writing(self) -> None:
        """Begin to wait for the reader."""
        super().pause_writing()  # type: ignore[misc]  # of the protocol that this stands before
        self._write_timer = self.loop.call_later(self.write_timeout_s, self._abort)

    def resume_writing(self) -> None:
        """Wait no more: it reads."""
        self._forget_writer()
        super().resume_writing()  # type: ignore[misc]

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more: it has gone."""
        self._forget_writer()
        super().connection_lost(exc)  # type: ignore[misc]

    def _abort(self) -> None:
        self._write_timer = None
        _LOG.info("a reader took nothing for %g s and was left", self.write_timeout_s)
        self.transport.abort()

    def _forget_writer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None


class TimedProtocol(_TimedWriting, H11Protocol):
    """Closes connections whose request's head does not arrive in time, and whose reader takes nothing."""

    head_timeout_s = 30.0
    """Seconds for a head."""
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for a head."""
        super().connection_made(transport)
        self._watch_head()

    def data_received(self, data: bytes) -> None:
        """Take bytes, and begin or end to wait for a head."""
        super().data_received(data)
        if self._head_timer is not None and self._is_answering:
            self._forget_head()
        elif self._head_timer is None and not self._is_answering and not self._is_upgraded:
            self._watch_head()

    def handle_websocket_upgrade(self, event: Any) -> None:
        """Hand the connection to the WebSocket's protocol, which has times of its own."""
        self._is_upgraded = True
        self._forget_head()
        super().handle_websocket_upgrade(event)

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._forget_head()
        super().connection_lost(exc)

    _is_upgraded = False

    @property
    def _is_answering(self) -> bool:
        cycle: Any = self.cycle  # None until the first request's head is there
        return cycle is not None and not cycle.response_complete

    def _watch_head(self) -> None:
        self._head_timer = self.loop.call_later(self.head_timeout_s, self._close_idle)

    def _forget_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _close_idle(self) -> None:
        self._head_timer = None
        if not self._is_answering:
            self.transport.close()


class TimedWebSocket(_TimedWriting, WebSocketsSansIOProtocol):
    """A WebSocket that is left when its reader takes nothing."""


def uvicorn_config(app: Any, config: ServerConfig) -> uvicorn.Config:
    """Return uvicorn's settings."""
    times = {"head_timeout_s": config.read_timeout_s, "write_timeout_s": config.write_timeout_s}
    return uvicorn.Config(
        app,
        host=config.host,
        port=config.port,
        http=type("Protocol", (TimedProtocol,), times),
        ws=type("WebSocket", (TimedWebSocket,), times),
        ws_max_size=config.max_body,
        ws_ping_interval=config.heartbeat_s,
        ws_ping_timeout=config.write_timeout_s,
        ws_per_message_deflate=False,  # media do not get smaller, and what is packed may be a bomb
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=config.max_connections,
        timeout_graceful_shutdown=5,
        ssl_certfile=config.tls_certificate,
        ssl_keyfile=config.tls_key,
    )


class DrainingServer(uvicorn.Server):
    """Answers on while it drains, and stops then.

    Args:
        config: Settings.
        drain: Lets what runs come to its end.
        on_started: Called with the address once it listens.
    """

    def __init__(
        self, config: uvicorn.Config, drain: Callable[[], Awaitable[None]], on_started: Callable[[str], None]
    ) -> None:
        super().__init__(config)
        self._drain = drain
        self._on_started = on_started
        self._draining: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, sockets: Any = None) -> None:
        """Serve until the end. Meanwhile threads hand over to each other sooner than Python's usual 5 ms.

        A request goes over several of them, and none should wait for another's turn to end.
        """
        before = sys.getswitchinterval()
        sys.setswitchinterval(min(before, _TURN_S))
        gc.freeze()  # models and modules stay: nobody waits while they are looked through again and again
        try:
            super().run(sockets)
        finally:
            sys.setswitchinterval(before)
            gc.unfreeze()

    def stop(self) -> None:
        """Begin to drain; from any thread, and in a signal handler."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._begin_drain)
        else:
            self.should_exit = True

    async def startup(self, sockets: Any = None) -> None:
        """Listen, and tell where."""
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        if self.started:
            host, port = self.servers[0].sockets[0].getsockname()[:2]
            scheme = "https" if self.config.ssl_certfile else "http"
            name = f"[{host}]" if ":" in host else host
            self._on_started(f"{scheme}://{name}:{port}")

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to whoever runs this."""
        yield

    def _begin_drain(self) -> None:
        if self._draining is None:
            self._draining = asyncio.ensure_future(self._drain_and_exit())

    async def _drain_and_exit(self) -> None:
        try:
            await self._drain()
        finally:
            self.should_exit = True
