"""Reading a trace, and saying exactly where a bad one goes wrong.

The file has a header line `time_s,session_id,event,attributes` and one event a line, in the order of their times.
`event` is arrive, activate, idle or depart. `attributes` is empty or `name=value` pairs joined by `;`, on the arrive
line only: model, state_bytes, slo_s, tenant. A last line `DURATION,,end,` may say when the trace ends.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from dataclasses import dataclass, field
from difflib import get_close_matches
from math import isfinite
from pathlib import Path

import numpy as np

from fastvideo_fleet.errors import TraceError
from fastvideo_fleet.traces.base import EventKind, SessionAttributes, Trace
from fastvideo_fleet.traces.checks import ABSENT, ALLOWED_NEXT, allowed_next, why_not

__all__ = ["HEADER", "TraceProblem", "TraceReader", "find_problems", "parse_trace", "read_trace"]

HEADER = ("time_s", "session_id", "event", "attributes")
MAX_TIME_S = 1e9
MAX_PROBLEMS = 20
"""Most problems that one check tells of."""

_EVENTS = {kind.name.lower(): kind for kind in EventKind}
_NO_ATTRIBUTES = SessionAttributes()


@dataclass(frozen=True, slots=True)
class TraceProblem:
    """What is wrong with one line.

    Attributes:
        line: Number of the line, from 1.
        field: Column.
        value: What stands there.
        message: What is wrong with it.
        allowed: What is allowed.
        nearest: The nearest valid value, if there is one.
    """

    line: int
    field: str
    value: str
    message: str
    allowed: str
    nearest: str | None = None

    def as_error(self, origin: str) -> TraceError:
        """Return the problem as an error of one line."""
        return TraceError(
            f"{origin} line {self.line}: {self.message}",
            field=self.field,
            value=self.value,
            allowed=self.allowed,
            nearest=self.nearest,
        )


@dataclass(slots=True)
class TraceReader:
    """Takes the lines of a trace one by one, and keeps what is wrong with them."""

    problems: list[TraceProblem] = field(default_factory=list)
    _times: list[float] = field(default_factory=list)
    _sessions: list[int] = field(default_factory=list)
    _kinds: list[int] = field(default_factory=list)
    _index: dict[str, int] = field(default_factory=dict)
    _states: list[int] = field(default_factory=list)
    _attributes: list[SessionAttributes] = field(default_factory=list)
    _known_attributes: dict[str, SessionAttributes] = field(default_factory=dict)
    _last_s: float = 0.0
    _end_s: float | None = None

    def add(self, line: int, row: list[str]) -> bool:
        """Take one line, already split into cells.

        Returns:
            Whether it is good; if not, `problems` has one more entry.
        """
        if len(row) not in (3, 4):
            return self._bad(line, "columns", ",".join(row), f"{len(row)} columns", ", ".join(HEADER))
        time_s = self._time(line, row[0])
        if time_s is None:
            return False
        if row[2] == "end":
            return self._end(line, time_s, row)
        kind = _EVENTS.get(row[2])
        if kind is None:
            near = get_close_matches(row[2], _EVENTS, n=1)
            allowed = ", ".join(_EVENTS)
            return self._bad(line, "event", row[2], "no such event", allowed, near[0] if near else None)
        return self._event(line, time_s, kind, row)

    @property
    def num_events(self) -> int:
        """Good events so far."""
        return len(self._times)

    def trace(self, *, duration_s: float | None = None) -> Trace:
        """Return the trace of all good lines."""
        end = max(self._last_s, self._end_s or 0.0, duration_s or 0.0)
        return Trace(
            np.array(self._times, dtype=np.float64),
            np.array(self._sessions, dtype=np.int32),
            np.array(self._kinds, dtype=np.int8),
            tuple(self._index),
            tuple(self._attributes),
            end,
        )

    def _time(self, line: int, text: str) -> float | None:
        try:
            time_s = float(text)
        except ValueError:
            self._bad(line, "time_s", text, "not a number", "seconds from the start of the trace")
            return None
        if not (isfinite(time_s) and 0 <= time_s <= MAX_TIME_S):
            self._bad(line, "time_s", text, "not a time within a trace", f"seconds from 0 to {MAX_TIME_S:g}")
            return None
        if time_s < self._last_s:
            message = "earlier than the line before"
            self._bad(line, "time_s", text, message, f"at least {self._last_s!r}: events in the order of their times")
            return None
        if self._end_s is not None:
            self._bad(line, "event", "after end", "a line after the end of the trace", "nothing after `end`")
            return None
        return time_s

    def _event(self, line: int, time_s: float, kind: EventKind, row: list[str]) -> bool:
        name = row[1]
        index = self._index.get(name)
        state = ABSENT if index is None else self._states[index]
        after = ALLOWED_NEXT[state].get(kind)
        if after is None or not name:
            message = f"{kind.name.lower()} of a session that {why_not(state)}" if name else "no name"
            return self._bad(line, "session_id", name, message, allowed_next(state) if name else "a session's name")
        text = row[3].strip() if len(row) == 4 else ""
        if index is None:
            attributes = self._attributes_of(line, text)
            if attributes is None:
                return False
            index = self._index[name] = len(self._states)
            self._states.append(after)
            self._attributes.append(attributes)
        elif text:
            return self._bad(
                line, "attributes", text, "attributes after the arrival", "attributes on the arrive line only"
            )
        self._states[index] = after
        self._times.append(time_s)
        self._sessions.append(index)
        self._kinds.append(int(kind))
        self._last_s = time_s
        return True

    def _end(self, line: int, time_s: float, row: list[str]) -> bool:
        if row[1] or (len(row) == 4 and row[3].strip()):
            return self._bad(
                line, "event", "end", "the end belongs to no session", "an empty session_id and attributes"
            )
        self._end_s = time_s
        return True

    def _attributes_of(self, line: int, text: str) -> SessionAttributes | None:
        if not text:
            return _NO_ATTRIBUTES
        known = self._known_attributes.get(text)
        if known is None:
            known = self._parse_attributes(line, text)
            if known is not None and len(self._known_attributes) < 10_000:
                self._known_attributes[text] = known
        return known

    def _parse_attributes(self, line: int, text: str) -> SessionAttributes | None:
        values: dict[str, str] = {}
        for part in text.split(";"):
            name, separator, value = part.partition("=")
            name = name.strip()
            if not separator or name not in SessionAttributes.__slots__ or name in values:
                near = get_close_matches(name, SessionAttributes.__slots__, n=1)
                message = "given twice" if name in values else "not an attribute"
                allowed = "name=value pairs joined by `;`, with names " + ", ".join(SessionAttributes.__slots__)
                self._bad(line, "attributes", part, message, allowed, near[0] if near else None)
                return None
            values[name] = value.strip()
        size = self._number(line, "state_bytes", values.get("state_bytes", "0"), is_whole=True)
        slo_s = self._number(line, "slo_s", values.get("slo_s", "0"), is_whole=False)
        if size is None or slo_s is None:
            return None
        return SessionAttributes(values.get("model", ""), int(size), slo_s, values.get("tenant", ""))

    def _number(self, line: int, name: str, text: str, *, is_whole: bool) -> float | None:
        try:
            value = float(int(text)) if is_whole else float(text)
        except (ValueError, OverflowError):
            value = -1.0
        if not isfinite(value) or value < 0:
            allowed = "a whole number of bytes of at least 0" if is_whole else "seconds of at least 0"
            self._bad(line, f"attributes.{name}", text, "not a size" if is_whole else "not a time", allowed)
            return None
        return value

    def _bad(
        self, line: int, field_name: str, value: str, message: str, allowed: str, nearest: str | None = None
    ) -> bool:
        self.problems.append(TraceProblem(line, field_name, value, message, allowed, nearest))
        return False


def read_trace(path: Path, *, duration_s: float | None = None) -> Trace:
    """Read a trace.

    Args:
        path: CSV file.
        duration_s: When the trace ends at the earliest; None takes the file's own end, or its last event.

    Raises:
        TraceError: The first bad line: its number, the field, what it was and what is allowed.
    """
    return parse_trace(_text_of(path), origin=str(path), duration_s=duration_s)


def parse_trace(text: str, *, origin: str, duration_s: float | None = None) -> Trace:
    """Read a trace from its text; like `read_trace`."""
    reader = TraceReader()
    for line, row in _rows(text, origin):
        if not reader.add(line, row):
            raise reader.problems[0].as_error(origin)
    return _not_empty(reader, origin).trace(duration_s=duration_s)


def find_problems(path: Path) -> tuple[list[TraceProblem], Trace]:
    """Check a whole trace.

    Returns:
        The first problems, and the trace of the good lines.

    Raises:
        TraceError: The file cannot be read, has no header or no events.
    """
    reader = TraceReader()
    for line, row in _rows(_text_of(path), str(path)):
        reader.add(line, row)
        if len(reader.problems) >= MAX_PROBLEMS:
            break
    if not reader.problems:
        _not_empty(reader, str(path))
    return reader.problems, reader.trace()


def _not_empty(reader: TraceReader, origin: str) -> TraceReader:
    if reader.num_events == 0:
        raise TraceError(f"{origin} has no events", allowed="at least one line after the header")
    return reader


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"{path} cannot be read as text: {error}", allowed="a CSV file in UTF-8") from error


def _rows(text: str, origin: str) -> Iterable[tuple[int, list[str]]]:
    """Yield line numbers and cells of all lines after the header but empty ones.

    Raises:
        TraceError: There is no header, or a line is no CSV.
    """
    reader = csv.reader(io.StringIO(text), strict=True)
    try:
        header = next(reader, [])
        if tuple(header) != HEADER:
            raise TraceError(
                f"{origin} line 1: not the header of a trace",
                field="header",
                value=",".join(header),
                allowed=",".join(HEADER),
            )
        for row in reader:
            if row:
                yield reader.line_num, row
    except csv.Error as error:
        raise TraceError(f"{origin} line {reader.line_num}: {error}", allowed="comma-separated values") from error
