"""The paper's own controller, as it describes it: greedy min-max rebalancing, hysteresis, proportional scaling.

Symbols of the paper: rho_max is the greatest count over K, rho-hat the target utilization, delta the tolerance, M_tar
the proportional target, lambda the latency weight, Gamma the gain of a migration, eta its cost weight.

Source: Jiang et al. 2026, arXiv:2606.19271, section 5.2 and algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, sqrt

import numpy as np

from fastvideo_fleet.control.baselines import fixed_slots
from fastvideo_fleet.control.choose import Draft, Slots, least_loaded
from fastvideo_fleet.control.detector import DetectorSettings, ModelDemand
from fastvideo_fleet.control.settings import check_settings
from fastvideo_fleet.control.view import OFF, READY, STARTING, Decision, FleetEvent, FleetView

__all__ = ["TurboServe", "TurboServeSettings"]


@dataclass(frozen=True, slots=True)
class TurboServeSettings:
    """The paper's settings, and where it gives none, the plainest choice.

    Attributes:
        latency_weight: Lambda at usual variation; the target utilization falls with its square root.
        target_utilization: Rho-hat at usual variation and weight 1.
        tolerance: Delta, the half width of the hysteresis band.
        usual_variation: Variation of demand at which weight and target are the given ones.
        migration_weight: Eta.
        max_moves: Most migrations of one decision.
        can_migrate: False for the paper's ablation without migration.
        can_scale: False for the ablation without autoscaling, which keeps a fixed fleet.
        num_gpus: Workers at the start; None takes half of the fleet, or all of it without autoscaling.
    """

    latency_weight: float = 1.0
    target_utilization: float = 0.7
    tolerance: float = 0.1
    usual_variation: float = 0.2
    migration_weight: float = 1.0
    max_moves: int = 64
    can_migrate: bool = True
    can_scale: bool = True
    num_gpus: int | None = None

    def __post_init__(self) -> None:
        """Refuse settings out of range."""
        check_settings(self)


class TurboServe:
    """The paper's policy."""

    def __init__(self, settings: TurboServeSettings | None = None) -> None:
        self.settings = settings or TurboServeSettings()
        self._demand: list[ModelDemand] = []

    def begin(self, view: FleetView) -> list[int]:
        """Start with half of the fleet, as the paper's snapshot does, or with the fixed one."""
        self._demand = [ModelDemand(DetectorSettings()) for _ in view.spec.models]
        given = self.settings.num_gpus
        if given is not None or not self.settings.can_scale:
            return fixed_slots(view, given)
        slots: list[int] = []
        for model_slots in view.model_slots:
            slots += [int(slot) for slot in model_slots[: ceil(len(model_slots) / 2)]]
        return slots

    def decide(self, view: FleetView, event: FleetEvent) -> Decision:
        """Place, rebalance, and scale by the load that is then left."""
        decision = Decision()
        draft = Draft(view)
        self._observe(view, event)
        for model, slots in enumerate(view.model_slots):
            self._place_waiting(draft, decision, model)
            if self.settings.can_migrate:
                self._rebalance(draft, decision, draft.serving(model))
            if self.settings.can_scale:
                self._scale(draft, decision, model, slots)
        return decision

    def _observe(self, view: FleetView, event: FleetEvent) -> None:
        for model, demand in enumerate(self._demand):
            demand.observe(view.now_s, view.num_active[model], view.num_idle[model], "")

    def _place_waiting(self, draft: Draft, decision: Decision, model: int) -> None:
        view = draft.view
        for index in view.waiting:
            if view.sessions[index].model != model:
                continue
            slot = least_loaded(draft, draft.serving(model))
            if slot < 0:
                return
            draft.add(slot)
            decision.place.append((index, slot))

    def _rebalance(self, draft: Draft, decision: Decision, slots: Slots) -> None:
        """Move sessions off the bottleneck while the worst latency falls by more than a migration costs."""
        view = draft.view
        if len(slots) < 2:
            return
        moved: set[int] = {index for index, _ in decision.place}
        for _ in range(self.settings.max_moves):
            times = view.chunk_s[view.class_of[slots], draft.count[slots]]
            order = int(times.argmax())
            if np.count_nonzero(times == times[order]) > 1:
                return  # one move cannot lower the worst of several bottlenecks: no gain, whatever it costs
            bottleneck = int(slots[order])
            others = np.delete(slots, order)
            target = least_loaded(draft, others)
            session = self._cheapest(view, bottleneck, moved)
            if target < 0 or session < 0:
                return
            fewer = view.chunk_s[view.class_of[bottleneck], draft.count[bottleneck] - 1]
            after = max(
                float(np.delete(times, order).max()), float(fewer), float(draft.next_chunk_s(np.array([target]))[0])
            )
            price = self.settings.migration_weight * view.spec.migration_s * view.sessions[session].size
            if float(times[order]) - after - price <= 0:
                return
            self._move(draft, decision, session, bottleneck, target)
            moved.add(session)

    @staticmethod
    def _cheapest(view: FleetView, slot: int, moved: set[int]) -> int:
        free = [index for index in view.on_worker[slot] if index not in moved]
        return min(free, key=lambda index: view.sessions[index].size, default=-1)

    @staticmethod
    def _move(draft: Draft, decision: Decision, session: int, source: int, target: int) -> None:
        draft.remove(source)
        draft.add(target)
        decision.migrate.append((session, target))

    def _scale(self, draft: Draft, decision: Decision, model: int, slots: Slots) -> None:
        view = draft.view
        state = view.state[slots]
        serving = slots[state == READY]
        starting = slots[state == STARTING]
        held = len(serving) + len(starting)
        target_share = self._target_share(model)
        capacity = float(np.mean(view.max_count[slots]))
        waiting = sum(1 for index in view.waiting if view.sessions[index].model == model)
        needed = int(draft.count[serving].sum()) + waiting
        target = min(max(ceil(needed / (capacity * target_share)), 1), len(slots))
        worst = float((draft.count[serving] / view.max_count[serving]).max()) if len(serving) else float(waiting > 0)
        if worst > target_share + self.settings.tolerance and target > held:
            self._scale_out(view, decision, slots, target - held)
        elif worst < target_share - self.settings.tolerance and target < held:
            self._scale_in(draft, decision, serving, starting, held - target)

    def _target_share(self, model: int) -> float:
        """Return rho-hat: less when demand swings, so that there is headroom."""
        settings = self.settings
        swing = self._demand[model].variation / settings.usual_variation
        weight = settings.latency_weight * min(max(swing, 0.5), 2.0)
        return min(max(settings.target_utilization / sqrt(weight), 0.1), 0.9)

    @staticmethod
    def _scale_out(view: FleetView, decision: Decision, slots: Slots, count: int) -> None:
        off = slots[view.state[slots] == OFF]
        decision.start += [int(slot) for slot in off[:count]]

    def _scale_in(self, draft: Draft, decision: Decision, serving: Slots, starting: Slots, count: int) -> None:
        """Give up starting workers first; then free the emptiest workers and drain them."""
        given_up = [int(slot) for slot in starting[::-1][:count]]
        decision.cancel += given_up
        order = serving[np.argsort(draft.count[serving], kind="stable")]
        for slot in order[: count - len(given_up)]:
            if len(order) - len(decision.drain) <= 1 or not self._free(draft, decision, int(slot), serving):
                return
            decision.drain.append(int(slot))

    def _free(self, draft: Draft, decision: Decision, slot: int, serving: Slots) -> bool:
        """Move a worker's sessions to the others; say whether it can be drained."""
        view = draft.view
        arriving = {index for index, target in decision.place if target == slot}
        arriving |= {index for index, target in decision.migrate if target == slot}
        leaving = {index for index, _ in decision.migrate}
        sessions = [index for index in view.on_worker[slot] if index not in leaving]
        if arriving:
            return False
        if not self.settings.can_migrate:
            return True  # they stay until they pause or depart
        others = serving[(serving != slot) & ~np.isin(serving, decision.drain)]
        room = int(np.maximum(view.max_count[others] - draft.count[others], 0).sum())
        if room < len(sessions):
            return False
        for index in sessions:
            self._move(draft, decision, index, slot, least_loaded(draft, others))
        return True
