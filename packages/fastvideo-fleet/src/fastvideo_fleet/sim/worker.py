"""One worker's batches, run lazily: equal batches are counted, not stepped through.

A worker makes one chunk for each of its sessions in a coalesced batch, and begins the next batch at once. Sessions
come and go only at the boundary between two batches. A session that leaves while a batch is in flight still gets that
chunk.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

from fastvideo_fleet.control.view import EMPTY_PERIOD_S, FleetView, SessionView
from fastvideo_fleet.sim.latencies import Latencies

__all__ = ["Worker"]


@dataclass(slots=True)
class _Joiner:
    ready_s: float
    session: SessionView


class _First(NamedTuple):
    """A session's first chunk on a worker: what it waited for, noted before anything else happens to the session."""

    session: SessionView
    since_s: float
    queued_s: float


class Worker:
    """The batches of one slot.

    Attributes:
        slot: Its slot.
        boundary_s: When the batch in flight ends.
        num_in_flight: Chunks of the batch in flight; 0 if there is none.
        num_batches: Batches begun.
    """

    __slots__ = (
        "_class", "_departed", "_first_batch", "_fresh", "_joiners", "_latencies", "_limits", "_table", "_view",
        "boundary_s", "num_batches", "num_in_flight", "slot",
    )  # fmt: skip

    def __init__(self, slot: int, view: FleetView, latencies: Latencies) -> None:
        self.slot = slot
        self.boundary_s = 0.0
        self.num_in_flight = 0
        self.num_batches = 0
        self._class = int(view.class_of[slot])
        self._table = view.spec.classes[self._class].chunk_s
        self._view = view
        self._latencies = latencies
        self._first_batch: dict[int, int] = {}
        """Members, with the number of the first batch that each was in."""
        self._joiners: list[_Joiner] = []
        self._fresh: list[_First] = []
        """First chunks that are in flight."""
        self._departed: list[SessionView] = []
        """Sessions that left during the batch in flight, which makes their last chunk."""
        self._limits: dict[float, int] = {}
        """Members by the most seconds that a chunk of theirs should take."""

    def advance(self, now_s: float, *, is_last: bool = False) -> None:
        """Run all batches that end before `now_s`, and begin the one that is then in flight.

        What ends or begins just then is left for later, so that all who come at one moment share a batch.

        Args:
            now_s: The time.
            is_last: Whether everything of this moment has happened, so that what ends or begins just then may.
        """
        while True:
            if self.num_in_flight:
                due = self.boundary_s
            elif self._joiners:
                due = min(joiner.ready_s for joiner in self._joiners)
            else:
                return
            if due > now_s or (due == now_s and not is_last):
                return
            if self.num_in_flight:
                self._finish(now_s)
            else:
                self._begin(due)

    def join(self, session: SessionView, ready_s: float) -> None:
        """Let a session join at the first boundary at or after `ready_s`; `since_s` says from when its chunk counts."""
        self._joiners.append(_Joiner(ready_s, session))
        self._tell(min(joiner.ready_s for joiner in self._joiners))

    def leave(self, session: SessionView) -> float:
        """Take a session off; the worker must have been advanced to the present.

        Returns:
            When its state is free to move: at the end of the batch in flight if it is in it.
        """
        first = self._first_batch.pop(session.index, None)
        if first is None:
            ready_s = next(joiner.ready_s for joiner in self._joiners if joiner.session is session)
            self._joiners = [joiner for joiner in self._joiners if joiner.session is not session]
            self._tell(self._view.now_s)
            return max(ready_s, self._view.now_s)  # its state may still be on the way here
        session.is_running = False
        self._limits[session.slo_s] -= 1
        session.num_chunks += self.num_batches - first + 1
        self._departed.append(session)
        self._tell(self.boundary_s)
        return self.boundary_s

    def unclear_after_s(self) -> float | None:
        """Return after when what the view shows is wrong: when a batch begins that not all joiners are ready for."""
        if not self._joiners:
            return None
        if self.num_in_flight == 0:
            return min(joiner.ready_s for joiner in self._joiners)
        return self.boundary_s if any(joiner.ready_s > self.boundary_s for joiner in self._joiners) else None

    def is_member(self, session: int) -> bool:
        """Say whether a session is in the batches, rather than about to join."""
        return session in self._first_batch

    def fail(self) -> tuple[float, list[SessionView], list[SessionView]]:
        """Lose the batch in flight, and all sessions.

        Returns:
            When the lost batch began, the sessions that were in it or about to join, and those that had left but whose
            last chunk was in it.
        """
        began = self.boundary_s - self._table[self.num_in_flight] if self.num_in_flight else self._view.now_s
        sessions = self._view.sessions
        stranded = [joiner.session for joiner in self._joiners]
        for index, first in self._first_batch.items():
            sessions[index].num_chunks += self.num_batches - first
            sessions[index].is_running = False
            stranded.append(sessions[index])
        if self.num_in_flight:
            fresh = {first.session.index for first in self._fresh}
            for index in self._first_batch.keys() - fresh:
                # The chunk is made again, and counts from when this one began; a first one from when it was asked for.
                sessions[index].since_s = began
        departed = [session for session in self._departed if self.num_in_flight]
        for session in departed:
            session.num_chunks -= 1
        self._first_batch, self._joiners, self._fresh, self._departed = {}, [], [], []
        self._limits = {}
        self.num_in_flight = 0
        self._tell(self._view.now_s)
        return began, stranded, departed

    def rejoin(self, session: SessionView, ready_s: float) -> None:
        """Change when a session that is about to join is ready."""
        for joiner in self._joiners:
            if joiner.session is session:
                joiner.ready_s = ready_s

    def run_out(self) -> None:
        """Finish the batch in flight when nobody is left for another."""
        if self.num_in_flight:
            self._finish(self.boundary_s)

    def _begin(self, start: float) -> None:
        if self._joiners:
            self._admit(start)
        count = len(self._first_batch)
        self.num_in_flight = count
        if count:
            self.num_batches += 1
            self.boundary_s = start + self._table[count]
        self._tell(self.boundary_s)

    def _admit(self, start: float) -> None:
        later = []
        for joiner in self._joiners:
            if joiner.ready_s > start:
                later.append(joiner)
                continue
            session = joiner.session
            session.is_running = True
            self._first_batch[session.index] = self.num_batches + 1
            self._limits[session.slo_s] = self._limits.get(session.slo_s, 0) + 1
            queued_s = max(session.seated_s - session.since_s, 0.0)
            self._fresh.append(_First(session, session.since_s, queued_s))
        self._joiners = later

    def _finish(self, now_s: float) -> None:
        end, count = self.boundary_s, self.num_in_flight
        self._record(end, count)
        members = len(self._first_batch)
        if members and not self._joiners:
            # Nothing changes until now: all whole batches in between are alike.
            length = self._table[members]
            whole = max(ceil((now_s - end) / length) - 1, 0)
            if whole:
                self._record_alike(whole, members, length)
                self.num_batches += whole
                end += whole * length
        self.num_in_flight = 0
        if members or self._joiners:
            self._begin(end)
        else:
            self._tell(end)

    def _record(self, end: float, count: int) -> None:
        latencies, length = self._latencies, self._table[count]
        steady = count
        for session, since_s, queued_s in self._fresh:
            latencies.add_first(end - since_s, end, session.slo_s)
            latencies.add_queued(queued_s + length)
            steady -= 1
        latencies.steady[self._class][count] += steady
        late = sum(members for limit, members in self._limits.items() if length > limit)
        late += sum(1 for session in self._departed if length > session.slo_s)
        # `add_first` has judged the fresh ones, which are among the members or the departed.
        late -= sum(1 for first in self._fresh if length > first.session.slo_s)
        latencies.num_violations += late
        self._fresh = []
        self._departed = []

    def _record_alike(self, whole: int, members: int, length: float) -> None:
        self._latencies.steady[self._class][members] += whole * members
        for limit, count in self._limits.items():
            if length > limit:
                self._latencies.num_violations += whole * count

    def _tell(self, boundary_s: float) -> None:
        """Show the policies when batches end, and how long the next ones take."""
        view, slot = self._view, self.slot
        count = len(self._first_batch) + len(self._joiners)
        view.set_count(slot, count)
        view.boundary_s[slot] = boundary_s if self.num_in_flight == 0 else self.boundary_s
        view.period_s[slot] = self._table[count] if count else EMPTY_PERIOD_S
