"""Session traces: the CSV format, its checks, the seeded generator."""

from fastvideo_fleet.traces.base import EventKind, SessionAttributes, Trace
from fastvideo_fleet.traces.demand import TRACE_LAW, SessionLaw, active_seconds_per_arrival
from fastvideo_fleet.traces.make import TraceSettings, arrivals_per_second, make_trace
from fastvideo_fleet.traces.read import TraceProblem, find_problems, parse_trace, read_trace
from fastvideo_fleet.traces.show import TraceSummary, summarise
from fastvideo_fleet.traces.write import format_trace

__all__ = [
    "TRACE_LAW",
    "EventKind",
    "SessionAttributes",
    "SessionLaw",
    "Trace",
    "TraceProblem",
    "TraceSettings",
    "TraceSummary",
    "active_seconds_per_arrival",
    "arrivals_per_second",
    "find_problems",
    "format_trace",
    "make_trace",
    "parse_trace",
    "read_trace",
    "summarise",
]
