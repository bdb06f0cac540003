"""Routes that ComfyUI's page asks for at its start: users, settings, the files of a user, translations."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response

from fastvideo_comfy.serve.accepting import read_object
from fastvideo_comfy.serve.user_files import UserFiles
from fastvideo_core.errors import InputError
from fastvideo_core.runtime.serving import ServerHost

__all__ = ["UserRoutes"]

_DOWNLOAD = {"Content-Disposition": "attachment", "Content-Security-Policy": "sandbox"}


class UserRoutes:
    """The answers; each owner sees its own settings and files.

    Args:
        host: The server.
    """

    def __init__(self, host: ServerHost) -> None:
        self._host = host

    def table(self) -> list[tuple[str, Callable[[Request], Awaitable[Response]], list[str]]]:
        """Return paths, answers and methods."""
        return [
            ("/users", self.users, ["GET"]),
            ("/settings", self.settings, ["GET", "POST"]),
            ("/settings/{setting}", self.setting, ["GET", "POST"]),
            ("/userdata", self.names, ["GET"]),
            ("/userdata/{file:path}", self.file, ["GET", "POST", "DELETE"]),
            ("/i18n", self.translations, ["GET"]),
        ]

    async def users(self, request: Request) -> Response:
        """Tell that the server keeps settings, of one user for each owner."""
        return JSONResponse({"storage": "server", "migrated": self._files(request).is_known})

    async def settings(self, request: Request) -> Response:
        """List the settings, or set some."""
        files = self._files(request)
        if request.method == "GET":
            return JSONResponse(await asyncio.to_thread(files.settings))
        await asyncio.to_thread(files.change, read_object(await request.body()))
        return Response()

    async def setting(self, request: Request) -> Response:
        """Tell one setting, null if it is not set, or set it."""
        files, name = self._files(request), request.path_params["setting"]
        if request.method == "GET":
            return JSONResponse((await asyncio.to_thread(files.settings)).get(name))
        await asyncio.to_thread(files.change, {name: _value(await request.body())})
        return Response()

    async def names(self, request: Request) -> Response:
        """List the files of a folder."""
        files, query = self._files(request), request.query_params
        found = await asyncio.to_thread(files.names, query.get("dir", ""), is_deep=query.get("recurse") == "true")
        return Response(status_code=404) if found is None else JSONResponse(found)

    async def file(self, request: Request) -> Response:
        """Send, keep or delete a file."""
        files, name = self._files(request), request.path_params["file"]
        if request.method == "POST":
            is_replacing = request.query_params.get("overwrite", "true") != "false"
            kept = await asyncio.to_thread(files.keep, name, await request.body(), is_replacing=is_replacing)
            return Response(status_code=409) if kept is None else JSONResponse(kept)
        path = await asyncio.to_thread(files.find, name)
        if path is None:
            return Response(status_code=404)
        if request.method == "DELETE":
            await asyncio.to_thread(path.unlink, missing_ok=True)
            return Response(status_code=204)
        return FileResponse(path, media_type="application/octet-stream", headers=_DOWNLOAD)

    async def translations(self, request: Request) -> Response:
        """List what there is none of: translations that node packs bring."""
        self._host.identify(request)
        return JSONResponse({})

    def _files(self, request: Request) -> UserFiles:
        return UserFiles(self._host.folder / self._host.identify(request))


def _value(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise InputError("no JSON", field="body", value=repr(body[:40]), allowed="a JSON value") from None
