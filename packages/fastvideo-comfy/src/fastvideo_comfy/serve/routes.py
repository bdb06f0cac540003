"""ComfyUI's routes, each also below `/api`, as its front end asks for them."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from starlette.datastructures import FormData, UploadFile
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from fastvideo_comfy.serve.accepting import RefusedPromptError, accept_prompt, read_object
from fastvideo_comfy.serve.desk import Desk
from fastvideo_comfy.serve.files import media_type, preview_of
from fastvideo_comfy.serve.hub import Listener
from fastvideo_comfy.serve.object_info import ObjectInfo
from fastvideo_comfy.serve.user_routes import UserRoutes
from fastvideo_core.errors import InputError
from fastvideo_core.runtime.serving import ServerHost

__all__ = ["make_routes"]

_MAX_ID = 200
_PREFIXES = ("", "/api")
_FEATURES = {"supports_preview_metadata": False, "max_upload_size": 0}


class _Routes:
    """The answers."""

    def __init__(self, host: ServerHost, desk: Desk, info: ObjectInfo) -> None:
        self._host = host
        self._desk = desk
        self._info = info

    async def prompt(self, request: Request) -> Response:
        """Take a prompt in, or tell how many have not ended."""
        owner = self._host.identify(request)
        if request.method == "GET":
            return JSONResponse({"exec_info": {"queue_remaining": self._desk.remaining(owner)}})
        return JSONResponse(await accept_prompt(self._desk, await request.body(), owner))

    async def queue(self, request: Request) -> Response:
        """List what runs and waits, or take out what waits."""
        owner = self._host.identify(request)
        if request.method == "GET":
            return JSONResponse(self._desk.queue(owner))
        asked = read_object(await request.body())
        if asked.get("clear") is True:
            self._desk.drop(owner)
        self._desk.drop(owner, _ids(asked.get("delete")))
        return Response()

    async def history(self, request: Request) -> Response:
        """List what has ended, or forget it."""
        owner = self._host.identify(request)
        if request.method == "GET":
            limit, offset = _number(request, "max_items"), _number(request, "offset")
            return JSONResponse(self._desk.history(owner, max_items=limit, offset=-1 if offset is None else offset))
        asked = read_object(await request.body())
        if asked.get("clear") is True:
            self._desk.forget(owner)
        self._desk.forget(owner, _ids(asked.get("delete")))
        return Response()

    async def history_of(self, request: Request) -> Response:
        """Tell of one prompt that has ended; of one that has not, nothing."""
        owner = self._host.identify(request)
        return JSONResponse(self._desk.remembered(owner, request.path_params["prompt_id"]))

    async def interrupt(self, request: Request) -> Response:
        """Cancel what runs, or one prompt if it runs."""
        owner = self._host.identify(request)
        prompt_id = read_object(await request.body()).get("prompt_id")
        self._desk.interrupt(owner, prompt_id if isinstance(prompt_id, str) else None)
        return Response()

    async def view(self, request: Request) -> Response:
        """Send a file of one of the owner's folders, or a smaller picture of it."""
        room, query = self._desk.room(self._host.identify(request)), request.query_params
        name, subfolder = query.get("filename", ""), query.get("subfolder", "")
        path = await asyncio.to_thread(room.find, query.get("type", "output"), subfolder, name)
        if path is None:
            return Response(status_code=404)
        if "preview" in query:
            data, kind = await asyncio.to_thread(preview_of, path, query["preview"])
            return Response(data, media_type=kind)
        kind, quoted = media_type(path.name), path.name.encode("ascii", "replace").decode().replace('"', "")
        how = "inline" if kind != "application/octet-stream" else "attachment"
        headers = {"Content-Disposition": f'{how}; filename="{quoted}"', "Content-Security-Policy": "sandbox"}
        return FileResponse(path, media_type=kind, headers=headers)

    async def upload(self, request: Request) -> Response:
        """Keep an image."""
        room = self._desk.room(self._host.identify(request))
        form = await _form(request)
        try:
            image = form.get("image")
            if not isinstance(image, UploadFile) or not image.filename:
                raise InputError("no file", field="image", value=None, allowed="a file in multipart/form-data")
            said = {name: value for name, value in form.items() if isinstance(value, str)}
            stored = await asyncio.to_thread(
                room.store,
                await image.read(),
                image.filename,
                kind=said.get("type", "input"),
                subfolder=said.get("subfolder", ""),
                is_replacing=said.get("overwrite", "").lower() in ("true", "1"),
                max_pixels=self._host.max_image_pixels,
            )
        finally:
            await form.close()
        return JSONResponse(stored.to_json())

    async def object_info(self, request: Request) -> Response:
        """Describe the node types that compile."""
        room = self._desk.room(self._host.identify(request))
        found = await asyncio.to_thread(self._info.describe, room)
        wanted = request.path_params.get("node_class")
        if wanted is not None:
            found = {name: one for name, one in found.items() if name == wanted}
        return JSONResponse(found)

    async def models(self, request: Request) -> Response:
        """List the kinds of model files, or the files of one."""
        self._host.identify(request)
        files = await asyncio.to_thread(self._info.model_files)
        kind = request.path_params.get("folder")
        if kind is None:
            return JSONResponse(list(files))
        return JSONResponse(files[kind]) if kind in files else Response(status_code=404)

    async def system_stats(self, request: Request) -> Response:
        """Tell what runs here, in ComfyUI's words."""
        self._host.identify(request)
        return JSONResponse(self._info.system())

    async def features(self, request: Request) -> Response:
        """Tell which additions to the interface there are."""
        self._host.identify(request)
        return JSONResponse(self._features)

    async def nothing(self, request: Request) -> Response:
        """List what there is none of: embeddings, extensions of the front end."""
        self._host.identify(request)
        return JSONResponse([])

    async def free(self, request: Request) -> Response:
        """Do nothing: the engine keeps its model, and frees all else of itself."""
        self._host.identify(request)
        return Response()

    async def socket(self, socket: WebSocket) -> None:
        """Tell a client what becomes of its prompts."""
        owner = self._host.identify(socket)
        client_id = socket.query_params.get("clientId") or uuid.uuid4().hex
        await socket.accept()
        hub = self._desk.hub
        listener = hub.join(owner, client_id[:_MAX_ID])
        status = {**self._desk.status(owner), "sid": client_id[:_MAX_ID]}
        listener.put({"type": "status", "data": status})
        sending = asyncio.ensure_future(_send(socket, listener))
        hearing = asyncio.ensure_future(self._hear(socket, listener))
        try:
            await asyncio.wait({sending, hearing}, return_when=asyncio.FIRST_COMPLETED)
            if not hearing.done():
                await socket.close()
        finally:
            hub.leave(listener)
            for task in (sending, hearing):
                task.cancel()
            await asyncio.gather(sending, hearing, return_exceptions=True)

    async def _hear(self, socket: WebSocket, listener: Listener) -> None:
        """Take what a client says: which additions it knows; everything else is let be."""
        while (message := await socket.receive())["type"] != "websocket.disconnect":
            with suppress(ValueError, RecursionError):
                said = json.loads(message.get("text") or "null")
                if isinstance(said, dict) and said.get("type") == "feature_flags":
                    listener.put({"type": "feature_flags", "data": self._features})

    @property
    def _features(self) -> dict[str, Any]:
        return {**_FEATURES, "max_upload_size": self._host.max_body}


