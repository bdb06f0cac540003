"""This project's policy: the paper's closed loop, with forecasts, batch boundaries and exact placement.

What it does beyond the paper's:

- A session goes where its next chunk is done first, the wait for the batch in flight included, not where the fewest
  sessions are. Workers are at different points of their batches, so the wait is mostly short.
- Migrations are those of an exact min-max plan, and each goes to a worker whose batch ends soon after the source's.
- The fleet is sized for the demand that there may be once an ordered worker serves, if a burst is on or begins now:
  that hedges the start-up time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil, sqrt

import numpy as np

from fastvideo_fleet.control.choose import Draft, Slots, first_chunk_s
from fastvideo_fleet.control.detector import DetectorSettings, WorkloadDetector
from fastvideo_fleet.control.minmax import min_max_plan
from fastvideo_fleet.control.relay import best_relay
from fastvideo_fleet.control.scaling import ScalePlan, plan_scale
from fastvideo_fleet.control.settings import check_settings
from fastvideo_fleet.control.view import Decision, FleetEvent, FleetView, SessionView, Signal

__all__ = ["FastVideo", "FastVideoSettings"]


_MOVING = frozenset({Signal.READY, Signal.FAILED, Signal.STOPPED, Signal.TICK})
"""Signals upon which sessions may be moved; otherwise they are only when a worker goes over the aim."""


_LEVEL_SHARE = 32
"""One of so many workers may give a session away for the sake of even batches, each time the fleet is planned."""


@dataclass(frozen=True, slots=True)
class FastVideoSettings:
    """What may be tuned.

    Attributes:
        latency_weight: What latency is worth against cost. 1 aims at `target_utilization` of K; the aim falls with the
            square root, which is where cost (in proportion to 1 / n) and weighted latency (to n) balance.
        target_utilization: Share of K that a worker's sessions may reach at worst, at weight 1.
        hedge: Standard deviations over the expected demand of a burst that there is room for.
        relay_wait_s: How far over the aim a newcomer's first chunk must be for others to make place for it.
        max_relays: Most sessions that move on to make place for a newcomer.
        hold_s: For how long less capacity must suffice before some is given up.
        plan_every_s: How often the fleet's size is decided.
        migration_weight: Seconds of worst batch time that a second of migration must gain.
        max_moves: Most migrations of one decision.
        can_migrate: False to compare without migration.
        can_scale: False to compare with a fixed fleet.
        num_gpus: Workers of each class at the start; None takes half, or all without autoscaling.
    """

    latency_weight: float = 1.0
    target_utilization: float = 1.0
    hedge: float = 1.5
    relay_wait_s: float = 0.05
    max_relays: int = 3
    hold_s: float = 5.0
    plan_every_s: float = 1.0
    migration_weight: float = 1.0
    max_moves: int = 64
    can_migrate: bool = True
    can_scale: bool = True
    num_gpus: int | None = None
    detector: DetectorSettings = field(default_factory=DetectorSettings)

    def __post_init__(self) -> None:
        """Refuse settings out of range."""
        check_settings(self)


@dataclass(slots=True)
class _Model:
    """What the policy keeps of one model."""

    index: int
    slots: Slots
    goal_s: float
    rooms: Slots
    """Sessions that each slot of the fleet holds within the goal."""
    detector: WorkloadDetector
    needed: list[tuple[float, float]]


class FastVideo:
    """The policy."""

    def __init__(self, settings: FastVideoSettings | None = None) -> None:
        self.settings = settings or FastVideoSettings()
        self._models: list[_Model] = []
        self._next_plan_s = 0.0

    def begin(self, view: FleetView) -> list[int]:
        """Start with half of each class, or the fixed fleet."""
        settings = self.settings
        self._models = [self._model(view, index, slots) for index, slots in enumerate(view.model_slots)]
        started: list[int] = []
        first = 0
        for one in view.spec.classes:
            usual = one.max_gpus if not settings.can_scale else ceil(one.max_gpus / 2)
            count = min(usual if settings.num_gpus is None else settings.num_gpus, one.max_gpus)
            started += range(first, first + count)
            first += one.max_gpus
        return started

    def decide(self, view: FleetView, event: FleetEvent) -> Decision:
        """Place who waits, keep workers within the aim, and size the fleet for what comes."""
        decision = Decision()
        self._observe(view, event)
        is_due = self.settings.can_scale and view.now_s >= self._next_plan_s
        has_moved = event.signal in _MOVING
        if not (view.waiting or is_due or has_moved):
            return decision
        draft = Draft(view)
        has_overflow = bool(view.waiting) and self._place_waiting(draft, decision)
        if self.settings.can_migrate and (is_due or has_moved or has_overflow):
            for model in self._models:
                self._rebalance(draft, decision, model)
                self._empty(draft, decision, model)
                if event.signal == Signal.TICK:
                    self._level(draft, decision, model)
        if is_due or (self.settings.can_scale and len(decision.place) < len(view.waiting)):
            self._next_plan_s = view.now_s + self.settings.plan_every_s
            for index, model in enumerate(self._models):
                self._scale(draft, decision, index, model)
            decision.wake_s = self._next_plan_s
        return decision

    def _model(self, view: FleetView, index: int, slots: Slots) -> _Model:
        goal_s = self._goal_s(view, slots)
        # A worker that cannot make even one chunk in time still counts for something where there is no other.
        rooms = np.array([max(one.sessions_within(goal_s), 1) for one in view.spec.classes])[view.class_of]
        return _Model(index, slots, goal_s, rooms, self._detector(view, slots), [])

    def _goal_s(self, view: FleetView, slots: Slots) -> float:
        """Return the batch time to keep: that of the aimed-at number of sessions on the class that is best value."""
        settings = self.settings
        share = settings.target_utilization / sqrt(settings.latency_weight)
        best = min(
            {int(view.class_of[slot]) for slot in slots},
            key=lambda index: view.spec.classes[index].price_per_hour / view.spec.classes[index].max_sessions,
        )
        one = view.spec.classes[best]
        return one.chunk_s[min(max(round(share * one.max_sessions), 1), one.max_sessions)]

    def _detector(self, view: FleetView, slots: Slots) -> WorkloadDetector:
        start_s = max(view.spec.classes[int(view.class_of[slot])].start_s for slot in slots)
        most = int(view.max_count[slots].sum())
        return WorkloadDetector(start_s + self.settings.plan_every_s, most, self.settings.detector)

    def _observe(self, view: FleetView, event: FleetEvent) -> None:
        for model in self._models:
            active, idle = view.num_active[model.index], view.num_idle[model.index]
            change = active - model.detector.demand.num_active
            kind = ""
            if change < 0:
                kind = "leave"
            elif change > 0:
                kind = "arrive" if view.sessions[event.session].is_fresh else "resume"
            model.detector.observe(view.now_s, active, idle, kind)

    def _place_waiting(self, draft: Draft, decision: Decision) -> bool:
        """Place all who wait, the most urgent first, as far as there is room; say whether a worker is over the aim."""
        view = draft.view
        is_over = False
        queue = list(view.waiting)
        if len(queue) > 1:
            queue = self._in_order(view, queue)
        full: set[int] = set()
        for index in queue:
            session = view.sessions[index]
            if session.model in full:
                continue
            slots = draft.serving(session.model)
            goal_s = self._models[session.model].goal_s
            slot, done_s = self._best_slot(draft, slots, view.resume_delay_s(session), goal_s)
            if slot < 0:
                full.add(session.model)
                continue
            slot = self._relay(draft, decision, session, slots, slot, done_s)
            draft.add(slot)
            decision.place.append((index, slot))
            is_over = is_over or view.chunk_s[view.class_of[slot], draft.count[slot]] > goal_s
        return is_over

    def _relay(
        self, draft: Draft, decision: Decision, session: SessionView, slots: Slots, slot: int, done_s: float
    ) -> int:
        """Return where a newcomer goes: `slot`, or a place that somebody leaves for another, if that is faster."""
        view, settings = draft.view, self.settings
        waited_s = view.now_s - session.since_s
        direct_s = waited_s + done_s
        if not settings.can_migrate or direct_s <= self._models[session.model].goal_s + settings.relay_wait_s:
            return slot
        delay_s = view.resume_delay_s(session)
        relay = best_relay(draft, slots, delay_s, waited_s=waited_s, max_moves=settings.max_relays)
        if relay is None or direct_s - relay.worst_s <= settings.migration_weight * view.spec.migration_s:
            return slot
        movers = [self._smallest(view, decision, one) for one in relay.slots[:-1]]
        if None in movers:
            return slot
        # From the end, so that there is always a free place to go to.
        for source, target, mover in reversed(list(zip(relay.slots, relay.slots[1:], movers, strict=False))):
            assert mover is not None
            draft.remove(source)
            draft.add(target)
            decision.migrate.append((mover.index, target))
        return relay.slots[0]

    @staticmethod
    def _smallest(view: FleetView, decision: Decision, slot: int) -> SessionView | None:
        """Return the session on a slot whose state is quickest to move, of those that this decision leaves there.

        A session that is still waiting for its first chunk there is not made to wait anew.
        """
        gone = {index for index, _ in decision.migrate}
        there = [view.sessions[index] for index in view.on_worker[slot] if index not in gone]
        staying = [session for session in there if session.is_running]
        return min(staying, key=lambda one: (one.size, one.index), default=None)

    @staticmethod
    def _in_order(view: FleetView, queue: list[int]) -> list[int]:
        """Order the queue: tenants with the fewest sessions on workers first, then by the time that is left."""
        held: dict[str, int] = {}
        if len({view.sessions[index].tenant for index in queue}) > 1:
            for session in view.sessions.values():
                if session.worker >= 0:
                    held[session.tenant] = held.get(session.tenant, 0) + 1
        sessions = [view.sessions[index] for index in queue]
        sessions.sort(key=lambda one: (held.get(one.tenant, 0), one.since_s + one.slo_s, one.index))
        return [one.index for one in sessions]

    @staticmethod
    def _best_slot(
        draft: Draft, slots: Slots, delay_s: float, goal_s: float, *, only_known: bool = False
    ) -> tuple[int, float]:
        """Return where the next chunk is done first, and in how many seconds; slot -1 if there is no room.

        Every second of the batch time over the goal, which stays, counts twice.
        """
        if len(slots) == 0:
            return -1, np.inf
        over = draft.next_chunk_s(slots)
        done = first_chunk_s(draft, slots, delay_s, only_known=only_known)
        score = done + np.maximum(over - goal_s, 0.0)
        best = int(score.argmin())
        return (int(slots[best]), float(done[best])) if np.isfinite(score[best]) else (-1, np.inf)

    def _rebalance(self, draft: Draft, decision: Decision, model: _Model) -> None:
        """Bring workers over the goal back to the best that the fleet can do, if that is worth the moves."""
        view = draft.view
        slots = draft.serving(model.index)
        if len(slots) < 2:
            return
        times = view.chunk_s[view.class_of[slots], draft.count[slots]]
        worst = float(times.max())
        if worst <= model.goal_s:
            return
        plan = min_max_plan(draft.count[slots], view.chunk_s[view.class_of[slots]], max_moves=self.settings.max_moves)
        if plan is None or plan.num_moves == 0:
            return
        aim = max(plan.worst_s, model.goal_s)
        gain = worst - aim
        if gain <= self.settings.migration_weight * view.spec.migration_s:
            return
        for slot in slots[times > aim]:
            while view.chunk_s[view.class_of[slot], draft.count[slot]] > aim:
                if not self._move_one(draft, decision, int(slot), slots, aim, worst):
                    break

    def _level(self, draft: Draft, decision: Decision, model: _Model) -> None:
        """Move sessions from long batches to short ones, a few at a time, where the moved one loses nothing by it."""
        view = draft.view
        slots = draft.serving(model.index)
        times = view.chunk_s[view.class_of[slots], draft.count[slots]]
        num_left = max(len(slots) // _LEVEL_SHARE, 1)
        for place in np.argsort(-times, kind="stable"):
            source = int(slots[place])
            if num_left == 0 or draft.count[source] == 0:
                return
            aim = float(view.chunk_s[view.class_of[source], draft.count[source] - 1])
            if float(draft.next_chunk_s(slots).min()) > aim:
                return
            num_left -= self._move_one(draft, decision, source, slots, aim, float(times[place]))

    def _move_one(self, draft: Draft, decision: Decision, source: int, slots: Slots, aim: float, limit: float) -> bool:
        """Move the smallest session off a worker, to where its next chunk is done first; say whether one was moved.

        Args:
            draft: The fleet, with what has been decided so far.
            decision: Where the move is added.
            source: The worker.
            slots: Workers that may take it.
            aim: Batch time that the target should keep.
            limit: Longest that the moved session's next chunk may take.
        """
        view = draft.view
        session = self._smallest(view, decision, source)
        if session is None or len(decision.migrate) >= self.settings.max_moves:
            return False
        delay_s = view.leave_delay_s(session)
        others = slots[slots != source]
        target, done_s = self._best_slot(draft, others, delay_s, aim, only_known=True)
        if target < 0:
            return False
        if done_s - (delay_s - view.spec.migration_s * session.size) > limit:
            return False  # the move would cost this session more than it gains the others; a better moment comes
        draft.remove(source)
        draft.add(target)
        decision.migrate.append((session.index, target))
        return True

    def _scale(self, draft: Draft, decision: Decision, index: int, model: _Model) -> None:
        view = draft.view
        needed = self._needed(view, index, model)
        plan = plan_scale(draft, model.slots, needed, model.rooms)
        decision.recall += plan.recall
        decision.start += plan.start
        decision.cancel += plan.cancel
        self._drain(draft, decision, model, plan)

    def _needed(self, view: FleetView, index: int, model: _Model) -> float:
        """Return the sessions to have room for, at their highest within the hold time."""
        settings = self.settings
        wanted = max(model.detector.worst(settings.hedge), float(view.num_active[index]))
        recent = [entry for entry in model.needed if entry[0] > view.now_s - settings.hold_s and entry[1] > wanted]
        model.needed = [*recent, (view.now_s, wanted)]
        return model.needed[0][1]

    def _drain(self, draft: Draft, decision: Decision, model: _Model, plan: ScalePlan) -> None:
        """Drain workers whose sessions the others have room for; `_empty` moves them when it costs them little.

        Without migration they stay until they pause or depart.
        """
        coming = {slot for _, slot in [*decision.place, *decision.migrate]}
        serving = draft.serving(model.index)
        rooms = model.rooms
        room = int(np.maximum(rooms[serving] - draft.count[serving], 0).sum())
        for slot in plan.drain:
            num_staying = int(draft.count[slot])
            room -= max(int(rooms[slot]) - num_staying, 0)
            if slot in coming or room < num_staying:
                return
            room -= num_staying
            decision.drain.append(slot)

    def _empty(self, draft: Draft, decision: Decision, model: _Model) -> None:
        """Move sessions off draining workers, each when a batch that it can join begins soon after its own ends."""
        view = draft.view
        draining = view.draining_slots[model.index]
        if len(draining) == 0:
            return
        serving = draft.serving(model.index)
        for slot in draining:
            while self._move_one(draft, decision, int(slot), serving, model.goal_s, model.goal_s):
                pass
