"""`/v1/chat/completions`: a card's reasoner answers, whole or as it writes; when the client goes away, it stops."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from fastvideo_core.request.artifacts import TextArtifact
from fastvideo_server.errors import ApiError, api_error
from fastvideo_server.http.bodies import read_body
from fastvideo_server.http.clients import while_connected
from fastvideo_server.http.parts import CallerDep, PartsDep
from fastvideo_server.http.schemas import Completion, refusals
from fastvideo_server.jobs.live import LiveJob
from fastvideo_server.jobs.service import JobService
from fastvideo_server.jobs.talks import read_talk

__all__ = ["router"]

router = APIRouter(prefix="/v1/chat", tags=["chat"])

_FINISHES = {"length": "length"}
"""Why an answer ended, where clients have another word for it than `stop`."""
_ANSWER_KINDS = ("text.delta",)
_TEXT: dict[str, Any] = {"type": "string"}
_PART: dict[str, Any] = {
    "oneOf": [
        {
            "type": "object",
            "properties": {"type": {"type": "string", "const": "text"}, "text": _TEXT},
            "required": ["type", "text"],
        },
        {
            "type": "object",
            "properties": {
                "type": {"type": "string", "const": "image_url"},
                "image_url": {"type": "object", "properties": {"url": _TEXT}, "required": ["url"]},
            },
            "required": ["type", "image_url"],
        },
    ]
}
_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["messages"],
                    "description": "Further fields are parameters of the card: see GET /v1/models.",
                    "properties": {
                        "messages": {
                            "type": "array",
                            "minItems": 1,
                            "items": {
                                "type": "object",
                                "required": ["role", "content"],
                                "properties": {
                                    "role": {"type": "string", "enum": ["system", "developer", "user", "assistant"]},
                                    "content": {"oneOf": [_TEXT, {"type": "array", "items": _PART}]},
                                },
                            },
                        },
                        "model": {"type": "string", "description": "the card"},
                        "stream": {"type": "boolean", "description": "send the answer as it is written"},
                        "stream_options": {
                            "type": "object",
                            "properties": {"include_usage": {"type": "boolean"}},
                            "additionalProperties": False,
                        },
                        "max_tokens": {"type": "integer", "minimum": 1},
                        "max_completion_tokens": {"type": "integer", "minimum": 1},
                    },
                }
            }
        },
    }
}


@router.post(
    "/completions",
    summary="Ask a card's reasoner",
    responses={
        200: {
            "model": Completion,
            "content": {"text/event-stream": {"schema": {"type": "string"}}},
            "description": "the answer, or parts of it as server-sent events",
        },
        **refusals(403, 404, 408, 413, 415, 429, 500),
    },
    openapi_extra=_BODY,
)
async def complete(request: Request, parts: PartsDep, caller: CallerDep) -> Response:
    """Answer the last message, in the light of those before it."""
    body = await read_body(request, max_bytes=parts.config.max_body, has_image=False)
    if body.is_form:
        raise ApiError(
            415, "questions are asked in JSON", code="unsupported_media_type", param="Content-Type",
            allowed="application/json",
        )  # fmt: skip
    talk = read_talk(parts.service.card, body.fields)
    (job,) = await parts.service.begin([talk.ask], caller)
    if talk.is_streamed:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        parts_of_it = _streamed(parts.service, job, has_usage=talk.has_usage)
        return StreamingResponse(parts_of_it, headers=headers, media_type="text/event-stream")
    try:
        await while_connected(request, job.ended.wait())
    finally:
        parts.service.drop([job])
    if job.error is not None:
        raise api_error(job.error)
    return JSONResponse(_whole(job))


async def _streamed(service: JobService, job: LiveJob, *, has_usage: bool) -> AsyncIterator[str]:
    """Yield an answer as it is written; what is not read to its end is not written to its end."""
    try:
        yield _chunk(job, {"role": "assistant", "content": ""})
        after = -1
        while True:
            change = job.next_change()
            is_over = job.is_final
            for event in job.events(after):
                after = event.sequence
                if event.type in _ANSWER_KINDS and event.text:
                    yield _chunk(job, {"content": event.text})
            if is_over:
                break
            await change.wait()
        if job.error is not None:
            yield f"data: {json.dumps(api_error(job.error).body())}\n\n"
            return
        yield _chunk(job, {}, finish=_finish(_answer(job)))
        if has_usage:
            yield _data(job, choices=[], usage=_usage(_answer(job)))
        yield "data: [DONE]\n\n"
    finally:
        service.drop([job])


def _answer(job: LiveJob) -> TextArtifact:
    assert job.result is not None, "a job without an error has a result"
    (answer,) = job.result.artifacts.values()
    assert isinstance(answer, TextArtifact)
    return answer


def _finish(answer: TextArtifact) -> str:
    return _FINISHES.get(answer.finish, "stop")


def _usage(answer: TextArtifact) -> dict[str, int]:
    written = len(answer.token_ids)
    return {"prompt_tokens": answer.num_read, "completion_tokens": written, "total_tokens": answer.num_read + written}


def _whole(job: LiveJob) -> dict[str, Any]:
    answer = _answer(job)
    message = {"role": "assistant", "content": answer.text, "refusal": None}
    choice = {"index": 0, "message": message, "finish_reason": _finish(answer), "logprobs": None}
    return {**_head(job, "chat.completion"), "choices": [choice], "usage": _usage(answer)}


def _chunk(job: LiveJob, delta: dict[str, str], *, finish: str | None = None) -> str:
    return _data(job, choices=[{"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}])


def _data(job: LiveJob, **fields: Any) -> str:
    return f"data: {json.dumps({**_head(job, 'chat.completion.chunk'), **fields})}\n\n"


def _head(job: LiveJob, kind: str) -> dict[str, Any]:
    created = int(job.record.created_at) or int(time.time())
    return {"id": f"chatcmpl-{job.job_id}", "object": kind, "created": created, "model": job.record.model}
