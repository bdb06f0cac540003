"""What routes need of the server, and who calls them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Request
from fastapi.security import HTTPBearer
from starlette.requests import HTTPConnection

from fastvideo_core.runtime.serving import ServerPart
from fastvideo_server.config import ServerConfig
from fastvideo_server.errors import ApiError
from fastvideo_server.jobs.health import Health
from fastvideo_server.jobs.quotas import Caller, Keys
from fastvideo_server.jobs.service import JobService
from fastvideo_server.metrics import Metrics
from fastvideo_server.sessions.service import SessionService
from fastvideo_server.watch import SchedulerWatch

__all__ = ["CallerDep", "Parts", "PartsDep", "identify"]

_BEARER = HTTPBearer(auto_error=False, description="an API key; needed where the server has keys")


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a server.

    Attributes:
        config: Its settings.
        service: Its jobs.
        sessions: Its sessions.
        keys: Who may call.
        metrics: Its figures.
        health: Whether it works.
        watch: What its scheduler does.
        plugged: Parts that plugins bring.
    """

    config: ServerConfig
    service: JobService
    sessions: SessionService
    keys: Keys
    metrics: Metrics
    health: Health
    watch: SchedulerWatch
    plugged: tuple[ServerPart, ...] = ()


# Coroutines, although they wait for nothing: FastAPI sends functions to another thread and waits for that.
async def _parts(request: Request) -> Parts:
    parts = request.app.state.parts
    assert isinstance(parts, Parts)
    return parts


PartsDep = Annotated[Parts, Depends(_parts)]


def identify(connection: HTTPConnection, keys: Keys, authorization: str | None) -> Caller:
    """Return who opens a connection, and note it for the log.

    Raises:
        ApiError: 401, no key or a wrong one; 400, a key where it does not belong.
    """
    for name in connection.query_params:
        # A key in an address ends up in logs and histories.
        if name in ("api_key", "key", "token"):
            raise ApiError(400, "keys go into a header", code="invalid_value", param=name, allowed="Authorization")
    caller = keys.caller(authorization)
    connection.scope["fastvideo_key"] = caller.name
    return caller


async def _caller(request: Request, parts: PartsDep, _: Annotated[Any, Depends(_BEARER)]) -> Caller:
    return identify(request, parts.keys, request.headers.get("authorization"))


CallerDep = Annotated[Caller, Depends(_caller)]
