"""`/v1/videos`: create, list, retrieve, content, events, delete."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Path, Query, Request
from starlette.responses import JSONResponse, Response

from fastvideo_server.errors import ApiError
from fastvideo_server.http.bodies import read_body
from fastvideo_server.http.events import event_response
from fastvideo_server.http.parts import CallerDep, PartsDep
from fastvideo_server.http.ranges import file_response
from fastvideo_server.http.schemas import Deleted, Video, VideoList, refusals, video_json
from fastvideo_server.jobs.artifacts import VARIANTS
from fastvideo_server.jobs.asks import read_ask
from fastvideo_server.jobs.live import LiveJob

__all__ = ["router"]

router = APIRouter(prefix="/v1/videos", tags=["videos"])

_KEY = re.compile(r"[\x21-\x7e]{1,255}")
_FIELDS = {
    "prompt": {"type": "string", "description": "what to show; every task of the card needs it"},
    "model": {"type": "string", "description": "the card; the one that is served where none is named"},
    "seconds": {"type": "string", "description": "length; at the card's frame rate it must be on the card's grid"},
    "size": {"type": "string", "description": "WIDTHxHEIGHT, on the card's grid"},
    "task": {"type": "string", "description": "task of the card, or one of a plugin; with an image one that takes it"},
    "latency_class": {"type": "string", "enum": ["interactive", "standard", "batch"]},
    "deadline_s": {"type": "number", "description": "seconds in which it is wanted"},
    "exact": {"type": "boolean", "description": "the reference's order of operations, to the bit"},
}
_NOTE = "Further fields are parameters of the card: see GET /v1/models."
_CREATE_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "description": _NOTE,
                    "properties": {
                        **_FIELDS,
                        "input_reference": {
                            "type": "object",
                            "properties": {"image_url": {"type": "string", "description": "a data URL"}},
                            "required": ["image_url"],
                        },
                    },
                }
            },
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "description": _NOTE,
                    "properties": {**_FIELDS, "input_reference": {"type": "string", "format": "binary"}},
                }
            },
        },
    }
}

VideoId = Annotated[str, Path(description="a video's id")]


@router.post(
    "",
    summary="Accept a job that makes a video",
    responses={200: {"model": Video}, **refusals(403, 404, 408, 410, 413, 415, 422, 429)},
    openapi_extra=_CREATE_BODY,
)
async def create(
    request: Request,
    parts: PartsDep,
    caller: CallerDep,
    idempotency_key: Annotated[
        str | None, Header(description="a repetition with the same key makes no second job")
    ] = None,
) -> Response:
    """Accept a job. Once this has answered it goes on, whether the connection is closed or the server crashes."""
    if idempotency_key is not None and not _KEY.fullmatch(idempotency_key):
        raise ApiError(
            400, "not an idempotency key", code="invalid_value", param="Idempotency-Key",
            allowed="1 to 255 printable ASCII characters",
        )  # fmt: skip
    body = await read_body(request, max_bytes=parts.config.max_body)
    ask = read_ask(
        parts.service.card, body.fields, kind="video", image=body.image, is_form=body.is_form,
        offers=parts.service.preparer.offers, owner=caller.name,
    )  # fmt: skip
    ask = replace(ask, has_previews=parts.config.previews)
    job = await parts.service.create(ask, caller, idempotency_key=idempotency_key, digest=body.digest)
    return JSONResponse(video_json(job))


@router.get("", summary="List jobs", responses={200: {"model": VideoList}, **refusals(404)})
async def list_videos(
    parts: PartsDep,
    caller: CallerDep,
    after: Annotated[str | None, Query(description="id of the last video of the page before")] = None,
    limit: Annotated[int, Query(ge=1, le=100, description="videos on a page")] = 20,
    order: Annotated[Literal["asc", "desc"], Query(description="oldest or newest first")] = "desc",
) -> Response:
    """List the caller's jobs, page by page."""
    jobs, has_more = await parts.service.page(caller, after=after, limit=limit, order=order)
    data = [video_json(job) for job in jobs]
    first, last = (data[0]["id"], data[-1]["id"]) if data else (None, None)
    return JSONResponse({"object": "list", "data": data, "first_id": first, "last_id": last, "has_more": has_more})


@router.get("/{video_id}", summary="Retrieve a job", responses={200: {"model": Video}, **refusals(404)})
async def retrieve(video_id: VideoId, parts: PartsDep, caller: CallerDep) -> Response:
    """Say how far a job is."""
    return JSONResponse(video_json(await parts.service.get(video_id, caller)))


@router.delete(
    "/{video_id}", summary="Cancel and delete a job", responses={200: {"model": Deleted}, **refusals(403, 404)}
)
async def delete(video_id: VideoId, parts: PartsDep, caller: CallerDep) -> Response:
    """Cancel a job at its next step if it has not ended, and remove all that there is of it."""
    await parts.service.delete(video_id, caller)
    return JSONResponse({"id": video_id, "object": "video.deleted", "deleted": True})


@router.get(
    "/{video_id}/content",
    summary="The video, or a picture of it",
    responses={
        200: {"content": {media: {} for _, media in VARIANTS.values()}, "description": "the file"},
        206: {"content": {media: {} for _, media in VARIANTS.values()}, "description": "a part of the file"},
        304: {"description": "the reader has it"},
        **refusals(404, 409, 416),
    },
    response_class=Response,
)
async def content(
    request: Request,
    video_id: VideoId,
    parts: PartsDep,
    caller: CallerDep,
    variant: Annotated[Literal["video", "thumbnail", "spritesheet"], Query(description="which file")] = "video",
) -> Response:
    """Send the video, its first frame, or frames of all of it in rows; whole, or the range that was asked for."""
    job = await parts.service.get(video_id, caller)
    record = job.record if isinstance(job, LiveJob) else job
    if record.status == "failed":
        raise ApiError(404, f"the video failed: {record.error_message}", code="video_failed", param="video_id")
    artifacts, file = parts.service.shelf.artifacts, None
    if record.status == "completed":
        file = await asyncio.to_thread(artifacts.file, video_id, variant)
    if file is None:
        raise ApiError(
            409, "the video is not ready", code="video_not_ready", param="video_id", allowed="a completed video",
            retry_after_s=1, headers={"x-should-retry": "false"},
        )  # fmt: skip
    name = f"{video_id}.{file.name.rpartition('.')[2]}"
    return file_response(file, VARIANTS[variant][1], name=name, headers=request.headers)


@router.get(
    "/{video_id}/events",
    summary="Follow a job",
    responses={
        200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}, "description": "server-sent events"},
        204: {"description": "the reader has all, and the job has ended"},
        **refusals(404),
    },
    response_class=Response,
)
async def events(
    video_id: VideoId,
    parts: PartsDep,
    caller: CallerDep,
    last_event_id: Annotated[str | None, Header(description="id of the last event that the reader has")] = None,
) -> Response:
    """Send what happens to a job as it happens, from its first event or after the one that is named."""
    job = await parts.service.get(video_id, caller)
    return await event_response(parts.service, job, last_event_id=last_event_id, heartbeat_s=parts.config.heartbeat_s)
