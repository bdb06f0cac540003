"""What is kept of a job for as long as it is listed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Self

__all__ = ["ANYBODY", "JobRecord", "JobStatus"]

ANYBODY = "anybody"
"""Owner of the jobs of a server without keys."""

JobStatus = Literal["accepting", "queued", "completed", "failed", "deleted"]
"""`accepting` is promised to nobody yet; `deleted` stays only so that its idempotency key makes no second one."""


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job. What changes while it runs is not here: see `live.LiveJob`.

    Attributes:
        job_id: Its id.
        owner: Name of the key that made it.
        status: How far it has come for good.
        created_at: When it was accepted, seconds since the epoch.
        model: The card.
        task: Its task.
        prompt: What to show.
        size: Width and height, `64x64`.
        seconds: Length, `2`.
        parameters: Every resolved parameter, with who set it.
        asked: Parameters that were given to a task that a plugin offers.
        weights: Key of the changes of weights that it runs under; None for the card's own weights.
        warnings: What was allowed and yet may not give what was asked for.
        latency_class: How urgent it is.
        idempotency_key: What makes a repeated creation find this job; None if there is none.
        body_sha256: Digest of what was asked for, so that a key is not used for something else.
        run: How many processes have worked on it.
        completed_at: When it ended; None while it has not.
        error_code: Why it failed, for programs.
        error_message: Why it failed.
    """

    job_id: str
    owner: str
    status: JobStatus
    created_at: float
    model: str
    task: str
    prompt: str
    size: str
    seconds: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    asked: Mapping[str, Any] = field(default_factory=dict)
    weights: str | None = None
    warnings: tuple[str, ...] = ()
    latency_class: str = "standard"
    idempotency_key: str | None = None
    body_sha256: str | None = None
    run: int = 0
    completed_at: float | None = None
    error_code: str | None = None
    error_message: str | None = None

    @property
    def is_final(self) -> bool:
        """Whether it has ended."""
        return self.status in ("completed", "failed", "deleted")

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {**asdict(self), "warnings": list(self.warnings)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Read what `to_json` gave."""
        return cls(**{**data, "warnings": tuple(data["warnings"])})
