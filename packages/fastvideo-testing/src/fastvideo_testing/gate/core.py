"""The gate: its modes, what each of them promises, and its report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from fastvideo_core.errors import CancelledError, NonFiniteError
from fastvideo_core.runtime.instance import ModelInstance
from fastvideo_testing.gate.compare import describe_differences, largest_relative_error
from fastvideo_testing.gate.engine import run_on_engine
from fastvideo_testing.gate.faults import Calls, GateError, with_faults
from fastvideo_testing.gate.hidden import find_changes, look_at
from fastvideo_testing.gate.pool import Outcome, Pool, run_alone
from fastvideo_testing.gate.requests import GatePlan, make_plan

__all__ = ["MODES", "GateReport", "Mode", "ModeReport", "run_gate"]


@dataclass(frozen=True, slots=True)
class Mode:
    """One way to run requests together.

    Attributes:
        name: For messages.
        is_exact: Whether they are exact ones, which have the same bits in any batch, or share none.
        max_batch: Most plans in a call; at one, the bits are the same too.
        is_moved: Whether every request goes through bytes after each of its steps.
        runner: In a random order on one thread, or on the real engine.
    """

    name: str
    is_exact: bool = False
    max_batch: int = 1
    is_moved: bool = False
    runner: Literal["pool", "engine"] = "pool"


MODES: tuple[Mode, ...] = (
    Mode("interleaved"),
    Mode("interleaved through bytes", is_moved=True),
    Mode("batched", max_batch=8),
    Mode("exact, batched", is_exact=True, max_batch=8),
    Mode("exact, batched through bytes", is_exact=True, max_batch=8, is_moved=True),
    Mode("exact on the engine", is_exact=True, max_batch=8, runner="engine"),
    Mode("batched on the engine", max_batch=8, runner="engine"),
)


@dataclass(frozen=True, slots=True)
class ModeReport:
    """What a mode showed.

    Attributes:
        mode: The mode.
        num_steps: Plans that were run, again after failures included.
        num_calls: Calls of step bodies.
        max_batch: Most plans in a call.
        num_switches: How often the next call was of another request.
        relative_error: Largest difference of a survivor's latents and the like.
    """

    mode: Mode
    num_steps: int
    num_calls: int
    max_batch: int
    num_switches: int
    relative_error: float


@dataclass(frozen=True, slots=True)
class GateReport:
    """What the gate showed of a card that passed.

    Attributes:
        card_id: The card.
        modes: One report a mode.
    """

    card_id: str
    modes: Sequence[ModeReport]


def run_gate(
    instance: ModelInstance,
    plan: GatePlan | None = None,
    *,
    modes: Sequence[Mode] = MODES,
    seed: int = 0,
    **choices: Any,
) -> GateReport:
    """Run requests alone and together, and compare.

    Args:
        instance: The model of any card.
        plan: What to run; made up for the card if it is not given.
        modes: How to run it.
        seed: Decides the order of everything.
        **choices: Arguments of `make_plan`.

    Raises:
        GateError: A survivor gave something else than it gives alone; with the request, the mode, what differs, and
            where state is kept that should be the request's. Or nothing was interleaved.
    """
    chosen = plan or make_plan(instance.card, seed=seed, **choices)
    plans = {False: chosen, True: chosen.as_exact()}
    watch = _Watch(instance)
    alone = {is_exact: _alone(plans[is_exact], watch) for is_exact in sorted({mode.is_exact for mode in modes})}
    reports = []
    for number, mode in enumerate(modes):
        plan_of_mode = plans[mode.is_exact]
        outcomes, calls = _together(instance, plan_of_mode, mode, seed + number)
        error = _compare(plan_of_mode, mode, alone[mode.is_exact], outcomes, watch)
        _check_disturbances(plan_of_mode, mode, outcomes)
        _check_calls(instance, mode, calls)
        sizes = calls.sizes
        reports.append(ModeReport(mode, sum(sizes), len(sizes), max(sizes), calls.num_switches, error))
    if kept := [place for place in watch.look() if not place.startswith("module ")]:
        raise GateError(
            f"{instance.card.model_id} keeps something of requests outside of their states: {'; '.join(kept)}"
        )
    return GateReport(instance.card.model_id, reports)


class _Watch:
    """Notes where something changes from one request to the next, once everything has run before."""

    def __init__(self, instance: ModelInstance) -> None:
        self.instance = instance
        self._seen: Mapping[str, Any] = {}
        self._places: set[str] = set()

    def begin(self) -> None:
        """Take all that is there as a matter of course, since nothing needs to be made for the first time any more."""
        self._seen = look_at(self.instance)

    def look(self) -> list[str]:
        """Return the places that have changed since the beginning, at one look or another."""
        now = look_at(self.instance)
        self._places.update(find_changes(self._seen, now))
        self._seen = now
        return sorted(self._places)

    def told(self) -> str:
        """Return the places for the end of a message."""
        places = self.look()
        return f"; kept outside of the state: {'; '.join(places)}" if places else ""


def _alone(plan: GatePlan, watch: _Watch) -> dict[str, Outcome]:
    """Run the survivors alone, and again in the other order: what came between must not matter."""
    survivors = plan.survivors
    outcomes = run_alone(watch.instance, survivors)
    for name, outcome in outcomes.items():
        if outcome.error is not None:
            raise GateError(f"request {name}, alone, failed: {outcome.error}") from outcome.error
    watch.begin()
    for one in reversed(survivors):
        name = one.request.request_id
        again = run_alone(watch.instance, [one])[name]
        watch.look()
        lines = describe_differences(outcomes[name].artifacts, again.artifacts, None)
        if again.error is not None or lines:
            why = str(again.error) if again.error is not None else "; ".join(lines)
            raise GateError(f"request {name}, alone, once more after others: {why}{watch.told()}")
    return outcomes


def _together(instance: ModelInstance, plan: GatePlan, mode: Mode, seed: int) -> tuple[dict[str, Outcome], Calls]:
    changed, calls = with_faults(instance, plan.faults)
    if mode.runner == "engine":
        return run_on_engine(changed, plan, seed=seed, max_batch=mode.max_batch), calls
    pool = Pool(changed, seed=seed, max_batch=mode.max_batch, is_moved=mode.is_moved, cancelled=plan.cancelled)
    return pool.run(plan.requests), calls


def _compare(
    plan: GatePlan, mode: Mode, alone: Mapping[str, Outcome], outcomes: Mapping[str, Outcome], watch: _Watch
) -> float:
    """Return the largest relative error of the survivors.

    Raises:
        GateError: It is larger than it may be.
    """
    parity = watch.instance.card.parity
    is_same = mode.is_exact or mode.max_batch == 1 or parity.batch_invariant
    errors = []
    for one in plan.survivors:
        name = one.request.request_id
        outcome = outcomes[name]
        if outcome.error is not None:
            where = f"request {name} ({mode.name}) failed, and does not alone"
            raise GateError(f"{where}: {outcome.error}{watch.told()}") from outcome.error
        bound = None if is_same else parity.batch_max_relative_error
        if lines := describe_differences(alone[name].artifacts, outcome.artifacts, bound):
            where = f"request {name} ({mode.name}) does not give what it gives alone"
            raise GateError(f"{where}: {'; '.join(lines)}{watch.told()}")
        errors.append(largest_relative_error(alone[name].artifacts, outcome.artifacts))
    return max(errors, default=0.0)


def _check_disturbances(plan: GatePlan, mode: Mode, outcomes: Mapping[str, Outcome]) -> None:
    """See to it that those which were to fail, or to be cancelled, were: else they disturbed nobody."""
    expected: dict[str, type[Exception]] = dict.fromkeys(plan.cancelled, CancelledError)
    for name, fault in plan.faults.items():
        if fault.kind != "memory":  # a loop may go on with less
            expected[name] = NonFiniteError if fault.kind == "nan" else Exception
    for name, error in expected.items():
        got = outcomes[name].error
        # On an engine, a cancellation may come after the end.
        if not isinstance(got, error) and not (got is None and mode.runner == "engine" and name in plan.cancelled):
            raise GateError(f"request {name} ({mode.name}) was to end with {error.__name__} and ended with {got!r}")


def _check_calls(instance: ModelInstance, mode: Mode, calls: Calls) -> None:
    """See to it that the mode was what it is called: else it shows nothing."""
    if calls.num_switches < 3:
        raise GateError(f"{mode.name}: hardly any call was of another request than the one before; nothing is shown")
    may_batch = [name for name in instance.steps if instance.card.loops[name].max_batch != 1]
    if mode.max_batch > 1 and not mode.is_exact and may_batch and not calls.batched:
        raise GateError(f"{mode.name}: no call had several plans; give requests of one size, or declare max_batch=1")