def make_routes(host: ServerHost, desk: Desk, info: ObjectInfo) -> list[BaseRoute]:
    """Return ComfyUI's routes."""
    routes = _Routes(host, desk, info)
    table: list[tuple[str, Callable[[Request], Awaitable[Response]], list[str]]] = [
        ("/prompt", routes.prompt, ["GET", "POST"]),
        ("/queue", routes.queue, ["GET", "POST"]),
        ("/history", routes.history, ["GET", "POST"]),
        ("/history/{prompt_id}", routes.history_of, ["GET"]),
        ("/interrupt", routes.interrupt, ["POST"]),
        ("/free", routes.free, ["POST"]),
        ("/view", routes.view, ["GET"]),
        ("/upload/image", routes.upload, ["POST"]),
        ("/object_info", routes.object_info, ["GET"]),
        ("/object_info/{node_class}", routes.object_info, ["GET"]),
        ("/models", routes.models, ["GET"]),
        ("/models/{folder}", routes.models, ["GET"]),
        ("/system_stats", routes.system_stats, ["GET"]),
        ("/features", routes.features, ["GET"]),
        ("/embeddings", routes.nothing, ["GET"]),
        ("/extensions", routes.nothing, ["GET"]),
    ]
    table += UserRoutes(host).table()
    found: list[BaseRoute] = []
    for prefix in _PREFIXES:
        found += [Route(f"{prefix}{path}", _answering(answer), methods=methods) for path, answer, methods in table]
        found.append(WebSocketRoute(f"{prefix}/ws", routes.socket))
    return found


def _answering(answer: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    async def respond(request: Request) -> Response:
        try:
            return await answer(request)
        except RefusedPromptError as refusal:
            return JSONResponse(refusal.body, status_code=refusal.status, headers=refusal.headers)

    return respond


async def _form(request: Request) -> FormData:
    try:
        return await request.form(max_files=1, max_fields=20)
    except ValueError as error:  # how its parser refuses what is no form
        reason = " ".join(str(error).split())[:200]
        raise InputError(reason or "not a form", field="body", value="", allowed="multipart/form-data") from None


async def _send(socket: WebSocket, listener: Listener) -> None:
    with suppress(WebSocketDisconnect):
        while (message := await listener.outbox.get()) is not None:
            if isinstance(message, bytes):
                await socket.send_bytes(message)
            else:
                await socket.send_json(message)


def _number(request: Request, name: str) -> int | None:
    text = request.query_params.get(name)
    if text is None:
        return None
    if not text.isdecimal() or len(text) > 9:
        raise InputError("not a number of prompts", field=name, value=text[:40], allowed="0 or more")
    return int(text)


def _ids(given: Any) -> list[str]:
    return [one for one in given if isinstance(one, str)] if isinstance(given, list) else []
