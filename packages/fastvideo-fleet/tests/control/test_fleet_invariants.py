"""What holds for every policy on any stream of events."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fastvideo_fleet.control.registry import POLICIES, make_policy
from fastvideo_fleet.control.view import DRAINING, OFF, READY, Signal
from fastvideo_fleet.costs import LinearChunkCost
from fastvideo_fleet.errors import DecisionError
from fastvideo_fleet.fleet import FleetSpec, WorkerClass, calibrated_fleet
from fastvideo_fleet.sim.simulator import WorkerFailure, simulate
from fastvideo_fleet.traces import parse_trace

SMALL = FleetSpec(
    (
        WorkerClass.of(
            "a", "m", LinearChunkCost(0.5, 0.25), max_sessions=3, max_gpus=4, price_per_hour=3.6, start_s=4.0
        ),
    ),
    migration_s=0.02,
)
MIXED = FleetSpec(
    (
        WorkerClass.of(
            "slow", "m", LinearChunkCost(0.6, 0.3), max_sessions=2, max_gpus=2, price_per_hour=1, start_s=3.0
        ),
        WorkerClass.of(
            "fast", "m", LinearChunkCost(0.2, 0.1), max_sessions=5, max_gpus=2, price_per_hour=5, start_s=5.0
        ),
        WorkerClass.of(
            "other", "n", LinearChunkCost(0.3, 0.2), max_sessions=3, max_gpus=2, price_per_hour=2, start_s=4.0
        ),
    )
)
STEPS = st.lists(
    st.tuples(st.integers(0, 400), st.integers(0, 24), st.sampled_from(["switch", "depart"])), min_size=1, max_size=120
)


def trace_of(steps, *, with_models=False):
    """Make a valid trace: each step waits, then switches a session between active and idle, or lets it depart."""
    lines, now, active, gone = ["time_s,session_id,event,attributes"], 0.0, {}, set()
    for wait, number, what in steps:
        now = round(now + wait / 100, 2)
        name = f"s{number}"
        if name in gone:
            continue
        if name not in active:
            model = f"model={'mn'[number % 2]};" if with_models else ""
            lines.append(f"{now},{name},arrive,{model}state_bytes={1 + number * 10**8};tenant=t{number % 3}")
            active[name] = True
        elif what == "depart":
            lines.append(f"{now},{name},depart,")
            gone.add(name)
        else:
            lines.append(f"{now},{name},{'idle' if active[name] else 'activate'},")
            active[name] = not active[name]
    return parse_trace("\n".join(lines) + "\n", origin="steps", duration_s=now + 20.0)


class Watch:
    """Checks the view after every decision."""

    def __init__(self, fleet):
        self.fleet = fleet
        self.draining = {}

    def __call__(self, view, event):
        seated = [index for slot in view.on_worker for index in slot]
        assert len(seated) == len(set(seated)), "a session is on two workers"
        assert not set(seated) & set(view.waiting), "a session waits and has a worker"
        for slot, sessions in enumerate(view.on_worker):
            assert len(sessions) == view.count[slot] <= view.max_count[slot]
            assert all(view.sessions[index].worker == slot for index in sessions)
            assert all(view.sessions[index].model == view.model_of[slot] for index in sessions)
            if view.state[slot] == DRAINING:
                known = self.draining.setdefault(slot, set(sessions))
                assert set(sessions) <= known, "a draining worker got a session"
            else:
                self.draining.pop(slot, None)
                assert view.state[slot] == READY or not sessions, "a session is on a worker that does not serve"
        for index in view.waiting:
            model = view.sessions[index].model
            room = [slot for slot in view.ready_slots[model] if view.count[slot] < view.max_count[slot]]
            assert not room, "a session waits while there is room"
        held = sum(view.state[slot] != OFF for slot in range(self.fleet.num_slots))
        assert held <= self.fleet.num_slots
        assert len(view.sessions) == sum(view.num_active) + sum(view.num_idle)


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(steps=STEPS)
def test_no_event_stream_breaks_a_rule(policy, steps):
    watch = Watch(SMALL)
    result = simulate(trace_of(steps), SMALL, make_policy(policy), observer=watch)
    assert 0 <= result.gpu_hours * 3600 <= SMALL.num_slots * trace_of(steps).duration_s + 1e-6
    assert result.max_sessions_on_worker <= 3


@pytest.mark.parametrize("policy", ["fastvideo", "turboserve", "load-aware"])
@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(steps=STEPS, failures=st.lists(st.tuples(st.integers(0, 200), st.integers(0, 5)), max_size=4))
def test_nor_with_several_kinds_of_workers_that_fail(policy, steps, failures):
    trace = trace_of(steps, with_models=True)
    dying = [WorkerFailure(time / 4, worker) for time, worker in failures if time / 4 < trace.duration_s]
    watch = Watch(MIXED)
    result = simulate(trace, MIXED, make_policy(policy), failures=dying, observer=watch)
    assert result.num_chunks >= 0


@pytest.mark.parametrize("policy", ["fastvideo", "turboserve"])
@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow])
@given(steps=STEPS)
def test_the_same_stream_gives_the_same_result_to_the_bit(policy, steps):
    one, two = (simulate(trace_of(steps), SMALL, make_policy(policy)) for _ in range(2))
    timed = ("decide_ms_p50", "decide_ms_p99")
    assert {k: v for k, v in one.to_json().items() if k not in timed} == {
        k: v for k, v in two.to_json().items() if k not in timed
    }


@pytest.mark.parametrize("policy", ["fastvideo", "turboserve"])
@pytest.mark.parametrize("num_sessions", [3, 17, 40, 90])
def test_constant_load_leads_to_constant_budgets(policy, num_sessions):
    fleet = calibrated_fleet("h20-1.3b", 16)
    lines = ["time_s,session_id,event,attributes"] + [f"{i * 0.37:.2f},s{i},arrive," for i in range(num_sessions)]
    trace = parse_trace("\n".join(lines) + "\n", origin="constant", duration_s=4000.0)
    result = simulate(trace, fleet, make_policy(policy))
    late = [change for change in result.budget if change[0] > 2400]
    assert late == [], "the budget still changes though the load does not"
    moved = result.series.num_migrations
    assert moved[-1] == moved[int(2400 / 10)], "sessions still move though the load does not"


def test_an_idle_fleet_shrinks_to_one_worker(make_rows):
    trace = make_rows("0 a arrive", "10 a depart", duration_s=3000.0)
    for policy in ("fastvideo", "turboserve"):
        result = simulate(trace, calibrated_fleet("h20-1.3b", 16), make_policy(policy))
        assert result.budget[-1][1] == 1


class Broken:
    """Makes one wrong decision, given by the test."""

    def __init__(self, change):
        self.change, self.inner = change, make_policy("load-aware", num_gpus=2)

    def begin(self, view):
        return self.inner.begin(view)

    def decide(self, view, event):
        decision = self.inner.decide(view, event)
        if view.now_s > 5 and event.signal == Signal.ACTIVE:
            self.change(decision)
        return decision


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.place.append((0, 0)), "does not wait"),
        (lambda d: d.place.__setitem__(0, (d.place[0][0], 3)), "slot 3 is given session"),
        (lambda d: d.place.__setitem__(0, (d.place[0][0], 0)), "it is full"),
        (lambda d: d.migrate.append((0, 0)), "is moved from slot 0 to slot 0"),
        (lambda d: d.start.append(0), "slot 0 is started, but it is READY"),
        (lambda d: d.drain.append(2), "slot 2 is drained, but it is OFF"),
        (lambda d: d.cancel.append(0), "given up"),
        (lambda d: d.recall.append(0), "recalled"),
    ],
)
def test_a_wrong_decision_is_refused(make_rows, change, message):
    rows = [f"{i * 0.1} s{i} arrive" for i in range(4)]
    trace = make_rows(
        *rows, "1 s1 depart", "2 s5 arrive", "3 s3 depart", "4 s6 arrive", "4.5 s7 arrive", "6 late arrive"
    )
    fleet = replace(SMALL)
    with pytest.raises(DecisionError, match=message):
        simulate(trace, fleet, Broken(change))
