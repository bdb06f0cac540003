"""The cost model: device-seconds of a call from its batch key, the cost of a step and the number of plans.

One object serves the scheduler, admission and whoever places work on several devices. It is used from one thread;
only `report` may be asked for from others.

How a prediction is made, best first: the decaying mean of calls of the very size; a curve through the sizes seen of
the same shape; a line, bent to what was seen, of the same kind of work; a line of similar kinds; the device's prior.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from fastvideo_core.cost.device import DeviceIdentity, probe_device, this_device
from fastvideo_core.cost.line import STATED_PRIOR, CallSize, CostLine, fit_line
from fastvideo_core.cost.report import CostReport, make_report
from fastvideo_core.cost.store import CostDocument, dump_group, read_file, restore_group, write_file
from fastvideo_core.cost.table import Estimate, Group, GroupKey, Level, PointKey, ShapeTable
from fastvideo_core.errors import ParameterError, StateError
from fastvideo_core.loop.work import BatchKey, StepCost

__all__ = ["CostModel"]

_MAX_KEYS = 4096
_MAX_SIMILAR = 16


class CostModel:
    """Predicts the device-seconds of calls and learns from measured ones.

    Args:
        device: What the figures are for.
        prior: Line to start from, or a function that measures one when it is first needed.
        lines: Lines that are known beforehand for some kinds of work, for instance for a simulation.

    Attributes:
        device: What the figures are for.
    """

    def __init__(
        self,
        device: DeviceIdentity,
        *,
        prior: CostLine | Callable[[], CostLine] = STATED_PRIOR,
        lines: Mapping[GroupKey, CostLine] | None = None,
    ) -> None:
        self.device = device
        self._prior = prior
        self._lines = dict(lines or {})
        self._groups: dict[GroupKey, Group] = {}
        self._by_key: dict[BatchKey, ShapeTable] = {}

    @classmethod
    def for_device(cls, device: str = "cpu", path: Path | None = None) -> CostModel:
        """Make the model of a device of this machine, with the calibrations of a file if it is there.

        Args:
            device: As torch names it.
            path: A file that `save` has written, or will.

        Raises:
            StateError: The file is corrupt, or of another device.
        """

        def prior() -> CostLine:
            return probe_device(device)

        identity = this_device(device)
        if path is None or not path.exists():
            return cls(identity, prior=prior)
        return cls.load(path, device=identity, prior=prior)

    def predict(self, key: BatchKey, cost: StepCost, num_plans: int = 1) -> float:
        """Return the mean seconds of one call.

        Args:
            key: Batch key of its plans.
            cost: Cost of one of them; of unequal ones, their `mean_cost`.
            num_plans: How many there are, at least 1.

        Raises:
            ParameterError: A figure of the cost, or the number, makes no sense.
        """
        table = self._by_key.get(key)
        if table is not None:
            size = (num_plans, cost.flops, cost.weight_bytes, cost.activation_bytes)
            point = table.points.get(size)
            if point is not None:
                return point.mean_s
            found = table.memo.get(size)
            if found is not None and not table.group.is_stale:
                return found.seconds
        return self._estimate(key, cost, num_plans).seconds

    def predict_conservative(self, key: BatchKey, cost: StepCost, num_plans: int = 1) -> float:
        """Return a figure that nine of ten calls stay under, as far as errors are known; arguments as of `predict`."""
        table = self._by_key.get(key)
        if table is not None:
            point = table.points.get((num_plans, cost.flops, cost.weight_bytes, cost.activation_bytes))
            if point is not None:
                return point.mean_s * table.group.margins[Level.SEEN]
        seconds, level = self._estimate(key, cost, num_plans)
        return seconds * self._by_key[key].group.margins[level]

    def observe(self, key: BatchKey, cost: StepCost, num_plans: int, seconds: float) -> None:
        """Learn from a call that was measured; arguments as of `predict`.

        Args:
            key: Batch key of its plans.
            cost: Cost of one of them.
            num_plans: How many there were.
            seconds: Device-seconds that it took, above 0.

        Raises:
            ParameterError: A figure makes no sense.
        """
        if not 0.0 < seconds < math.inf:
            raise ParameterError("not a time that a call takes", field="seconds", value=seconds, allowed="above 0")
        size = (num_plans, cost.flops, cost.weight_bytes, cost.activation_bytes)
        table = self._by_key.get(key)
        if table is None:
            table = self._enter(key)
        group, point = table.group, table.points.get(size)
        if point is not None:
            group.note_ratio(Level.SEEN, seconds / point.mean_s)
            group.add(table, size, point, seconds)
            return
        predicted, level = self._estimate(key, cost, num_plans)
        if predicted > 0.0:
            group.note_ratio(level, seconds / predicted)
        is_first = not group.num_points
        group.add(table, size, group.new_point(table, key.shape_sig.dims, size, CallSize.of(cost, num_plans)), seconds)
        if is_first:
            self._forget_guesses()

    def report(self) -> CostReport:
        """Return how wrong the predictions were that were made before each observation."""
        return make_report(self.device, self._groups.values())

    def save(self, path: Path) -> None:
        """Write all calibrations to a file, whole or not at all, in place of what was there.

        Raises:
            StateError: It cannot be written.
        """
        write_file(path, self._document())

    @classmethod
    def load(
        cls,
        path: Path,
        *,
        device: DeviceIdentity | None = None,
        prior: CostLine | Callable[[], CostLine] = STATED_PRIOR,
    ) -> CostModel:
        """Read what `save` wrote.

        Args:
            path: The file.
            device: The device that it must be of; None takes any, as a fleet does.
            prior: As of the constructor, for a file that has none.

        Raises:
            StateError: It cannot be read, is corrupt or no such file, or is of another device.
        """
        model = cls._restored(read_file(path), prior)
        if device is not None and model.device != device:
            raise StateError(f"{path} has calibrations of {model.device}; this is {device}: give another file")
        return model

    def to_json(self) -> dict[str, Any]:
        """Return all calibrations as values that JSON can hold."""
        return self._document().model_dump(mode="json")

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> CostModel:
        """Make a model of what `to_json` gave.

        Raises:
            StateError: It is something else.
        """
        return cls._restored(CostDocument.parse(document, origin="the document"), STATED_PRIOR)

    def _estimate(self, key: BatchKey, cost: StepCost, num_plans: int) -> Estimate:
        table = self._by_key.get(key)
        if table is None:
            table = self._enter(key)
        group = table.group
        point: PointKey = (num_plans, cost.flops, cost.weight_bytes, cost.activation_bytes)
        seen = table.points.get(point)
        if seen is not None:
            return Estimate(seen.mean_s, Level.SEEN)
        if group.is_stale:
            self._fit(group)
        found = table.memo.get(point)
        if found is None:
            _check(cost, num_plans)
            found = self._guess(table, CallSize.of(cost, num_plans))
            if len(table.memo) >= _MAX_KEYS:
                table.memo.clear()
            table.memo[point] = found
        return found

    def _guess(self, table: ShapeTable, size: CallSize) -> Estimate:
        group = table.group
        if group.num_points:
            typical = group.typical(size)
            return Estimate(table.curve()(typical) if table.points else typical, Level.FITTED)
        if group.start is None:
            group.start = self._start_line(group.key)
        line, level = group.start
        return Estimate(line.seconds(size), level)

    def _start_line(self, key: GroupKey) -> tuple[CostLine, Level]:
        """Return what is assumed of a kind of work before any call of it."""
        if key in self._lines:
            return self._lines[key], Level.FITTED
        similar = self._similar(key)
        anchors = [anchor for group in similar for anchor in group.anchors(_MAX_SIMILAR)]
        return fit_line(anchors, self._device_prior()), Level.DEVICE if similar else Level.PRIOR

    def _similar(self, key: GroupKey) -> list[Group]:
        """Return the measured kinds of work that have most in common with one, the likest only."""
        ranked = [(_likeness(other, key), group) for other, group in self._groups.items() if group.num_points]
        ranked = [(likeness, group) for likeness, group in ranked if group.key != key]
        best = max((likeness for likeness, _ in ranked), default=0)
        return [group for likeness, group in ranked if likeness == best]

    def _device_prior(self) -> CostLine:
        if not isinstance(self._prior, CostLine):
            self._prior = self._prior()
        return self._prior

    def _fit(self, group: Group) -> None:
        group.fit(self._start_line(group.key)[0])
        self._forget_guesses()

    def _forget_guesses(self) -> None:
        """Drop predictions for kinds of work without measurements: what they stood on has changed."""
        for group in self._groups.values():
            if not group.num_points:
                group.forget()

    def _enter(self, key: BatchKey) -> ShapeTable:
        """Find, or make, the table of a batch key."""
        if len(self._by_key) >= _MAX_KEYS:
            self._drop_unused()
        group_key = GroupKey.of(key)
        group = self._groups.get(group_key)
        if group is None:
            group = self._groups[group_key] = Group(group_key)
        table = self._by_key[key] = group.shape(key.shape_sig.dims)
        return table

    def _drop_unused(self) -> None:
        # New weights make new keys: without this a long training run would fill the table.
        self._by_key.clear()
        for group in self._groups.values():
            group.drop_empty()

    def _document(self) -> CostDocument:
        # What is read again is fitted anew: fit here too, so that both predict the same.
        for group in self._groups.values():
            if group.num_points:
                self._fit(group)
                for level in Level:
                    group.set_margin(level)
        return CostDocument(
            device=self.device,
            prior=self._prior if isinstance(self._prior, CostLine) else None,
            lines=[(key, line) for key, line in self._lines.items()],
            groups=[dump_group(group) for group in self._groups.values() if group.num_points],
        )

    @classmethod
    def _restored(cls, document: CostDocument, prior: CostLine | Callable[[], CostLine]) -> CostModel:
        model = cls(document.device, prior=document.prior or prior, lines=dict(document.lines))
        for stored in document.groups:
            group = restore_group(stored)
            model._groups[group.key] = group
        return model

    def groups(self) -> Iterable[GroupKey]:
        """Yield the kinds of work that were measured."""
        return (key for key, group in self._groups.items() if group.num_points)


def _check(cost: StepCost, num_plans: int) -> None:
    if num_plans < 1:
        raise ParameterError("a call has at least one plan", field="num_plans", value=num_plans, allowed="1 or more")
    for name in ("flops", "weight_bytes", "activation_bytes"):
        value = getattr(cost, name)
        if not 0.0 <= value < math.inf:
            raise ParameterError("not a figure of a cost", field=f"cost.{name}", value=value, allowed="0 or more")


def _likeness(one: GroupKey, other: GroupKey) -> int:
    """Return how much two kinds of work have in common; the component of the same model counts most."""
    is_same_part = one.component == other.component and one.loop_kind == other.loop_kind
    is_same_model = one.instance_id == other.instance_id
    rest = sum(a == b for a, b in zip(one[3:], other[3:], strict=True))
    return 100 * is_same_part + 10 * (is_same_part and is_same_model) + (rest if is_same_part else 0)
