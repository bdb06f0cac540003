"""The fleet's policies against fixed fleets and against what hindsight gives, on six traces, two fleets, two models.

    latency_reduction_mean     worst chunk latency at equal cost, how much lower than the three baselines' on average
    cost_reduction_mean        cost at equal worst chunk latency, how much lower
    latency_share_of_oracle    the mean reduction over that of the oracle, which knows the trace; so for the cost
    foresight_, known_rates_   the keys above for the policy itself if it knew demand ahead, or the true rates of bursts
    placement_gap_mean, _max   worst batch time after placement over the exact optimum's, less one
    autoscale_gap_mean         cost over that of the best one-minute budgets at equal experienced utilization, less one
    decide_ms_p99              processor time of one decision that 99 of 100 keep, by the fleet's size
    simulate_day_s             time to simulate a day of 100,000 sessions on up to 512 GPUs; _cpu_s is processor time

How "equal" is matched stands in `_fleet.py`. All keys of policies come for `turboserve` too, and `rows` has them
for each trace, fleet and baseline. Traces are made by the generator with seeds 1 to 6; no setting was chosen on them.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from _common import make_parser, report
from _fleet import MEASURES, Oracle, Setting
from fastvideo_fleet.control.minmax import min_max_plan
from fastvideo_fleet.control.registry import make_policy
from fastvideo_fleet.fleet import calibrated_fleet
from fastvideo_fleet.oracle.budget import experienced_utilization, plan_slots, slot_peaks
from fastvideo_fleet.oracle.placement import best_placement
from fastvideo_fleet.sim.result import SimulationResult
from fastvideo_fleet.sim.simulator import simulate
from fastvideo_fleet.traces import TraceSettings, arrivals_per_second, make_trace

FLEETS = (("h20-1.3b", 16), ("h20-7b", 16), ("b300-1.3b", 64), ("b300-7b", 64))
SEEDS = (1, 2, 3, 4, 5, 6)
BASELINES = ("round-robin", "load-aware", "memory-aware")
POLICIES = {"fastvideo": "", "turboserve": "turboserve_", "foresight": "foresight_", "known-rates": "known_rates_"}
"""Policies with the prefix of their keys; the last two know what no controller can."""

BOUNDS = {"oracle": "oracle", "clairvoyant": "clairvoyant_bound", "lead": "lead_time_bound"}
"""Oracles by name, with the name in the keys."""

ABLATIONS = (
    "fastvideo-no-migration",
    "fastvideo-no-autoscaling",
    "turboserve-no-migration",
    "turboserve-no-autoscaling",
)


def compare(setting: Setting, oracle: Oracle, result: SimulationResult) -> list[dict[str, Any]]:
    """Return one row for each baseline: what a policy's run saves, and what hindsight would."""
    rows = []
    hours = result.gpu_hours
    for baseline in BASELINES:
        row: dict[str, Any] = {
            "fleet": setting.calibration, "gpus": setting.max_gpus, "seed": setting.seed, "policy": result.policy,
            "baseline": baseline, "gpu_hours": hours, "worst_s": result.worst_chunk_latency_s,
        }  # fmt: skip
        for measure, suffix in zip(MEASURES, ("", "_paper"), strict=True):
            worst = float(getattr(result, measure))
            theirs_s = setting.latency_at(baseline, hours, measure)
            theirs_h, is_reached = setting.hours_at(baseline, worst, measure)
            row |= {
                f"baseline_worst_s{suffix}": theirs_s,
                f"baseline_hours{suffix}": theirs_h,
                f"is_reached{suffix}": is_reached,
                f"latency_reduction{suffix}": 1 - worst / theirs_s,
                f"cost_reduction{suffix}": 1 - hours / theirs_h,
            }
            for kind in oracle.hours:
                row[f"{kind}_latency_reduction{suffix}"] = 1 - oracle.latency_at(hours, kind) / theirs_s
                row[f"{kind}_cost_reduction{suffix}"] = 1 - oracle.hours_at(worst, kind) / theirs_h
        rows.append(row)
    return rows


