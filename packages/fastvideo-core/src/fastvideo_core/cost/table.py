"""What was measured of one kind of work: typical seconds of each size of call, and the curves through them."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import NamedTuple

from fastvideo_core.cost.line import Anchor, CallSize, CostLine, MonotoneMap, fit_line
from fastvideo_core.loop.work import BatchKey

__all__ = ["Estimate", "Group", "GroupKey", "Level", "Point", "PointKey", "ShapeTable"]

PointKey = tuple[int, float, float, float]
"""Number of plans, and the three figures of the cost of one."""

MAX_POINTS = 256
"""Sizes of calls that a group remembers; the one not seen for longest goes first."""
_MAX_FIT = 48
_WINDOW = 7
_OUTLIER = 1.5
_SLOWEST_DECAY = 1 / 32
# Predictions for sizes that were not seen stand while the means that they were made from move by less.
_STEADY = 0.03
_NUM_RATIOS = 64


class Level(StrEnum):
    """What a prediction stands on, best first."""

    SEEN = "seen"
    FITTED = "fitted"
    DEVICE = "device"
    PRIOR = "prior"


DEFAULT_MARGIN = {Level.SEEN: 1.25, Level.FITTED: 1.5, Level.DEVICE: 2.0, Level.PRIOR: 3.0}
"""How far above the mean the upper figure lies while errors of that level have not been measured."""
_MIN_RATIOS = 8
_QUANTILE = 0.9


class GroupKey(NamedTuple):
    """A kind of work that one line describes: all of a batch key that decides speed, but the shape."""

    instance_id: str
    component: str
    loop_kind: str
    precision: str
    variant: str = ""
    profile: str = "serve"
    parallel_plan: str = ""
    graph_key: str = ""

    @classmethod
    def of(cls, key: BatchKey) -> GroupKey:
        """Return the kind of work that a batch key belongs to; weights and adapters do not change its speed."""
        return cls(
            key.instance_id,
            key.component,
            key.loop_kind,
            key.precision,
            key.variant,
            key.profile,
            key.parallel_plan,
            key.graph_key,
        )


class Estimate(NamedTuple):
    """A prediction.

    Attributes:
        seconds: The mean.
        level: What it stands on.
    """

    seconds: float
    level: Level


class Point:
    """Calls of one size: a decaying mean that single slow calls do not move.

    Attributes:
        size: The size.
        mean_s: Typical seconds.
        num_seen: Measurements.
        recent_s: The last of them.
    """

    __slots__ = ("mean_s", "num_seen", "recent_s", "size")

    def __init__(self, size: CallSize, mean_s: float, num_seen: int, recent_s: Sequence[float]) -> None:
        self.size = size
        self.mean_s = mean_s
        self.num_seen = num_seen
        self.recent_s = list(recent_s)

    def add(self, seconds: float) -> None:
        """Take a measurement in."""
        recent = self.recent_s
        recent.append(seconds)
        if len(recent) > _WINDOW:
            del recent[0]
        self.num_seen += 1
        ordered = sorted(recent)
        # Of two that differ much the first was cold: pages faulted in, kernels were chosen.
        middle = ordered[(len(ordered) - 1) // 2]
        low, high = middle / _OUTLIER, middle * _OUTLIER
        if not low <= self.mean_s <= high:
            # Most of the last calls say otherwise: the first ones were cold, or the machine has changed.
            self.mean_s = middle
            return
        share = max(1.0 / self.num_seen, _SLOWEST_DECAY)
        self.mean_s += share * ((seconds if low <= seconds <= high else middle) - self.mean_s)

    def anchor(self) -> Anchor:
        """Return it for a fit; a single measurement counts less than several."""
        return Anchor(self.size, self.mean_s, self.num_seen / (self.num_seen + 2.0))


class ShapeTable:
    """Calls of one shape.

    Attributes:
        group: The kind of work.
        points: What was measured, by size.
        memo: Predictions for sizes that were not, until something changes.
    """

    __slots__ = ("_anchored", "_curve", "group", "memo", "points")

    def __init__(self, group: Group) -> None:
        self.group = group
        self.points: dict[PointKey, Point] = {}
        self.memo: dict[PointKey, Estimate] = {}
        self._curve: MonotoneMap | None = None
        self._anchored: dict[PointKey, float] = {}

    def forget(self) -> None:
        """Drop what was derived from measurements."""
        self.memo.clear()
        self._curve = None

    def note(self, key: PointKey, mean_s: float) -> None:
        """Say that a point has a new mean; what stands on it is kept while the mean has hardly moved."""
        known = self._anchored.get(key)
        if known is None or abs(mean_s - known) > _STEADY * known:
            self.forget()

    def curve(self) -> MonotoneMap:
        """Return the curve through this shape's points, from what the group's curve says."""
        if self._curve is None:
            self._anchored = {key: point.mean_s for key, point in self.points.items()}
            self._curve = MonotoneMap([_knot(self.group.typical, point) for point in self.points.values()])
        return self._curve


class Group:
    """One kind of work: its points, the line and the curve through them, and how wrong predictions were.

    Args:
        key: The kind of work.

    Attributes:
        shapes: Tables by the dimensions of the shape.
        num_seen: Measurements.
        ratios: Measured over predicted seconds of the last predictions, by what they stood on.
        margins: Factor from the mean to the upper figure, by what the mean stands on.
        is_stale: Whether measurements came since the last fit that it should see.
        start: What is assumed before any call was measured, and what that stands on; None until it is asked for.
    """

    __slots__ = (
        "_curve",
        "_line",
        "_order",
        "_since_fit",
        "is_stale",
        "key",
        "margins",
        "num_seen",
        "ratios",
        "shapes",
        "start",
    )

    def __init__(self, key: GroupKey) -> None:
        self.key = key
        self.shapes: dict[tuple[tuple[str, int], ...], ShapeTable] = {}
        self.num_seen = 0
        self.ratios: dict[Level, deque[float]] = {level: deque(maxlen=_NUM_RATIOS) for level in Level}
        self.margins: dict[Level, float] = dict(DEFAULT_MARGIN)
        self.is_stale = False
        self.start: tuple[CostLine, Level] | None = None
        self._since_fit = 0
        self._order: OrderedDict[Point, tuple[tuple[tuple[str, int], ...], PointKey]] = OrderedDict()
        self._line: CostLine | None = None
        self._curve = MonotoneMap([])

    @property
    def num_points(self) -> int:
        """Sizes of calls that are remembered."""
        return len(self._order)

    def shape(self, dims: tuple[tuple[str, int], ...]) -> ShapeTable:
        """Return the table of a shape, made if there is none."""
        table = self.shapes.get(dims)
        if table is None:
            table = self.shapes[dims] = ShapeTable(self)
        return table

    def restore(self, dims: tuple[tuple[str, int], ...], key: PointKey, point: Point) -> None:
        """Put a point in that was measured before."""
        self.shape(dims).points[key] = point
        self._order[point] = (dims, key)
        self.is_stale = True

    def new_point(self, table: ShapeTable, dims: tuple[tuple[str, int], ...], key: PointKey, size: CallSize) -> Point:
        """Put a point in that will be measured now; the one not measured for longest may have to go."""
        if len(self._order) >= MAX_POINTS:
            _, (old_dims, old_key) = self._order.popitem(last=False)
            del self.shapes[old_dims].points[old_key]
            self.shapes[old_dims].forget()
        table.points[key] = point = Point(size, 0.0, 0, ())
        self._order[point] = (dims, key)
        return point

    def add(self, table: ShapeTable, key: PointKey, point: Point, seconds: float) -> None:
        """Take a measurement in."""
        point.add(seconds)
        self._order.move_to_end(point)
        table.note(key, point.mean_s)
        self.num_seen += 1
        self._since_fit += 1
        # At first after every measurement, then ever more seldom: what is seen has its own mean anyway.
        self.is_stale = self._line is None or self._since_fit * 4 >= min(self.num_seen, 4 * MAX_POINTS)

    def note_ratio(self, level: Level, ratio: float) -> None:
        """Take in how wrong a prediction was."""
        ratios = self.ratios[level]
        ratios.append(ratio)
        if len(ratios) < _NUM_RATIOS or self.num_seen % 16 == 0:
            self.set_margin(level)

    def set_margin(self, level: Level) -> None:
        """Set the margin of a level from the errors of its predictions."""
        ratios = sorted(self.ratios[level])
        if len(ratios) >= _MIN_RATIOS:
            self.margins[level] = max(1.0, ratios[int(_QUANTILE * (len(ratios) - 1) + 0.5)])

    def fit(self, prior: CostLine) -> None:
        """Fit line and curve to the points."""
        anchors = self.anchors(_MAX_FIT)
        self._line = line = fit_line(anchors, prior)
        self._curve = MonotoneMap([(line.seconds(size), seconds, weight) for size, seconds, weight in anchors])
        self._since_fit = 0
        self.is_stale = False
        self.forget()

    def forget(self) -> None:
        """Drop what was derived from the line, and what was assumed without one."""
        self.start = None
        for table in self.shapes.values():
            table.forget()

    def typical(self, size: CallSize) -> float:
        """Return what a call of some size takes over all shapes; `fit` comes first."""
        assert self._line is not None
        return self._curve(self._line.seconds(size))

    def anchors(self, max_anchors: int) -> list[Anchor]:
        """Return the points for a fit, evenly over the sizes where there are many."""
        ordered = sorted((point.anchor() for point in self._order), key=lambda anchor: anchor.size[::-1])
        if len(ordered) <= max_anchors:
            return ordered
        step = (len(ordered) - 1) / (max_anchors - 1)
        return [ordered[round(index * step)] for index in range(max_anchors)]

    def drop_empty(self) -> None:
        """Forget shapes of which no call was measured."""
        self.shapes = {dims: table for dims, table in self.shapes.items() if table.points}

    def entries(self) -> Iterable[tuple[tuple[tuple[str, int], ...], PointKey, Point]]:
        """Yield all points, the longest unseen first."""
        for point, (dims, key) in self._order.items():
            yield dims, key, point


def _knot(typical: Callable[[CallSize], float], point: Point) -> tuple[float, float, float]:
    _, seconds, weight = point.anchor()
    return typical(point.size), seconds, weight
