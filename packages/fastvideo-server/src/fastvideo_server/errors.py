"""Errors as HTTP answers, in the shape that OpenAI clients read: message, type, param and code, and what is allowed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from fastvideo_core.errors import (
    CancelledError,
    FastVideoError,
    InputError,
    QueueFullError,
    ResourceError,
    SessionError,
    StateError,
    describe_failure,
)

__all__ = ["ApiError", "api_error", "error_body"]

_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


class ApiError(FastVideoError):
    """An answer other than success.

    Args:
        status: HTTP status.
        message: What is wrong, in one line.
        code: The same for programs.
        param: The field.
        allowed: What is allowed there.
        nearest: The nearest valid value.
        retry_after_s: Seconds after which it may go better.
        headers: Further headers of the answer.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str,
        param: str | None = None,
        allowed: str | None = None,
        nearest: Any = None,
        retry_after_s: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.allowed = allowed
        self.nearest = nearest
        self.headers = dict(headers or {})
        if retry_after_s is not None:
            self.headers["Retry-After"] = str(max(1, math.ceil(retry_after_s)))
        super().__init__(message)

    def body(self) -> dict[str, Any]:
        """Return the answer's JSON."""
        return error_body(
            self.status, self.message, code=self.code, param=self.param, allowed=self.allowed, nearest=self.nearest
        )


def error_body(
    status: int,
    message: str,
    *,
    code: str,
    param: str | None = None,
    allowed: str | None = None,
    nearest: Any = None,
) -> dict[str, Any]:
    """Return the JSON of an error."""
    kind = _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    error: dict[str, Any] = {"message": message, "type": kind, "param": param, "code": code}
    if allowed is not None:
        error["allowed"] = allowed
    if nearest is not None:
        error["nearest"] = nearest
    return {"error": error}


def api_error(error: Exception) -> ApiError:
    """Return what an error of any kind is to whoever asked; what is not theirs to know stays in the log."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, InputError):
        return ApiError(
            400,
            str(error),
            code="invalid_value",
            param=error.field,
            allowed=error.allowed,
            nearest=error.nearest if isinstance(error.nearest, (str, int, float, bool)) else None,
        )
    if isinstance(error, QueueFullError):
        return ApiError(429, describe_failure(error), code="queue_full", retry_after_s=error.retry_after_s)
    if isinstance(error, CancelledError):
        return ApiError(503, "the request was cancelled before its end", code="cancelled", retry_after_s=5)
    if isinstance(error, SessionError):
        return ApiError(409, describe_failure(error), code="invalid_state")
    if isinstance(error, (ResourceError, StateError)):
        return ApiError(503, describe_failure(error), code="unavailable", retry_after_s=30)
    if isinstance(error, FastVideoError):
        return ApiError(500, describe_failure(error), code="failed")
    return ApiError(500, "the server has a fault; its log has the request's id", code="internal_error")
