"""Calibrations as JSON: a validated document, and a file around it whose digest tells whether it is whole."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from fastvideo_core.cost.device import DeviceIdentity
from fastvideo_core.cost.line import CallSize, CostLine
from fastvideo_core.cost.table import Group, GroupKey, Level, Point, PointKey
from fastvideo_core.errors import StateError
from fastvideo_core.loop.work import StepCost
from fastvideo_core.request.media.staging import replace_file

__all__ = ["CostDocument", "dump_group", "read_file", "restore_group", "write_file"]

_MAX_FILE_BYTES = 1 << 28
_Figure = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class _Stored(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class StoredPoint(_Stored):
    """Calls of one size; fields as of `StepCost` and `Point`."""

    shape: list[tuple[str, int]]
    num_plans: int = Field(ge=1)
    flops: _Figure
    weight_bytes: _Figure
    activation_bytes: _Figure
    mean_s: _Positive
    num_seen: int = Field(ge=1)
    recent_s: list[_Positive]


class StoredGroup(_Stored):
    """One kind of work; fields as of `Group`."""

    key: GroupKey
    num_seen: int = Field(ge=1)
    ratios: dict[Level, list[_Positive]]
    points: list[StoredPoint]


class CostDocument(_Stored):
    """All calibrations of a device.

    Attributes:
        format: Name and version of this schema.
        device: The device.
        prior: Its prior, once it was needed.
        lines: Lines that were given for some kinds of work.
        groups: What was measured.
    """

    format: Literal["fastvideo-cost/1"] = "fastvideo-cost/1"
    device: DeviceIdentity
    prior: CostLine | None = None
    lines: list[tuple[GroupKey, CostLine]] = Field(default_factory=list)
    groups: list[StoredGroup] = Field(default_factory=list)

    @field_validator("prior", "lines")
    @classmethod
    def _has_no_negative_figures(cls, value: Any) -> Any:
        lines = [value] if isinstance(value, CostLine) else [line for _, line in value or []]
        if any(figure < 0 for line in lines for figure in line):
            raise ValueError("a line has coefficients of at least 0")
        return value

    @classmethod
    def parse(cls, document: Any, *, origin: str) -> CostDocument:
        """Validate a document.

        Args:
            document: Parsed JSON.
            origin: What it is, for the message.

        Raises:
            StateError: It does not fit the schema, or is of another version.
        """
        found = document.get("format") if isinstance(document, Mapping) else None
        if found != "fastvideo-cost/1":
            raise StateError(f"{origin} holds no calibrations: format {found!r}; this version reads 'fastvideo-cost/1'")
        try:
            return cls.model_validate(document)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise StateError(f"{origin} is corrupt: {where}: {first['msg']}") from error


def dump_group(group: Group) -> StoredGroup:
    """Return a kind of work as it is stored."""
    return StoredGroup(
        key=group.key,
        num_seen=group.num_seen,
        ratios={level: list(ratios) for level, ratios in group.ratios.items() if ratios},
        points=[
            StoredPoint(
                shape=list(dims),
                num_plans=key[0],
                flops=key[1],
                weight_bytes=key[2],
                activation_bytes=key[3],
                mean_s=point.mean_s,
                num_seen=point.num_seen,
                recent_s=point.recent_s,
            )
            for dims, key, point in group.entries()
        ],
    )


def restore_group(stored: StoredGroup) -> Group:
    """Return a kind of work as it was."""
    group = Group(stored.key)
    group.num_seen = stored.num_seen
    for item in stored.points:
        cost = StepCost(item.flops, item.weight_bytes, item.activation_bytes)
        key: PointKey = (item.num_plans, item.flops, item.weight_bytes, item.activation_bytes)
        point = Point(CallSize.of(cost, item.num_plans), item.mean_s, item.num_seen, item.recent_s)
        group.restore(tuple(item.shape), key, point)
    for level, ratios in stored.ratios.items():
        group.ratios[level].extend(ratios)
        group.set_margin(level)
    return group


def write_file(path: Path, document: CostDocument) -> None:
    """Write a document with its digest, whole or not at all.

    Raises:
        StateError: The file cannot be written.
    """
    body = document.model_dump(mode="json")
    text = json.dumps({"sha256": _digest(body), "calibrations": body}, allow_nan=False)
    try:
        replace_file(path, text.encode())
    except OSError as error:
        raise StateError(f"calibrations cannot be written to {path}: {error.strerror or error}") from error


def read_file(path: Path) -> CostDocument:
    """Read what `write_file` wrote.

    Raises:
        StateError: It cannot be read, is corrupt, or something else.
    """
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise StateError(f"{path} holds no calibrations: it is larger than {_MAX_FILE_BYTES >> 20} MiB")
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise StateError(f"calibrations cannot be read from {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise StateError(f"{path} is corrupt or holds no calibrations: it is no JSON") from error
    if not isinstance(content, dict) or "calibrations" not in content:
        raise StateError(f"{path} holds no calibrations; it is another kind of file")
    body = content["calibrations"]
    if content.get("sha256") != _digest(body):
        raise StateError(f"{path} is corrupt: its digest differs; delete it, and calibration starts anew")
    return CostDocument.parse(body, origin=str(path))


def _digest(body: Any) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
