"""`/v1/images/generations`: images while the client waits; when it goes away, they are not made."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from fastvideo_core.request.media.stills import encode_still
from fastvideo_core.runtime.run import GenerationResult
from fastvideo_server.errors import ApiError
from fastvideo_server.http.bodies import read_body
from fastvideo_server.http.clients import while_connected
from fastvideo_server.http.parts import CallerDep, PartsDep
from fastvideo_server.http.schemas import Images, refusals
from fastvideo_server.jobs.asks import Ask, read_ask, size_text

__all__ = ["router"]

router = APIRouter(prefix="/v1/images", tags=["images"])

_FORMATS = {"png": ".png", "jpeg": ".jpg", "webp": ".webp"}
_MAX_IMAGES = 10
_MAX_SEED = 2**63 - 1
_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["prompt"],
                    "description": "Further fields are parameters of the card: see GET /v1/models.",
                    "properties": {
                        "prompt": {"type": "string", "description": "what to show"},
                        "model": {"type": "string", "description": "the card"},
                        "n": {"type": "integer", "minimum": 1, "maximum": _MAX_IMAGES},
                        "size": {"type": "string", "description": "WIDTHxHEIGHT, on the card's grid"},
                        "output_format": {"type": "string", "enum": list(_FORMATS)},
                        "response_format": {"type": "string", "enum": ["b64_json"]},
                    },
                }
            }
        },
    }
}


@router.post(
    "/generations",
    summary="Make images while the client waits",
    responses={200: {"model": Images}, **refusals(403, 404, 408, 413, 415, 429, 500)},
    openapi_extra=_BODY,
)
async def generate(request: Request, parts: PartsDep, caller: CallerDep) -> Response:
    """Make images: frames of videos of one frame, with seeds that follow each other."""
    body = await read_body(request, max_bytes=parts.config.max_body)
    if body.is_form or body.image is not None:
        raise ApiError(
            415, "images are asked for in JSON", code="unsupported_media_type", param="Content-Type",
            allowed="application/json",
        )  # fmt: skip
    suffix = _choice(body.fields, "output_format", "png", tuple(_FORMATS))
    _choice(body.fields, "response_format", "b64_json", ("b64_json",))
    ask = read_ask(parts.service.card, body.fields, kind="image")
    asks = _with_seeds(ask, _count(body.fields))
    results = await while_connected(request, parts.service.generate(asks, caller))
    return JSONResponse(await asyncio.to_thread(_answer, results, suffix))


def _with_seeds(ask: Ask, count: int) -> list[Ask]:
    """Return an ask for each image; where a seed was given, the others' follow it."""
    seed = ask.parameters.get("seed")
    if not isinstance(seed, int) or isinstance(seed, bool) or count == 1:
        return [ask] * count
    return [replace(ask, parameters={**ask.parameters, "seed": min(seed + index, _MAX_SEED)}) for index in range(count)]


def _count(fields: Mapping[str, Any]) -> int:
    count = fields.get("n", 1)
    if count is None:
        return 1
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= _MAX_IMAGES:
        raise _wrong("n", count, f"1 to {_MAX_IMAGES}")
    return count


def _choice(fields: Mapping[str, Any], name: str, default: str, allowed: tuple[str, ...]) -> str:
    value = fields.get(name)
    if value is None:
        return default
    if value not in allowed:
        raise _wrong(name, value, ", ".join(allowed))
    return str(value)


def _wrong(name: str, value: Any, allowed: str) -> ApiError:
    return ApiError(
        400, f"{name}={str(value)[:100]!r} is not allowed; allowed: {allowed}", code="invalid_value", param=name,
        allowed=allowed,
    )  # fmt: skip


def _answer(results: Sequence[GenerationResult], output_format: str) -> dict[str, Any]:
    """Encode the images, on a thread of its own."""
    data = []
    for result in results:
        artifact = result.video
        file = encode_still(artifact.frames[0], _FORMATS[output_format], artifact.provenance)
        data.append({"b64_json": base64.b64encode(file).decode(), "seed": result.seed})
    size = size_text(results[0].parameters)
    return {"created": int(time.time()), "data": data, "output_format": output_format, "size": size}
