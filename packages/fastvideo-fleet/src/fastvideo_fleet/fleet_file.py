"""A fleet as a JSON file: the boundary where it is checked."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError, model_validator

from fastvideo_core.card import Contract, Identifier
from fastvideo_fleet.costs.base import LinearChunkCost, TableChunkCost
from fastvideo_fleet.costs.calibrations import MIGRATION_S, RESUME_S, STATE_BYTES, SUSPEND_S, WORKER_START_S
from fastvideo_fleet.errors import FleetError
from fastvideo_fleet.fleet import MAX_GPUS, FleetSpec, WorkerClass

__all__ = ["FleetFile", "WorkerClassFile", "read_fleet"]

Seconds = Annotated[float, Field(ge=0, le=1e6)]


class WorkerClassFile(Contract):
    """One kind of worker.

    Attributes:
        name: Name for reports.
        model: Model that it holds.
        max_gpus: Most workers of this kind.
        price_per_hour: Dollars for a GPU-hour.
        max_sessions: Most sessions on one worker, K.
        chunk_s: Measured seconds of a batch of 1, 2, … sessions; else `base_s` and `per_session_s` give a line.
        base_s: Seconds of a batch without sessions.
        per_session_s: Seconds that each session adds.
        start_s: Seconds from order to service.
    """

    name: Identifier
    model: Identifier
    max_gpus: int = Field(ge=1, le=MAX_GPUS)
    price_per_hour: float = Field(ge=0)
    max_sessions: int = Field(ge=1, le=4096)
    chunk_s: tuple[Seconds, ...] = ()
    base_s: Seconds | None = None
    per_session_s: Seconds | None = None
    start_s: Seconds = WORKER_START_S

    @model_validator(mode="after")
    def _has_one_cost(self) -> WorkerClassFile:
        is_line = self.base_s is not None and self.per_session_s is not None
        if is_line == bool(self.chunk_s):
            raise ValueError("give chunk_s, or base_s with per_session_s, and not both")
        return self

    def build(self) -> WorkerClass:
        """Return the class."""
        cost: LinearChunkCost | TableChunkCost = TableChunkCost(self.chunk_s)
        if self.base_s is not None and self.per_session_s is not None:
            cost = LinearChunkCost(self.base_s, self.per_session_s)
        return WorkerClass.of(
            self.name,
            self.model,
            cost,
            max_sessions=self.max_sessions,
            max_gpus=self.max_gpus,
            price_per_hour=self.price_per_hour,
            start_s=self.start_s,
        )


class FleetFile(Contract):
    """A fleet.

    Attributes:
        classes: Kinds of workers; several may hold the same model.
        migration_s: Seconds in which a nominal session's state moves between GPUs.
        suspend_s: Seconds in which it moves to the host.
        resume_s: Seconds in which it moves back.
        state_bytes: Bytes of a nominal session.
    """

    classes: tuple[WorkerClassFile, ...] = Field(min_length=1)
    migration_s: Seconds = MIGRATION_S
    suspend_s: Seconds = SUSPEND_S
    resume_s: Seconds = RESUME_S
    state_bytes: int = Field(default=STATE_BYTES, ge=1)

    def build(self) -> FleetSpec:
        """Return the fleet."""
        return FleetSpec(
            tuple(one.build() for one in self.classes),
            migration_s=self.migration_s,
            suspend_s=self.suspend_s,
            resume_s=self.resume_s,
            state_bytes=self.state_bytes,
        )


def read_fleet(path: Path) -> FleetSpec:
    """Read a fleet from JSON.

    Raises:
        FleetError: What is wrong, field by field, in one line.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FleetError(f"{path} cannot be read as text: {error}", allowed="a JSON file") from error
    try:
        return FleetFile.model_validate_json(text).build()
    except ValidationError as error:
        parts = [f"{'.'.join(map(str, one['loc'])) or 'fleet'}: {one['msg']}" for one in error.errors()[:8]]
        raise FleetError(f"{path} is not a fleet: {'; '.join(parts)}") from error
