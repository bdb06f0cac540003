"""What a fleet is made of: kinds of workers, how many there may be, and what moving a session takes."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from fastvideo_fleet.costs.base import ChunkCost, chunk_table
from fastvideo_fleet.costs.calibrations import (
    MIGRATION_S,
    RESUME_S,
    STATE_BYTES,
    SUSPEND_S,
    WORKER_START_S,
    calibration,
)
from fastvideo_fleet.errors import FleetError

__all__ = ["MAX_GPUS", "FleetSpec", "WorkerClass", "calibrated_fleet"]

MAX_GPUS = 65_536
"""Most workers of one fleet; more is taken for a slip of the hand."""


@dataclass(frozen=True, slots=True)
class WorkerClass:
    """Workers that are alike: one kind of GPU that holds one model.

    Attributes:
        name: Name for reports, such as `h20-1.3b`.
        model: Model that its sessions ask for.
        chunk_s: Seconds of a batch of n sessions at index n, for 0 to K; entry 0 is 0.
        max_gpus: Most workers of this class.
        price_per_hour: Dollars for a GPU-hour.
        start_s: Seconds from order to service.
    """

    name: str
    model: str
    chunk_s: tuple[float, ...]
    max_gpus: int
    price_per_hour: float
    start_s: float = WORKER_START_S

    def __post_init__(self) -> None:
        """Refuse what cannot be.

        Raises:
            FleetError: A count below one, a negative price or time.
        """
        if self.max_sessions < 1:
            raise FleetError(
                "a worker that takes no session",
                field="sessions_per_gpu",
                value=self.max_sessions,
                allowed="at least 1",
            )
        if not 1 <= self.max_gpus <= MAX_GPUS:
            raise FleetError(
                "no such fleet", field="max_gpus", value=self.max_gpus, allowed=f"a whole number from 1 to {MAX_GPUS}"
            )
        for field in ("price_per_hour", "start_s"):
            value = getattr(self, field)
            if not isfinite(value) or value < 0:
                raise FleetError("not a price or a time", field=field, value=value, allowed="a number of at least 0")

    @classmethod
    def of(
        cls,
        name: str,
        model: str,
        cost: ChunkCost,
        *,
        max_sessions: int,
        max_gpus: int,
        price_per_hour: float,
        start_s: float = WORKER_START_S,
    ) -> WorkerClass:
        """Build a class from a cost model.

        Raises:
            FleetError: The cost model or a number makes no sense.
        """
        if max_sessions < 1:
            raise FleetError(
                "a worker that takes no session", field="sessions_per_gpu", value=max_sessions, allowed="at least 1"
            )
        return cls(name, model, chunk_table(cost, max_sessions), max_gpus, price_per_hour, start_s)

    @property
    def max_sessions(self) -> int:
        """Most sessions on one worker."""
        return len(self.chunk_s) - 1

    def sessions_within(self, latency_s: float) -> int:
        """Return how many sessions a worker can hold so that a batch takes at most `latency_s`."""
        count = 0
        while count < self.max_sessions and self.chunk_s[count + 1] <= latency_s * (1 + 1e-12):
            count += 1
        return count


@dataclass(frozen=True, slots=True)
class FleetSpec:
    """A fleet.

    Attributes:
        classes: Kinds of workers; several may hold the same model.
        migration_s: Seconds in which a nominal session's state moves between GPUs.
        suspend_s: Seconds in which it moves to the host.
        resume_s: Seconds in which it moves back.
        state_bytes: Bytes of a nominal session.
    """

    classes: tuple[WorkerClass, ...]
    migration_s: float = MIGRATION_S
    suspend_s: float = SUSPEND_S
    resume_s: float = RESUME_S
    state_bytes: int = STATE_BYTES

    def __post_init__(self) -> None:
        """Refuse an empty fleet and negative times.

        Raises:
            FleetError: With what is allowed.
        """
        if not self.classes:
            raise FleetError("a fleet without workers", field="classes", value=(), allowed="at least one class")
        for field in ("migration_s", "suspend_s", "resume_s"):
            value = getattr(self, field)
            if not isfinite(value) or value < 0:
                raise FleetError("not a time", field=field, value=value, allowed="seconds of at least 0")
        if self.state_bytes < 1:
            raise FleetError("not a size", field="state_bytes", value=self.state_bytes, allowed="at least 1 byte")

    @property
    def num_slots(self) -> int:
        """Most workers at a time."""
        return sum(one.max_gpus for one in self.classes)

    @property
    def models(self) -> tuple[str, ...]:
        """Models that some worker can hold, in the order of the classes."""
        return tuple(dict.fromkeys(one.model for one in self.classes))


def calibrated_fleet(name: str, max_gpus: int, *, sessions_per_gpu: int | None = None) -> FleetSpec:
    """Return a fleet of one kind of worker with a fixed calibration.

    Args:
        name: Calibration, such as `h20-1.3b`.
        max_gpus: Most workers.
        sessions_per_gpu: The paper's K; None takes the calibration's.

    Raises:
        FleetError: An unknown calibration, a fleet of none, K below one.
    """
    known = calibration(name)
    count = known.max_sessions if sessions_per_gpu is None else sessions_per_gpu
    worker = WorkerClass.of(
        name, known.model, known.cost, max_sessions=count, max_gpus=max_gpus, price_per_hour=known.price_per_hour
    )
    return FleetSpec((worker,))
