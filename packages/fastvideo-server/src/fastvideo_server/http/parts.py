"""What routes need of the server, and who calls them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Request
from fastapi.security import HTTPBearer

from fastvideo_server.config import ServerConfig
from fastvideo_server.errors import ApiError
from fastvideo_server.jobs.health import Health
from fastvideo_server.jobs.quotas import Caller, Keys
from fastvideo_server.jobs.service import JobService
from fastvideo_server.metrics import Metrics

__all__ = ["CallerDep", "Parts", "PartsDep"]

_BEARER = HTTPBearer(auto_error=False, description="an API key; needed where the server has keys")


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a server.

    Attributes:
        config: Its settings.
        service: Its jobs.
        keys: Who may call.
        metrics: Its figures.
        health: Whether it works.
    """

    config: ServerConfig
    service: JobService
    keys: Keys
    metrics: Metrics
    health: Health


def _parts(request: Request) -> Parts:
    parts = request.app.state.parts
    assert isinstance(parts, Parts)
    return parts


PartsDep = Annotated[Parts, Depends(_parts)]


def _caller(request: Request, parts: PartsDep, _: Annotated[Any, Depends(_BEARER)]) -> Caller:
    for name in request.query_params:
        # A key in an address ends up in logs and histories.
        if name in ("api_key", "key", "token"):
            raise ApiError(400, "keys go into a header", code="invalid_value", param=name, allowed="Authorization")
    caller = parts.keys.caller(request.headers.get("authorization"))
    request.scope["fastvideo_key"] = caller.name
    return caller


CallerDep = Annotated[Caller, Depends(_caller)]
