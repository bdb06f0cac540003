"""`/v1/sessions`: streams over a WebSocket, steered while they play.

A client's first message begins a session, or goes on with one of an earlier connection. From then on the server sends
what happens as numbered JSON messages, each followed by the bytes that it describes if it says that there are some,
and the client says up to which number they have arrived.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from contextlib import suppress
from typing import Any

from fastapi import APIRouter, WebSocket
from starlette.responses import JSONResponse
from starlette.websockets import WebSocketDisconnect, WebSocketState

from fastvideo_core.errors import FastVideoError
from fastvideo_core.request.media.images import load_image
from fastvideo_server.errors import ApiError, api_error
from fastvideo_server.http.bodies import image_from_url, image_of
from fastvideo_server.http.parts import Parts, identify
from fastvideo_server.jobs.quotas import Caller
from fastvideo_server.sessions.live import Attachment, LiveSession
from fastvideo_server.sessions.messages import (
    Ack,
    Attach,
    Close,
    Create,
    Fork,
    Message,
    Pause,
    PushAction,
    PushImage,
    PushText,
    Resume,
    id_of,
    read_content,
    read_message,
)

__all__ = ["router"]

router = APIRouter()

PROTOCOL = "fastvideo"
"""The WebSocket subprotocol."""
KEY_PREFIX = "fastvideo.key."
"""Offered by pages as a further subprotocol, with the key in base64url: a browser sets no headers."""

_POLICY = 1008
_TAKEN = 4001
"""Close code where another connection has taken the place of this one."""


@router.websocket("/v1/sessions")
async def sessions(socket: WebSocket) -> None:
    """Carry a session."""
    parts = socket.app.state.parts
    assert isinstance(parts, Parts)
    try:
        caller = identify(socket, parts.keys, _authorization(socket))
    except ApiError as error:
        await socket.send_denial_response(JSONResponse(error.body(), error.status, error.headers))
        return
    offered = socket.scope.get("subprotocols", [])
    await socket.accept(subprotocol=PROTOCOL if PROTOCOL in offered else None)
    with suppress(WebSocketDisconnect):  # the client has gone, which is its right
        await _Connection(socket, parts, caller).run()


class _Connection:
    """One connection, from its first message to its end."""

    def __init__(self, socket: WebSocket, parts: Parts, caller: Caller) -> None:
        self._socket = socket
        self._parts = parts
        self._caller = caller
        self._sending = asyncio.Lock()  # nothing comes between a description and its bytes

    async def run(self) -> None:
        """Find out what is wanted, and carry it until one of both sides leaves."""
        begun = await self._begin()
        if begun is None:
            return
        live, attachment, after = begun
        sending = asyncio.ensure_future(self._send(live, after))
        hearing = asyncio.ensure_future(self._hear(live))
        leaving = asyncio.ensure_future(attachment.taken.wait())
        try:
            await asyncio.wait({sending, hearing, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if attachment.taken.is_set():
                await self._socket.close(_TAKEN, "another connection goes on with this session")
            elif sending.done() and not hearing.done() and sending.exception() is None:
                await self._finish(hearing)
        finally:
            for task in (sending, hearing, leaving):
                task.cancel()
            ends = await asyncio.gather(sending, hearing, leaving, return_exceptions=True)
            self._parts.sessions.leave(live, attachment)
        for end in ends:
            if isinstance(end, Exception) and not isinstance(end, WebSocketDisconnect):
                raise end

    async def _begin(self) -> tuple[LiveSession, Attachment, int] | None:
        """Take the first message; without a valid one the connection ends."""
        service = self._parts.sessions
        message_id: str | None = None
        try:
            async with asyncio.timeout(self._parts.config.read_timeout_s):
                content = read_content(await self._receive())
            message_id = id_of(content)
            message = read_message(content)
            if isinstance(message, Create):
                live = await service.create(_with_image(message), self._caller)
                attachment, after = service.take(live), -1
            elif isinstance(message, Attach):
                (live, attachment), after = service.attach(message, self._caller), message.received
            else:
                raise ApiError(
                    400, f"{message.type} has no session yet", code="invalid_value", param="type",
                    allowed="session.create, session.attach",
                )  # fmt: skip
        except TimeoutError:
            await self._socket.close(_POLICY, "the first message did not arrive in time")
            return None
        except ApiError as error:
            await self._refuse(error, message_id)
            await self._socket.close(_POLICY, error.code)
            return None
        await self._reply(message_id, session_id=live.session_id, newest=live.newest, reconnect_s=self._reconnect_s)
        return live, attachment, after

    async def _send(self, live: LiveSession, after: int) -> None:
        async for number, segment in live.follow(after):
            async with self._sending:
                await self._socket.send_text(segment.message(number))
                if segment.data is not None:
                    await self._socket.send_bytes(segment.data)

    async def _hear(self, live: LiveSession) -> None:
        while True:
            message_id: str | None = None
            try:
                content = read_content(await self._receive())
                message_id = id_of(content)
                message = read_message(content)
                if not isinstance(message, Ack) and live.is_repeated(message_id):
                    await self._reply(message_id, is_repeated=True)
                    continue
                told = await self._do(live, message)
                live.took(message_id)
                if not isinstance(message, Ack) or message_id is not None:
                    await self._reply(message_id, **told)
            except FastVideoError as error:
                await self._refuse(api_error(error), message_id)

    async def _finish(self, hearing: asyncio.Future[None]) -> None:
        """End a connection whose session has: its client may still say what has arrived, and closes it then."""
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(hearing), min(1.0, self._parts.config.read_timeout_s))
        if self._socket.client_state is WebSocketState.CONNECTED:
            await self._socket.close()

    async def _do(self, live: LiveSession, message: Create | Message) -> dict[str, Any]:
        """Do what a message asks for, and return what the reply says besides."""
        session = live.session
        match message:
            case Ack():
                live.arrived(message.received, message.viewed_s)
            case PushText():
                await session.push_text(message.text, now=message.now)
            case PushImage():
                await session.push_image(await self._pixels(message), now=message.now)
            case PushAction():
                await session.push_action(message.values, now=message.now)
            case Pause():
                await session.pause()
            case Resume():
                await session.resume()
            case Close():
                await session.close(at=message.at)
            case Fork():
                child = await self._parts.sessions.fork(live, message)
                return {"session_id": child.session_id, "reconnect_s": self._reconnect_s}
            case Create() | Attach():
                raise ApiError(
                    409, "this connection has a session", code="invalid_state", param="type",
                    allowed="a connection of its own",
                )  # fmt: skip
        return {}

    async def _pixels(self, message: PushImage) -> Any:
        data, limit = image_from_url(message.image_url), self._parts.config.max_image_pixels
        return await asyncio.to_thread(load_image, data, field="image_url", max_pixels=limit)

    @property
    def _reconnect_s(self) -> float:
        return self._parts.config.session_reconnect_s

    async def _receive(self) -> str | None:
        message = await self._socket.receive()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code", 1005))
        text: str | None = message.get("text")
        return text

    async def _reply(self, message_id: str | None, **fields: Any) -> None:
        async with self._sending:
            await self._socket.send_json({"type": "reply", "id": message_id, **fields})

    async def _refuse(self, error: ApiError, message_id: str | None) -> None:
        async with self._sending:
            await self._socket.send_json({"type": "error", "id": message_id, "status": error.status, **error.body()})


def _authorization(socket: WebSocket) -> str | None:
    """Return the `Authorization` header, or what a page gives in its place."""
    for name in socket.scope.get("subprotocols", []):
        if name.startswith(KEY_PREFIX):
            coded = name.removeprefix(KEY_PREFIX)
            with suppress(binascii.Error, ValueError):
                key = base64.urlsafe_b64decode(coded + "=" * (-len(coded) % 4)).decode()
                return f"Bearer {key}"
    return socket.headers.get("authorization")


def _with_image(message: Create) -> Create:
    """Return a message with its image's bytes in place of the data URL."""
    fields = dict(message.fields)
    image = image_of(fields.pop("input_reference", None))
    return message.model_copy(update={"fields": fields, "image": image})