def autoscale_gaps(setting: Setting, result: SimulationResult) -> dict[str, float]:
    """Return a run's cost over that of the best one-minute budgets, less one.

    `experienced`: at the utilization that the run's sessions experienced, matched to 1 %. `worst`: with no more
    sessions on a GPU at any time than the run ever had.
    """
    one = setting.fleet.classes[0]
    demand, most = setting.demand, setting.max_gpus
    peaks = slot_peaks(demand)
    low, high = 0.01, 2.0
    for _ in range(50):
        target = (low + high) / 2
        needed = np.minimum(np.ceil(peaks / (one.max_sessions * target)).astype(np.int64), most)
        plan = plan_slots(needed, max_gpus=most, start_s=one.start_s)
        reached = experienced_utilization(demand, plan.gpus, one.max_sessions)
        if abs(reached / result.experienced_utilization - 1) < 0.001:
            break
        low, high = (low, target) if reached > result.experienced_utilization else (target, high)
    level = result.max_sessions_on_worker
    worst = plan_slots(np.minimum(-(-peaks // level), most), max_gpus=most, start_s=one.start_s)
    seconds = result.gpu_hours * 3600
    return {
        "experienced": seconds / plan.gpu_seconds - 1,
        "worst": seconds / worst.gpu_seconds - 1,
        "match": reached / result.experienced_utilization - 1,
    }


def policies_on_traces(
    fleets: Sequence[tuple[str, int]], seeds: Sequence[int], latency_weight: float
) -> dict[str, Any]:
    """Run all policies on all traces and return the figures and rows."""
    rows: list[dict[str, Any]] = []
    gaps: list[dict[str, Any]] = []
    ablations: list[dict[str, Any]] = []
    for calibration, max_gpus in fleets:
        for seed in seeds:
            start = time.perf_counter()
            setting = Setting.of(calibration, max_gpus, seed)
            oracle = Oracle.of(setting)
            for policy in POLICIES:
                result = setting.run(policy, latency_weight)
                rows += compare(setting, oracle, result)
                gaps.append({"policy": policy, "fleet": calibration, "seed": seed, **autoscale_gaps(setting, result)})
            for policy in ABLATIONS if seed == seeds[0] else ():
                result = setting.run(policy)
                ablations.append(
                    {
                        "policy": policy, "fleet": calibration, "seed": seed, "gpu_hours": result.gpu_hours,
                        "worst_s": result.worst_chunk_latency_s, "p99_s": result.p99_chunk_latency_s,
                    }
                )  # fmt: skip
            print(f"{calibration} seed {seed}: {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
    return {**summarise(rows, gaps), "rows": rows, "gaps": gaps, "ablations": ablations}


def merge(paths: Sequence[str]) -> dict[str, Any]:
    """Put runs of single settings together, from the JSON that each has printed."""
    runs = [json.loads(Path(path).read_text(encoding="utf-8")) for path in paths]
    rows, gaps, ablations = ([one for run in runs for one in run[key]] for key in ("rows", "gaps", "ablations"))
    return {**summarise(rows, gaps), "rows": rows, "gaps": gaps, "ablations": ablations}


def summarise(rows: Sequence[dict[str, Any]], gaps: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures of each policy over all settings."""
    figures: dict[str, Any] = {}
    for policy, prefix in POLICIES.items():
        mine = [row for row in rows if row["policy"] == policy]
        figures |= {f"{prefix}{key}": value for key, value in means_of(mine).items()}
        own = [gap for gap in gaps if gap["policy"] == policy]
        figures[f"{prefix}autoscale_gap_mean"] = statistics.fmean(gap["experienced"] for gap in own)
        figures[f"{prefix}autoscale_gap_max"] = max(gap["experienced"] for gap in own)
        figures[f"{prefix}autoscale_gap_worst_mean"] = statistics.fmean(gap["worst"] for gap in own)
    return figures


def share(part: float, whole: float) -> float | None:
    """Return a part of a whole, or None where the whole is nothing to share in."""
    return part / whole if whole > 0 else None


def means_of(rows: Sequence[dict[str, Any]]) -> dict[str, float | None]:
    """Return the means over rows, for both ways to measure latency, and the parts of them that are asked for."""
    figures: dict[str, float | None] = {}
    for suffix in ("", "_paper"):
        for kind in ("latency", "cost"):
            mean = statistics.fmean(row[f"{kind}_reduction{suffix}"] for row in rows)
            figures[f"{kind}_reduction{suffix}_mean"] = mean
            for bound, name in BOUNDS.items():
                best = statistics.fmean(row[f"{bound}_{kind}_reduction{suffix}"] for row in rows)
                figures[f"{kind}_share_of_{name}{suffix}"] = share(mean, best)
        figures[f"num_unreached{suffix}"] = sum(not row[f"is_reached{suffix}"] for row in rows)
    for field in ("baseline", "fleet"):
        for value in dict.fromkeys(str(row[field]) for row in rows):
            part = [row for row in rows if row[field] == value]
            for kind in ("latency", "cost"):
                figures[f"{kind}_reduction_{value}"] = statistics.fmean(row[f"{kind}_reduction"] for row in part)
    return figures


def placement_gaps(num_rounds: int = 80) -> dict[str, float]:
    """Return how far the controller's placements are from the exact optimum, on random states of mixed fleets.

    Fleets of 4 to 64 workers, alike or of three speeds; workers hold sessions as the trace leaves them, some new ones
    wait, and a budget limits the moves. The worst batch time counts after the moves are made.
    """
    rng = np.random.default_rng(7)
    gaps = []
    for index in range(num_rounds):
        num_workers = (4, 8, 16, 32, 64)[index % 5]
        one = calibrated_fleet(("h20-1.3b", "h20-7b", "b300-1.3b", "b300-7b")[index % 4], 1).classes[0]
        speeds = rng.choice([0.6, 1.0, 1.7], num_workers) if index % 2 else np.ones(num_workers)
        chunk_s = np.append(np.outer(speeds, one.chunk_s), np.full((num_workers, 1), np.inf), axis=1)
        count = np.minimum(rng.poisson(rng.uniform(0.2, 0.8) * one.max_sessions, num_workers), one.max_sessions)
        num_new, max_moves = int(rng.integers(0, 4)), int(rng.integers(0, num_workers))
        best = best_placement(count, chunk_s, num_new=num_new, max_moves=max_moves)
        plan = min_max_plan(count, chunk_s, num_new=num_new, max_moves=max_moves)
        if best is None or plan is None:
            assert (best is None) == (plan is None), "both find a placement, or neither"
            continue
        placed = plan.placed(count, num_new)
        assert int(np.maximum(count - placed, 0).sum()) <= max_moves, "the budget holds"
        worst = float(chunk_s[np.arange(num_workers), placed].max())
        gaps.append(worst / best.worst_s - 1)
    return {"placement_gap_mean": statistics.fmean(gaps), "placement_gap_max": max(gaps), "num_placements": len(gaps)}


def decision_times() -> dict[str, float]:
    """Return the decision time that 99 of 100 keep, with half of the fleet's load, by the fleet's size."""
    times = {}
    for num_gpus in (64, 256, 1024):
        fleet = calibrated_fleet("b300-1.3b", num_gpus)
        settings = TraceSettings(arrivals_per_second(fleet, duration_s=150.0), 1, 150.0)
        result = simulate(make_trace(settings), fleet, make_policy("fastvideo"))
        times[str(num_gpus)] = result.decide_ms_p99
    return times


def day() -> dict[str, Any]:
    """Return the time to simulate a day of 100,000 sessions with a daily wave on up to 512 GPUs."""
    trace = make_trace(TraceSettings(100_000 / 86_400, 1, 86_400.0, wave=0.6))
    fleet = calibrated_fleet("b300-1.3b", 512)
    start, start_cpu = time.perf_counter(), time.process_time()
    result = simulate(trace, fleet, make_policy("fastvideo"))
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - start_cpu
    return {
        "simulate_day_s": seconds,
        "simulate_day_cpu_s": cpu_seconds,
        "day_num_sessions": trace.num_sessions,
        "day_num_events": trace.num_events,
        "day_num_chunks": result.num_chunks,
    }


def main() -> None:
    """Measure and print."""
    parser = make_parser(__doc__.splitlines()[0], num_rounds=80)
    parser.add_argument("--only", choices=("policies", "placement", "decide", "day"), help="one part")
    parser.add_argument("--fleets", help="names of fleets, joined by commas (default: all four)")
    parser.add_argument("--seeds", help="seeds, joined by commas (default: 1 to 6)")
    parser.add_argument("--latency-weight", type=float, default=1.0, help="of the policies (default: %(default)s)")
    parser.add_argument("--merge", nargs="+", metavar="FILE", help="put JSON lines of `--only policies` together")
    args = parser.parse_args()
    if args.merge:
        report(merge(args.merge), as_json=args.json)
        return
    fleets = [one for one in FLEETS if args.fleets is None or one[0] in args.fleets.split(",")]
    seeds = SEEDS if args.seeds is None else tuple(map(int, args.seeds.split(",")))
    figures: dict[str, Any] = {}
    if args.only in (None, "policies"):
        figures |= policies_on_traces(fleets, seeds, args.latency_weight)
    if args.only in (None, "placement"):
        figures |= placement_gaps(args.rounds)
    if args.only in (None, "decide"):
        figures["decide_ms_p99"] = decision_times()
    if args.only in (None, "day"):
        figures |= day()
    if not args.json:
        figures = {key: value for key, value in figures.items() if not isinstance(value, list)}
    report(figures, as_json=args.json)


if __name__ == "__main__":
    main()
