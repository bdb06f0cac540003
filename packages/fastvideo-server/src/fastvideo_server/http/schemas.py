"""The shapes of answers, for the OpenAPI document and for whoever builds one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, Field

from fastvideo_core.card import ModelCard, TaskSpec
from fastvideo_core.runtime.serving import OfferedTask
from fastvideo_server.jobs.asks import NO_OFFERS
from fastvideo_server.jobs.live import LiveJob
from fastvideo_server.jobs.records import JobRecord

__all__ = ["Completion", "Deleted", "ErrorAnswer", "Health", "Image", "Images", "Model", "ModelList", "Queue", "Video",
           "VideoList", "model_json", "refusals", "video_json"]  # fmt: skip


class ErrorDetail(BaseModel):
    """What is wrong."""

    message: str = Field(description="in one line: what was got and what is allowed")
    type: str = Field(description="kind of error")
    param: str | None = Field(description="the field")
    code: str = Field(description="the error, for programs")
    allowed: str | None = Field(default=None, description="what is allowed in the field")
    nearest: str | int | float | bool | None = Field(default=None, description="the nearest valid value")


class ErrorAnswer(BaseModel):
    """An answer other than success."""

    error: ErrorDetail


class JobError(BaseModel):
    """Why a job failed."""

    code: str
    message: str


class Video(BaseModel):
    """A job that makes a video."""

    id: str
    object: Literal["video"]
    created_at: int = Field(description="seconds since the epoch")
    completed_at: int | None
    expires_at: int | None
    status: Literal["queued", "in_progress", "completed", "failed"]
    progress: int = Field(ge=0, le=100, description="percent; 100 once the content is there")
    model: str
    task: str
    prompt: str
    size: str
    seconds: str
    error: JobError | None
    remixed_from_video_id: str | None
    parameters: dict[str, Any] = Field(description="every parameter that it runs with, and who set it")
    warnings: list[str]
    latency_class: str


class VideoList(BaseModel):
    """A page of jobs."""

    object: Literal["list"]
    data: list[Video]
    first_id: str | None
    last_id: str | None
    has_more: bool


class Deleted(BaseModel):
    """A job that is gone."""

    id: str
    object: Literal["video.deleted"]
    deleted: bool


class Image(BaseModel):
    """An image."""

    b64_json: str = Field(description="the file, in base64")
    seed: int | None = Field(description="the seed that made it")


class Images(BaseModel):
    """Images, in the order of their seeds."""

    created: int
    data: list[Image]
    output_format: str
    size: str


class Message(BaseModel):
    """What a reasoner has written."""

    role: Literal["assistant"]
    content: str
    refusal: None


class Choice(BaseModel):
    """An answer."""

    index: int
    message: Message
    finish_reason: Literal["stop", "length"]
    logprobs: None


class Usage(BaseModel):
    """Tokens that were read and written."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Completion(BaseModel):
    """An answer of a card's reasoner."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[Choice]
    usage: Usage


class Model(BaseModel):
    """A card that is served."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    title: str
    default_task: str
    stream_task: str | None = Field(description="the task of sessions; null for a card without streams")
    tasks: dict[str, Any] = Field(description="inputs, outputs and parameters of each task")


class ModelList(BaseModel):
    """The cards that are served."""

    object: Literal["list"]
    data: list[Model]


class Queue(BaseModel):
    """What waits and runs, and on what."""

    model: str
    queued: int
    running: int
    sessions: int
    device: str
    precision: str
    weights_bytes: int
    memory_bytes: dict[str, int] = Field(description="by what holds it")


class Health(BaseModel):
    """Whether the server works."""

    status: Literal["ok", "failing"]
    problems: list[str]


_REASONS = {
    400: "a field is missing, unknown or not allowed",
    401: "the API key is missing or wrong",
    403: "a page of another origin asks",
    404: "there is no such thing",
    408: "the body did not arrive in time",
    409: "it is not in a state for that",
    410: "what the idempotency key made was deleted",
    413: "the body is too large",
    415: "the body is of another kind",
    416: "there is no such part of the file",
    422: "the idempotency key was used for something else",
    429: "a limit is reached; Retry-After says when to come back",
    500: "the server has a fault",
    503: "the server stops, or lacks something",
}


def refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the errors of a route, as FastAPI takes them; those that every route has are in it."""
    return {status: {"model": ErrorAnswer, "description": _REASONS[status]} for status in (400, 401, *statuses, 503)}


def video_json(job: LiveJob | JobRecord) -> dict[str, Any]:
    """Return a job as clients know it."""
    record = job.record if isinstance(job, LiveJob) else job
    status = record.status
    progress = 100 if status == "completed" else 0
    if isinstance(job, LiveJob) and not job.is_final:
        status_text = "in_progress" if job.has_started else "queued"
        progress = job.progress
    else:
        status_text = "queued" if status in ("queued", "accepting") else "failed" if status == "deleted" else status
    error = None
    if record.error_code is not None:
        error = {"code": record.error_code, "message": record.error_message or ""}
    return {
        "id": record.job_id,
        "object": "video",
        "created_at": int(record.created_at),
        "completed_at": None if record.completed_at is None else int(record.completed_at),
        "expires_at": None,
        "status": status_text,
        "progress": progress,
        "model": record.model,
        "task": record.task,
        "prompt": record.prompt,
        "size": record.size,
        "seconds": record.seconds,
        "error": error,
        "remixed_from_video_id": None,
        "parameters": dict(record.parameters),
        "warnings": list(record.warnings),
        "latency_class": record.latency_class,
    }


def model_json(
    card: ModelCard, *, stream_task: str | None, offers: Mapping[str, OfferedTask] = NO_OFFERS
) -> dict[str, Any]:
    """Return a card as clients know it, with what each task takes, and the one whose streams sessions are.

    Args:
        card: The card.
        stream_task: Task of sessions.
        offers: Tasks that plugins offer beside the card's; they say their version.
    """
    tasks = {name: _task_json(task) for name, task in card.capabilities.tasks.items()}
    tasks |= {name: {**_task_json(one.spec), "version": one.version} for name, one in offers.items()}
    return {
        "id": card.model_id,
        "object": "model",
        "created": 0,
        "owned_by": card.family,
        "title": card.title,
        "default_task": card.capabilities.default_task,
        "stream_task": stream_task,
        "tasks": tasks,
    }


def _task_json(task: TaskSpec) -> dict[str, Any]:
    return {
        "description": task.description,
        "inputs": {key: one.model_dump(mode="json") for key, one in task.inputs.items()},
        "outputs": dict(task.outputs),
        "parameters": {
            key: {**one.model_dump(mode="json"), "allowed": one.allowed_text()} for key, one in task.parameters.items()
        },
    }
