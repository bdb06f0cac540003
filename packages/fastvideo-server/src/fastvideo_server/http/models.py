"""`/v1/models`: the card that is served, and what its tasks take."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.responses import JSONResponse, Response

from fastvideo_server.errors import ApiError
from fastvideo_server.http.parts import CallerDep, Parts, PartsDep
from fastvideo_server.http.schemas import Model, ModelList, model_json, refusals

__all__ = ["router"]

router = APIRouter(prefix="/v1/models", tags=["models"])


@router.get("", summary="List the cards that are served", responses={200: {"model": ModelList}, **refusals()})
async def list_models(parts: PartsDep, caller: CallerDep) -> Response:  # noqa: ARG001 - asks for the key
    """List the cards."""
    return JSONResponse({"object": "list", "data": [_served(parts)]})


@router.get("/{model_id}", summary="Retrieve a card", responses={200: {"model": Model}, **refusals(404)})
async def retrieve_model(model_id: str, parts: PartsDep, caller: CallerDep) -> Response:  # noqa: ARG001 - see above
    """Tell what a card's tasks take."""
    card = parts.service.card
    if model_id != card.model_id:
        raise ApiError(
            404, f"model {model_id[:100]!r} is not served here", code="model_not_found", param="model",
            allowed=card.model_id, nearest=card.model_id,
        )  # fmt: skip
    return JSONResponse(_served(parts))


def _served(parts: Parts) -> dict[str, Any]:
    service = parts.service
    return model_json(service.card, stream_task=parts.sessions.stream_task, offers=service.preparer.offers)
