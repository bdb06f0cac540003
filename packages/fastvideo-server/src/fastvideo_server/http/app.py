"""The application: routes, middleware, and errors of every kind in one shape."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from importlib_metadata import version
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response

from fastvideo_server.errors import ApiError, error_body
from fastvideo_server.http import chat, images, models, operations, pages, sessions, videos
from fastvideo_server.http.context import RequestContext
from fastvideo_server.http.parts import Parts
from fastvideo_server.http.plugged import add_routes

__all__ = ["create_app"]

_CLOSED = 499
"""What logs call a request whose client went away, after nginx."""


def create_app(parts: Parts) -> FastAPI:
    """Return the application of a server; its jobs begin to be worked on when it starts.

    Raises:
        PluginError: A plugin's part has a route that is there already.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await parts.service.start()
        yield
        for part in parts.plugged:
            part.close()
        if not parts.service.is_draining:
            await parts.service.drain()

    app = FastAPI(
        title="FastVideo",
        version=version("fastvideo-server"),
        description="Videos from prompts, over an API that OpenAI clients speak.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
    )
    app.state.parts = parts
    for module in (videos, images, chat, sessions, models, operations, pages):
        app.include_router(module.router)
    add_routes(app, parts.plugged)
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(ClientDisconnect, _client_gone)
    app.add_middleware(RequestContext, config=parts.config, metrics=parts.metrics)
    if parts.config.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(parts.config.cors_origins),
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],  # clients of parts that plugins bring have headers of their own
            expose_headers=["Retry-After", "X-Request-Id"],
        )
    return app


def _api_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return JSONResponse(error.body(), status_code=error.status, headers=error.headers)


def _validation_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first: dict[str, Any] = error.errors()[0]
    place = first["loc"][-1]
    allowed = first.get("ctx", {}).get("expected")
    message = f"{place}={str(first['input'])[:100]!r} is not allowed: {first['msg']}"
    body = error_body(400, message, code="invalid_value", param=str(place), allowed=allowed or first["msg"])
    return JSONResponse(body, status_code=400)


def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "invalid_request")
    message = f"{request.method} {request.url.path[:200]}: {error.detail}"
    allowed = (error.headers or {}).get("Allow")
    body = error_body(error.status_code, message, code=code, allowed=allowed)
    return JSONResponse(body, status_code=error.status_code, headers=error.headers)


def _client_gone(_: Request, __: Exception) -> Response:
    return Response(status_code=_CLOSED)
