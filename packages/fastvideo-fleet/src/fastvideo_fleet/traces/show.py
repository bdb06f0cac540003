"""What a trace holds, in figures."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fastvideo_fleet.traces.base import EventKind, Trace

__all__ = ["TraceSummary", "summarise"]


@dataclass(frozen=True, slots=True)
class TraceSummary:
    """Figures of a trace.

    Attributes:
        duration_s: Length.
        num_sessions: Sessions.
        num_events: Events.
        mean_active: Mean number of active sessions.
        max_active: Most active sessions at a time.
        median_length_s: Median time from arrival to departure, of the sessions that depart.
        mean_active_spell_s: Mean length of an active spell.
        max_arrivals_per_minute: Most arrivals in one minute of the trace.
        models: Models asked for.
        tenants: Tenants.
    """

    duration_s: float
    num_sessions: int
    num_events: int
    mean_active: float
    max_active: int
    median_length_s: float
    mean_active_spell_s: float
    max_arrivals_per_minute: int
    models: tuple[str, ...]
    tenants: tuple[str, ...]


def summarise(trace: Trace) -> TraceSummary:
    """Return the figures of a trace."""
    arrivals = trace.time_s[trace.kind == EventKind.ARRIVE]
    minutes = np.bincount((arrivals // 60).astype(np.int64)) if len(arrivals) else np.zeros(1, dtype=np.int64)
    lengths, spells = _lengths_and_spells(trace)
    counts = trace.active_counts()
    return TraceSummary(
        duration_s=trace.duration_s,
        num_sessions=trace.num_sessions,
        num_events=trace.num_events,
        mean_active=trace.mean_active(),
        max_active=int(counts.max()) if len(counts) else 0,
        median_length_s=float(np.median(lengths)) if lengths else 0.0,
        mean_active_spell_s=float(np.mean(spells)) if spells else 0.0,
        max_arrivals_per_minute=int(minutes.max()),
        models=tuple(sorted({one.model for one in trace.attributes if one.model})),
        tenants=tuple(sorted({one.tenant for one in trace.attributes if one.tenant})),
    )


def _lengths_and_spells(trace: Trace) -> tuple[list[float], list[float]]:
    arrived: dict[int, float] = {}
    active: dict[int, float] = {}
    lengths, spells = [], []
    for time_s, session, kind in zip(trace.time_s.tolist(), trace.session.tolist(), trace.kind.tolist(), strict=True):
        if kind in (EventKind.ARRIVE, EventKind.ACTIVATE):
            active[session] = time_s
            arrived.setdefault(session, time_s)
            continue
        if session in active:
            spells.append(time_s - active.pop(session))
        if kind == EventKind.DEPART:
            lengths.append(time_s - arrived[session])
    return lengths, spells
