"""How wrong the cost model's predictions were."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fastvideo_core.cost.device import DeviceIdentity
from fastvideo_core.cost.table import Group, GroupKey, Level

__all__ = ["CostReport", "ErrorStats", "GroupReport", "make_report"]


@dataclass(frozen=True, slots=True)
class ErrorStats:
    """Relative errors |predicted / measured - 1| of the last predictions, each made before its observation.

    Attributes:
        num_predictions: How many these figures are of.
        median: Their median; None without any.
        p90: What nine of ten stay under; None without any.
    """

    num_predictions: int
    median: float | None
    p90: float | None

    @classmethod
    def of(cls, errors: Sequence[float]) -> ErrorStats:
        """Return the figures of some errors."""
        if not errors:
            return cls(0, None, None)
        ordered = sorted(errors)
        last = len(ordered) - 1
        return cls(len(ordered), ordered[last // 2], ordered[round(0.9 * last)])


@dataclass(frozen=True, slots=True)
class GroupReport:
    """Errors of one kind of work.

    Attributes:
        key: The kind.
        num_observations: Calls that were measured, over all runs.
        num_sizes: Different sizes of calls that are remembered.
        errors: Over all predictions.
        by_level: By what the prediction stood on: `seen`, `fitted`, `device`, `prior`.
    """

    key: GroupKey
    num_observations: int
    num_sizes: int
    errors: ErrorStats
    by_level: dict[str, ErrorStats]


@dataclass(frozen=True, slots=True)
class CostReport:
    """Errors of a cost model.

    Attributes:
        device: The device.
        num_observations: Calls that were measured, over all runs.
        errors: Over all kinds of work.
        groups: By kind of work.
    """

    device: DeviceIdentity
    num_observations: int
    errors: ErrorStats
    groups: tuple[GroupReport, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the report as values that JSON can hold, keys by the names of their fields."""
        document = asdict(self)
        document["device"] = self.device._asdict()
        document["groups"] = [{**asdict(group), "key": group.key._asdict()} for group in self.groups]
        return document


def make_report(device: DeviceIdentity, groups: Iterable[Group]) -> CostReport:
    """Return the report of some kinds of work."""
    measured = [group for group in tuple(groups) if group.num_seen]
    errors = [error for group in measured for error in _errors(group, *Level)]
    return CostReport(
        device=device,
        num_observations=sum(group.num_seen for group in measured),
        errors=ErrorStats.of(errors),
        groups=tuple(_report_group(group) for group in measured),
    )


def _report_group(group: Group) -> GroupReport:
    return GroupReport(
        key=group.key,
        num_observations=group.num_seen,
        num_sizes=group.num_points,
        errors=ErrorStats.of(_errors(group, *Level)),
        by_level={str(level): ErrorStats.of(_errors(group, level)) for level in Level if group.ratios[level]},
    )


def _errors(group: Group, *levels: Level) -> list[float]:
    # A copy of each: reports are asked for from other threads, while measurements come in.
    return [abs(1.0 / ratio - 1.0) for level in levels for ratio in tuple(group.ratios[level])]
