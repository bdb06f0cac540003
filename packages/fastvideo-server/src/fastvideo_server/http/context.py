"""Around every request: its id, its limits of size and time, its span, its line in the log, and errors as JSON."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
import uuid
from collections.abc import Mapping
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fastvideo_server.config import ServerConfig
from fastvideo_server.errors import ApiError, api_error
from fastvideo_server.logs import REQUEST_ID
from fastvideo_server.metrics import Metrics
from fastvideo_server.tracing import request_span

__all__ = ["RequestContext"]

_LOG = logging.getLogger(__name__)
_ACCESS = logging.getLogger("fastvideo_server.access")
_ID = re.compile(r"[A-Za-z0-9._-]{1,100}")
_SOCKET = "WEBSOCKET"
_SWITCHED = 101
_SAFE = ("GET", "HEAD", "OPTIONS")
_STARTS = ("http.response.start", "websocket.http.response.start", "websocket.accept")
_QUIET = ("/health/live", "/health/ready", "/metrics")


class RequestContext:
    """ASGI middleware; the outermost but for CORS.

    Args:
        app: What answers.
        config: Limits.
        metrics: Figures.
    """

    def __init__(self, app: ASGIApp, config: ServerConfig, metrics: Metrics) -> None:
        self._app = app
        self._config = config
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        request_id = given if _ID.fullmatch(given) else uuid.uuid4().hex
        token = REQUEST_ID.set(request_id)
        exchange = _Exchange(self._config, receive, send, request_id, is_socket=scope["type"] == "websocket")
        begun_at = time.perf_counter()
        try:
            method = scope.get("method", _SOCKET)
            with request_span(method, scope["path"], headers, request_id) as span:
                await self._answer(scope, method, headers, exchange)
                route = getattr(scope.get("route"), "path", "unmatched")
                span.update_name(f"{method} {route}")
                span.set_attribute("http.response.status_code", exchange.status)
                self._note(scope, method, route, exchange.status, time.perf_counter() - begun_at)
        finally:
            REQUEST_ID.reset(token)

    async def _answer(self, scope: Scope, method: str, headers: Headers, exchange: _Exchange) -> None:
        try:
            _check_origin(method, headers, self._config.cors_origins)
            _check_length(headers, self._config.max_body)
            await self._app(scope, exchange.receive, exchange.send)
        except Exception as error:  # noqa: BLE001 - whatever it is, the client gets an answer
            if not isinstance(error, ApiError):
                _LOG.exception("a request failed")
            if exchange.status == 0:
                await exchange.refuse(api_error(error))

    def _note(self, scope: Scope, method: str, route: str, status: int, seconds: float) -> None:
        self._metrics.http_seconds.labels(method, route, str(status)).observe(seconds)
        if scope["path"] in _QUIET:
            return
        client = scope.get("client") or ("", 0)
        fields = {
            "method": method,
            "path": scope["path"],
            "status": status,
            "duration_ms": round(1000 * seconds, 2),
            "client": client[0],
            "key": scope.get("fastvideo_key"),
        }
        _ACCESS.info("request", extra={"fields": fields})


class _Exchange:
    """One request and its answer, with what they may take.

    Attributes:
        status: Of the answer; 0 while it has not begun.
    """

    def __init__(self, config: ServerConfig, receive: Receive, send: Send, request_id: str, *, is_socket: bool) -> None:
        self.status = 0
        self._config = config
        self._receive = receive
        self._send = send
        self._request_id = request_id
        self._num_bytes = 0
        self._is_read = False
        self._deadline = asyncio.get_running_loop().time() + config.read_timeout_s
        self._is_socket = is_socket

    async def receive(self) -> Message:
        """Return the next part of the body, or that the client has gone.

        Raises:
            ApiError: It is too large, or too slow.
        """
        if self._is_read or self._is_socket:  # the parts of a WebSocket are limited one by one
            return await self._receive()
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError:
            raise ApiError(
                408, "the body did not arrive in time", code="timeout",
                allowed=f"{self._config.read_timeout_s:g} s", headers={"Connection": "close"},
            ) from None  # fmt: skip
        self._num_bytes += len(message.get("body", b""))
        if self._num_bytes > self._config.max_body:
            raise _too_large(self._config.max_body)
        self._is_read = not message.get("more_body", False)
        return message

    async def send(self, message: Message) -> None:
        """Send a part of the answer; how long a reader may take for it is the protocol's to see to."""
        if message["type"] in _STARTS:
            self.status = message.get("status", _SWITCHED)
            headers = MutableHeaders(scope=message)
            headers["X-Request-Id"] = self._request_id
            headers["X-Content-Type-Options"] = "nosniff"
        await self._send(message)

    async def refuse(self, error: ApiError) -> None:
        """Answer with an error."""
        body = json.dumps(error.body()).encode()
        headers = {"content-type": "application/json", "content-length": str(len(body)), **error.headers}
        raw = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]
        kind = "websocket.http.response" if self._is_socket else "http.response"
        await self.send({"type": f"{kind}.start", "status": error.status, "headers": raw})
        await self.send({"type": f"{kind}.body", "body": body})


def _check_length(headers: Mapping[str, str], max_body: int) -> None:
    """Refuse a body that is too large before any of it is read, and one that would grow when it is unpacked."""
    length = headers.get("content-length", "0")
    if length.isdecimal() and int(length[:20]) > max_body:
        raise _too_large(max_body)
    encoding = headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise ApiError(
            415, f"bodies of encoding {encoding[:40]!r} are not read", code="unsupported_encoding",
            param="Content-Encoding", allowed="identity", headers={"Connection": "close"},
        )  # fmt: skip


def _check_origin(method: str, headers: Mapping[str, str], allowed: tuple[str, ...]) -> None:
    """Refuse changes that a page of another host asks a browser for: it would need no permission for a form."""
    origin = headers.get("origin")
    if origin is None or method in _SAFE or origin in allowed or "*" in allowed:
        return
    if urlsplit(origin).netloc != headers.get("host", ""):
        raise ApiError(
            403, "a page of another origin may not ask for this", code="origin_not_allowed", param="Origin",
            allowed=", ".join(allowed) or "the server's own",
        )  # fmt: skip


def _too_large(max_body: int) -> ApiError:
    return ApiError(
        413, "the body is too large", code="body_too_large", allowed=f"{max_body / (1 << 20):g} MiB",
        headers={"Connection": "close"},
    )  # fmt: skip
