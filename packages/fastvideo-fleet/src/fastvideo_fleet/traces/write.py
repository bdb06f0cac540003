"""Writing a trace as CSV: times to the microsecond, what a reader reads back."""

from __future__ import annotations

import csv
import io

from fastvideo_fleet.traces.base import EventKind, SessionAttributes, Trace
from fastvideo_fleet.traces.read import HEADER

__all__ = ["format_trace"]


def format_trace(trace: Trace) -> str:
    """Return a trace as CSV text."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(HEADER)
    names = {int(kind): kind.name.lower() for kind in EventKind}
    rows = zip(trace.time_s.tolist(), trace.session.tolist(), trace.kind.tolist(), strict=True)
    for time_s, session, kind in rows:
        text = _attributes_text(trace.attributes[session]) if kind == EventKind.ARRIVE else ""
        writer.writerow((repr(time_s), trace.ids[session], names[kind], text))
    writer.writerow((repr(trace.duration_s), "", "end", ""))
    return out.getvalue()


def _attributes_text(attributes: SessionAttributes) -> str:
    parts = {name: getattr(attributes, name) for name in SessionAttributes.__slots__}
    return ";".join(f"{name}={value}" for name, value in parts.items() if value)
