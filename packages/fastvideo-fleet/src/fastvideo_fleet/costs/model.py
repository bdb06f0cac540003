"""The chunk cost from the scheduler's own cost model: one object, read by both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from fastvideo_core.loop.work import BatchKey, StepCost
from fastvideo_fleet.errors import FleetError

__all__ = ["CallPredictor", "ChunkCall", "ModelChunkCost"]


class CallPredictor(Protocol):
    """Predicts the seconds of calls; `fastvideo_core.cost.CostModel` is one."""

    def predict(self, key: BatchKey, cost: StepCost, num_plans: int = 1) -> float:
        """Return the mean seconds of one call with `num_plans` plans."""
        ...


class ChunkCall(NamedTuple):
    """A kind of call that a chunk consists of.

    Attributes:
        key: Batch key of its plans, which sessions on one worker share.
        cost: Cost of one plan.
        num_calls: How many such calls a chunk takes: denoising steps, decoded tiles.
    """

    key: BatchKey
    cost: StepCost
    num_calls: int = 1


class ModelChunkCost:
    """Chunk times from a cost model: the calls of a chunk, each with one plan of every session.

    What the model has learnt since counts at once: nothing is copied.

    Args:
        model: The scheduler's cost model.
        calls: What a chunk consists of.
    """

    def __init__(self, model: CallPredictor, calls: Sequence[ChunkCall]) -> None:
        if not calls:
            raise FleetError("a chunk without calls", field="calls", value=(), allowed="at least one call")
        self.model = model
        self.calls = tuple(calls)

    def chunk_seconds(self, num_sessions: int) -> float:
        """Return the predicted seconds of a batch; never less than that of a smaller one.

        Predictions for sizes that were measured and for those that were not can cross; a larger batch is not faster.
        """
        return max(self._predict(count) for count in range(1, num_sessions + 1))

    def _predict(self, num_sessions: int) -> float:
        return sum(call.num_calls * self.model.predict(call.key, call.cost, num_sessions) for call in self.calls)
