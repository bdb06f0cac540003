"""Placement, relays, scaling and the detector, each on states made by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fastvideo_fleet.control.baselines import LoadAwareGreedy, MemoryAwareGreedy, RoundRobin
from fastvideo_fleet.control.choose import Draft, first_chunk_s, least_loaded
from fastvideo_fleet.control.detector import DetectorSettings, ModelDemand, WorkloadDetector
from fastvideo_fleet.control.fastvideo import FastVideo, FastVideoSettings
from fastvideo_fleet.control.registry import make_policy
from fastvideo_fleet.control.relay import best_relay
from fastvideo_fleet.control.scaling import plan_scale
from fastvideo_fleet.control.turboserve import TurboServe, TurboServeSettings
from fastvideo_fleet.control.view import READY, STARTING, Decision, FleetView, SessionView
from fastvideo_fleet.errors import FleetError
from fastvideo_fleet.fleet import calibrated_fleet
from fastvideo_fleet.sim.simulator import simulate


def view_of(fleet, counts, ends=None, now_s=10.0):
    """Return a view with some sessions on the first workers, and batches that end some time from now."""
    view = FleetView(fleet)
    view.now_s = now_s
    number = 0
    for slot, count in enumerate(counts):
        view.set_state(slot, READY)
        for _ in range(count):
            model = int(view.model_of[slot])
            view.sessions[number] = SessionView(number, model, 1.0, 9.0, "", worker=slot, is_running=True)
            view.on_worker[slot][number] = None
            number += 1
        view.set_count(slot, count)
        if count:
            view.period_s[slot] = view.chunk_s[view.class_of[slot], count]
            view.boundary_s[slot] = now_s + (0.0 if ends is None else ends[slot])
    return view


def test_the_first_chunk_waits_for_the_state_and_the_batch_in_flight(small_fleet):
    view = view_of(small_fleet, [1, 2, 0, 3], ends=[0.5, 0.03, 0, 0.2])
    draft = Draft(view)
    times = first_chunk_s(draft, draft.serving(0), 0.05)
    # Worker 1's batch ends before the state is there, so its next one, of 1.0 s, has to end too.
    assert times[:3] == pytest.approx([0.5 + 1.0, 0.03 + 1.0 + 1.25, 0.05 + 0.75])
    assert math.isinf(times[3])
    known = first_chunk_s(draft, draft.serving(0), 0.05, only_known=True)
    assert math.isinf(known[1])
    assert known[[0, 2]] == pytest.approx(times[[0, 2]])


def test_boundaries_repeat_while_nothing_is_heard(small_fleet):
    view = view_of(small_fleet, [1], ends=[-2.9])
    assert view.next_boundary_s(0) == pytest.approx(10 - 2.9 + 4 * 0.75)


def test_least_loaded_goes_by_batch_time_not_by_count(mixed_fleet):
    view = view_of(mixed_fleet, [1, 2, 0, 3, 2, 0, 0])
    draft = Draft(view)
    assert least_loaded(draft, np.array([0, 3])) == 3  # 4 sessions on the fast one take 0.6 s, 2 on the slow one 1.2 s
    assert least_loaded(draft, np.array([], dtype=np.int64)) == -1
    full = view_of(mixed_fleet, [3, 3, 3])
    assert least_loaded(Draft(full), np.array([0, 1, 2])) == -1


def waiting(view, *sizes):
    for size in sizes:
        index = len(view.sessions)
        view.sessions[index] = SessionView(index, 0, size, 9.0, "", since_s=view.now_s)
        view.waiting[index] = None
    return view


def test_round_robin_passes_over_full_workers(small_fleet):
    policy = RoundRobin()
    view = waiting(view_of(small_fleet, [0, 3, 0, 0]), 1, 1, 1, 1)
    assert [slot for _, slot in policy.decide(view, None).place] == [0, 2, 3, 0]


def test_load_aware_takes_the_emptiest(small_fleet):
    view = waiting(view_of(small_fleet, [2, 1, 3, 1]), 1, 1, 1)
    assert [slot for _, slot in LoadAwareGreedy().decide(view, None).place] == [1, 3, 0]


def test_memory_aware_goes_by_bytes(small_fleet):
    view = view_of(small_fleet, [1, 2, 3, 3])
    view.sessions[0].size = 5.0
    waiting(view, 1)
    assert [slot for _, slot in MemoryAwareGreedy().decide(view, None).place] == [1]


def test_with_equal_states_memory_and_load_decide_alike(short_trace):
    trace, fleet = short_trace
    one, two = (simulate(trace, fleet, policy(6)).to_json() for policy in (LoadAwareGreedy, MemoryAwareGreedy))
    timed = ("decide_ms_p50", "decide_ms_p99")
    assert {k: v for k, v in one.items() if k not in timed} == {k: v for k, v in two.items() if k not in timed}


def test_the_queue_is_served_in_order(small_fleet):
    view = waiting(view_of(small_fleet, [3, 3, 3, 2]), 1, 1, 1)
    (only,) = LoadAwareGreedy().decide(view, None).place
    assert only == (min(view.waiting), 3)


def test_a_relay_shares_a_long_wait(small_fleet):
    # Room only on worker 3, whose batch ends in 0.7 s; worker 1's ends in 0.3 s.
    view = view_of(small_fleet, [3, 3, 3, 1], ends=[0.9, 0.3, 0.95, 0.7])
    draft = Draft(view)
    direct = first_chunk_s(draft, draft.serving(0), 0.0)
    relay = best_relay(draft, draft.serving(0), 0.0, waited_s=0.0)
    assert direct.min() == pytest.approx(0.7 + 1.0)
    assert relay.slots == (1, 3)
    assert relay.worst_s == pytest.approx(max(0.3 + 1.25, (0.7 - 0.3) + 1.0))


def test_no_relay_where_it_would_not_help(small_fleet):
    view = view_of(small_fleet, [3, 3, 3, 1], ends=[0.9, 0.8, 0.95, 0.1])
    draft = Draft(view)
    assert best_relay(draft, draft.serving(0), 0.0, waited_s=0.0).slots == (3,)
    full = Draft(view_of(small_fleet, [3, 3, 3, 3], ends=[0.1, 0.2, 0.3, 0.4]))
    assert best_relay(full, full.serving(0), 0.0, waited_s=0.0) is None


def test_a_relay_finds_the_one_batch_that_parts_a_long_wait():
    # Fifty full workers end soon and together, one ends half-way, and the only room comes in a second.
    ends = [0.001 * (index + 1) for index in range(50)] + [0.5, 1.0]
    draft = Draft(view_of(calibrated_fleet("h20-7b", 64), [4] * 51 + [3], ends=ends))
    relay = best_relay(draft, draft.serving(0), 0.0, waited_s=0.0)
    assert relay.slots == (50, 51)
    assert relay.worst_s == pytest.approx(0.5 + 1.55)


def test_no_relay_among_no_workers(small_fleet):
    draft = Draft(view_of(small_fleet, []))
    assert best_relay(draft, draft.serving(0), 0.0, waited_s=0.0) is None


def rooms(view, goal_s):
    return np.array([max(one.sessions_within(goal_s), 1) for one in view.spec.classes])[view.class_of]


def test_scaling_starts_the_best_value_first(mixed_fleet):
    view = view_of(mixed_fleet, [0])
    # Within 1.2 s a slow worker (1 $) has room for 2, a fast one (5 $) for 6.
    plan = plan_scale(Draft(view), view.model_slots[0], 5.0, rooms(view, 1.2))
    assert plan.start == [1, 2]
    plan = plan_scale(Draft(view), view.model_slots[0], 11.0, rooms(view, 1.2))
    assert plan.start == [1, 2, 3]


def test_scaling_in_gives_starting_workers_up_first_and_keeps_one(small_fleet):
    view = view_of(small_fleet, [1, 0, 0])
    view.set_state(3, STARTING)
    plan = plan_scale(Draft(view), view.model_slots[0], 1.0, rooms(view, 1.25))
    assert plan.cancel == [3]
    assert plan.drain == [2, 1]
    assert plan_scale(Draft(view), view.model_slots[0], 0.0, rooms(view, 1.25)).drain == [2, 1]


def test_draining_workers_are_recalled_before_others_start(small_fleet):
    view = view_of(small_fleet, [3, 1])
    view.set_state(1, 3)
    plan = plan_scale(Draft(view), view.model_slots[0], 6.0, rooms(view, 1.25))
    assert (plan.recall, plan.start) == ([1], [])


def test_the_forecast_is_that_of_two_state_sessions():
    demand = ModelDemand(DetectorSettings(active_guess_s=40, idle_guess_s=20, guess_weight=1e9))
    demand.observe(0.0, 30, 10, "")
    forecast = demand.forecast(20.0, arrival_rate=0.0)
    # Each session is a two-state chain with rates 1/40 and 1/20.
    total = 1 / 40 + 1 / 20
    mixed = 1 - math.exp(-total * 20)
    assert forecast.mean == pytest.approx(30 * (1 - (1 / 40) / total * mixed) + 10 * (1 / 20) / total * mixed)
    assert demand.forecast(1e6, arrival_rate=0.0).mean == pytest.approx(40 * (1 / 20) / total)


def test_the_detector_measures_rates(rng):
    demand = ModelDemand(DetectorSettings(guess_weight=0.001))
    events = sorted(rng.uniform(0, 240, 480))
    for time_s in events:
        demand.observe(time_s, 10, 5, "arrive")
    assert demand.arrival_rate == pytest.approx(2.0, rel=0.02)
    assert demand.arrival_rate_now == pytest.approx(sum(time > events[-1] - 8 for time in events) / 8, rel=0.2)
    for index in range(1, 241):
        demand.observe(240 + index, 10, 5, "leave")
    assert demand.leave_rate == pytest.approx(1 / 10, rel=0.05)
    assert demand.arrival_rate == pytest.approx(0, abs=0.05)


def test_variation_is_zero_for_constant_demand_and_not_for_a_swing():
    steady, swinging = ModelDemand(DetectorSettings()), ModelDemand(DetectorSettings())
    for second in range(200):
        steady.observe(second, 20, 0, "")
        swinging.observe(second, 10 + 20 * (second // 20 % 2), 0, "")
    assert steady.variation == pytest.approx(0, abs=0.1)
    assert swinging.variation == pytest.approx(0.5, rel=0.1)


def test_the_demand_to_be_ready_for_is_that_of_a_burst():
    settings = DetectorSettings(active_guess_s=40, idle_guess_s=20, guess_weight=1e9)
    detector = WorkloadDetector(20.0, 640, settings)
    detector.observe(0.0, 30, 10, "")
    # Half of the fleet's 640 sessions may come within a lead time, at eight times the usual rate.
    assert detector.arrivals.burst_rate == pytest.approx(640 / 2 / 20, rel=0.05)
    total, rate = 1 / 40 + 1 / 20, detector.arrivals.burst_rate
    mixed = 1 - math.exp(-total * 20)
    stays, returns = 1 - (1 / 40) / total * mixed, (1 / 20) / total * mixed
    new = rate * (1 - math.exp(-20 / 40)) * 40
    mean = 30 * stays + 10 * returns + new
    sigma = math.sqrt(30 * stays * (1 - stays) + 10 * returns * (1 - returns) + new)
    assert detector.worst(0.0) == pytest.approx(mean)
    assert detector.worst(2.0) == pytest.approx(mean + 2 * sigma)


def test_where_demand_can_only_fall_it_is_what_there_is():
    detector = WorkloadDetector(20.0, 640)
    for second in range(2000):
        detector.observe(second, 30, 0, "")
    assert detector.arrivals.burst_rate < 0.01
    assert detector.worst(0.0) == 30


def test_the_latency_weight_moves_the_aim():
    fleet = calibrated_fleet("h20-1.3b", 4)
    goals = []
    for weight in (0.25, 1.0, 4.0, 100.0):
        policy = FastVideo(FastVideoSettings(latency_weight=weight))
        policy.begin(FleetView(fleet))
        goals.append(policy._models[0].goal_s)
    assert goals == pytest.approx([1.5, 1.5, 0.9, 0.45])


def test_turboserve_rebalances_a_single_bottleneck_only(small_fleet):
    policy = TurboServe(TurboServeSettings(can_scale=False))
    policy.begin(FleetView(small_fleet))
    view = view_of(small_fleet, [3, 1, 1, 1])
    decision = Decision()
    policy._rebalance(Draft(view), decision, np.arange(4))
    assert [target for _, target in decision.migrate] == [1]
    view = view_of(small_fleet, [3, 3, 1, 1])
    decision = Decision()
    policy._rebalance(Draft(view), decision, np.arange(4))
    assert decision.migrate == []  # one move cannot lower the worst of two bottlenecks


def test_turboserve_scales_in_proportion_outside_its_band():
    fleet = calibrated_fleet("h20-1.3b", 16)
    policy = TurboServe(TurboServeSettings(latency_weight=2.0))
    policy.begin(FleetView(fleet))
    # Calm demand halves the weight, to 1: the target is 0.7, the band 0.6 to 0.8.
    assert policy._target_share(0) == pytest.approx(0.7)

    def decide(*counts):
        view, decision = view_of(fleet, counts), Decision()
        policy._scale(Draft(view), decision, 0, view.model_slots[0])
        return len(decision.start), len(decision.drain)

    assert decide(8, 8, 8, 8) == (math.ceil(32 / 5.6) - 4, 0)
    assert decide(6, 6, 6, 6) == (0, 0)  # 0.75: within the band, although 4.3 GPUs would be the target
    assert decide(4, 4, 4, 4) == (0, 4 - math.ceil(16 / 5.6))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (lambda: FastVideoSettings(latency_weight=0), r"latency_weight=0.*0.01 to 100"),
        (lambda: FastVideoSettings(hedge=-1), "hedge=-1"),
        (lambda: TurboServeSettings(target_utilization=2.0), "target_utilization=2.0"),
        (lambda: make_policy("fastvideo", latency_weight=math.nan), "latency_weight=nan"),
        (lambda: make_policy("turbo-serve"), "nearest: turboserve"),
    ],
)
def test_settings_out_of_range_are_refused(settings, message):
    with pytest.raises(FleetError, match=message):
        settings()


def test_a_fixed_fleet_that_is_too_large_is_refused(short_trace):
    trace, fleet = short_trace
    with pytest.raises(FleetError, match=r"num_gpus=9.*allowed: 1 to 8"):
        simulate(trace, fleet, make_policy("load-aware", num_gpus=9))
