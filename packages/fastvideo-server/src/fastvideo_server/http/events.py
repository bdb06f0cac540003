"""Events of a job as server-sent events: typed, numbered, and taken up again where a reader left off.

Source: WHATWG HTML, section 9.2, server-sent events.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

from starlette.responses import Response, StreamingResponse

from fastvideo_core.request.events import MediaChunk
from fastvideo_server.errors import ApiError
from fastvideo_server.jobs.live import LAST_EVENTS, LiveJob
from fastvideo_server.jobs.records import JobRecord
from fastvideo_server.jobs.service import JobService

__all__ = ["event_response", "parse_event_id"]

_EVENT_ID = re.compile(r"(\d{1,9})\.(\d{1,12})", re.ASCII)
_RETRY_MS = 1000


def parse_event_id(text: str, *, run: int, newest: int) -> int:
    """Return the number of the last event that a reader has; -1 if it has none of this run of the job.

    Args:
        text: `RUN.NUMBER`, as the events' ids are.
        run: The run whose events there are: a job that goes on in a new process begins to count anew.
        newest: Number of its newest event.

    Raises:
        ApiError: 400, it is no id, or of an event that has not been yet.
    """
    found = _EVENT_ID.fullmatch(text.strip())
    if found is None:
        raise _wrong_id(text, "RUN.NUMBER, as an event's id is")
    given_run, number = map(int, found.groups())
    if given_run < run:
        return -1
    if given_run > run or number > newest:
        raise _wrong_id(text, f"up to {run}.{newest}" if newest >= 0 else "no id: there is no event yet")
    return number


async def event_response(
    service: JobService, job: LiveJob | JobRecord, *, last_event_id: str | None, heartbeat_s: float
) -> Response:
    """Answer with the events of a job, from the first or from where a reader left off.

    Args:
        service: The jobs.
        job: The job.
        last_event_id: Id of the last event that the reader has.
        heartbeat_s: Most seconds of silence.

    Raises:
        ApiError: 400, there is no such event yet.
    """
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    if isinstance(job, LiveJob):
        newest = -1 if job.handle is None else job.handle.stream.newest
        after = -1 if last_event_id is None else parse_event_id(last_event_id, run=job.record.run, newest=newest)
        if after >= 0 and any(one.type in LAST_EVENTS for one in job.events(after - 1) if one.sequence == after):
            return _nothing_left()
        body = _follow(job, after, heartbeat_s)
        return StreamingResponse(body, headers=headers, media_type="text/event-stream")
    events = await service.stored_events(job.job_id)
    newest = events[-1]["sequence"] if events else -1
    after = -1 if last_event_id is None else parse_event_id(last_event_id, run=job.run, newest=newest)
    rest = [event for event in events if event["sequence"] > after]
    if not rest and last_event_id is not None:
        return _nothing_left()
    text = "".join(_message(job.run, event["sequence"], event["type"], json.dumps(event)) for event in rest)
    return Response(text, headers=headers, media_type="text/event-stream")


def _nothing_left() -> Response:
    return Response(status_code=204)  # tells a browser not to come back


async def _follow(job: LiveJob, after: int, heartbeat_s: float) -> AsyncIterator[str]:
    run = job.record.run
    yield f"retry: {_RETRY_MS}\n\n"
    while True:
        change = job.next_change()
        is_over = job.is_final or job.is_left
        for event in job.events(after):
            after = event.sequence
            yield _message(run, event.sequence, event.type, await _data(job, event))
            if event.type in LAST_EVENTS:
                return
        if is_over:
            return
        with suppress(TimeoutError):
            await asyncio.wait_for(change.wait(), heartbeat_s)
            continue
        yield ": still here\n\n"


async def _data(job: LiveJob, event: Any) -> str:
    """Return an event's JSON; of a preview with its picture."""
    if isinstance(event, MediaChunk) and event.is_preview and event.data is not None:
        event = event.model_copy(update={"image": await job.pictures.of(event)})
    return str(event.model_dump_json())


def _message(run: int, sequence: int, kind: str, data: str) -> str:
    return f"id: {run}.{sequence}\nevent: {kind}\ndata: {data}\n\n"


def _wrong_id(text: str, allowed: str) -> ApiError:
    return ApiError(
        400, f"there is no event {text[:60]!r}", code="invalid_event_id", param="Last-Event-ID", allowed=allowed
    )
