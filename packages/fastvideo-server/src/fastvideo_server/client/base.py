"""What both clients share: addresses, bodies, errors, and the reading of event streams."""

from __future__ import annotations

import json
import mimetypes
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2

from fastvideo_core.errors import FastVideoError, MediaError
from fastvideo_core.request.events import parse_event

__all__ = ["EventReader", "ServerError", "check", "creation", "headers_of", "reached", "refusal"]

RETRIES = 5
"""Times that a broken event stream is taken up again without a new event in between."""


class ServerError(FastVideoError):
    """A server's answer other than success.

    Attributes:
        status: HTTP status; 0 if the server was not reached.
        code: The error, for programs.
        param: The field.
        allowed: What is allowed there.
        retry_after_s: Seconds after which it may go better; None if nobody says so.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 0,
        code: str = "unreachable",
        param: str | None = None,
        allowed: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        self.status = status
        self.code = code
        self.param = param
        self.allowed = allowed
        self.retry_after_s = retry_after_s
        super().__init__(message)

    @property
    def exit_code(self) -> int:  # type: ignore[override]  # of the class elsewhere; here it depends on the answer
        """2 where the caller is wrong, else 1."""
        return 2 if 400 <= self.status < 500 and self.status != 429 else 1


def headers_of(key: str | None) -> dict[str, str]:
    """Return the headers of every request."""
    return {} if key is None else {"Authorization": f"Bearer {key}"}


def creation(
    prompt: str, image: Path | str | None, parameters: Mapping[str, Any], idempotency_key: str | None
) -> dict[str, Any]:
    """Return the arguments of the request that creates a job.

    Raises:
        MediaError: The image cannot be read.
    """
    headers = {} if idempotency_key is None else {"Idempotency-Key": idempotency_key}
    fields = {"prompt": prompt, **parameters}
    if image is None:
        return {"json": fields, "headers": headers}
    path = Path(image)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise MediaError(f"cannot be read: {error.strerror}", field="image", value=str(path)) from error
    kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    form = {name: value if isinstance(value, str) else json.dumps(value) for name, value in fields.items()}
    return {"data": form, "files": {"input_reference": (path.name, data, kind)}, "headers": headers}


def refusal(response: httpx2.Response) -> ServerError:
    """Return the error of an answer whose body has been read."""
    try:
        error = response.json()["error"]
        message, code = error["message"], error["code"]
    except (ValueError, LookupError, TypeError):
        return ServerError(f"the server answered with {response.status_code}", status=response.status_code, code="http")
    retry = response.headers.get("Retry-After", "")
    return ServerError(
        message,
        status=response.status_code,
        code=code,
        param=error.get("param"),
        allowed=error.get("allowed"),
        retry_after_s=float(retry) if retry.isdecimal() else None,
    )


def check(response: httpx2.Response) -> Any:
    """Return the JSON of an answer.

    Raises:
        ServerError: It is no success.
    """
    if response.is_success:
        return response.json()
    raise refusal(response)


@contextmanager
def reached() -> Iterator[None]:
    """Say in one line that a server was not reached.

    Raises:
        ServerError: It was not.
    """
    try:
        yield
    except httpx2.TransportError as error:
        raise ServerError(f"the server cannot be reached: {error}") from error


class EventReader:
    """Turns lines of an event stream into events, and remembers where it is.

    Attributes:
        last_id: Id of the last event; None before the first.
        is_done: Whether the last event of all has come.
        num_failures: Streams that broke off since the last event.
    """

    def __init__(self) -> None:
        self.last_id: str | None = None
        self.is_done = False
        self.num_failures = 0
        self._fields: dict[str, str] = {}

    @property
    def headers(self) -> dict[str, str]:
        """What the next request says of what has been read."""
        return {} if self.last_id is None else {"Last-Event-ID": self.last_id}

    def feed(self, line: str) -> Iterator[Any]:
        """Take a line, and yield the event that it completes, if it does."""
        name, _, value = line.partition(": ")
        if line:
            self._fields[name] = value
            return
        fields, self._fields = self._fields, {}
        if "data" in fields:
            event = parse_event(fields["data"])
            self.last_id, self.num_failures = fields.get("id"), 0
            self.is_done = event.type in ("request.completed", "request.failed", "request.cancelled")
            yield event

    def broke_off(self, error: Exception | None) -> None:
        """Note the end of a stream before the end of the job.

        Raises:
            ServerError: That has been too often.
        """
        self._fields = {}
        self.num_failures += 1
        if self.num_failures > RETRIES:
            raise ServerError("the event stream breaks off again and again") from error
