"""Requests of unequal sizes on one worker: decisions at every step, against decisions at every request.

Both are the same engine, with `SchedulerConfig(dispatch=...)`: `step`, `request_fifo` or `request_edf`.

First trace: long jobs (81 frames, 50 steps, guidance 5) at 0 s and every 20 s; short ones (17 frames, 8 steps, no
guidance, of the interactive class) by a Poisson process of seed 7, as many as make all work 70 % of the measured serial
capacity.
    p95_short_ratio        95th percentile of the short jobs' durations, by step over by request
    long_total_ratio       time from the first long job's arrival to the last one's end, by step over by request
    long_duration_ratio    durations of all long jobs, by step over by request; work that short jobs no longer wait for
                           is work that a long one waits for
    longest_wait_s         longest that a ready step of any request waited: starvation would show here

Second trace: images in three resolutions and videos of three lengths, half of the work each, at 90 % of the capacity;
each due after 2.5 times its time alone.
    slo_attainment_gain    share of deadlines kept by step, less that of the better of first-come-first-served and
                           earliest-deadline-first by request

Falsifiers, each with a verdict. Step-level dispatch: the first trace. `tiles`: the second trace with the decoding of a
video in several units, and in one. `transfers`: denoise steps with a copy of the weights, or a checkpoint on the disk,
beside each, and in line with it. `pools`: the first trace on two workers of one thread each, both of which take
everything, or one of which takes short steps only.
"""

from __future__ import annotations

import os
import random
import statistics
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import torch
from safetensors.torch import save

from _common import interleaved, make_parser, ratio, report
from _load import Arrival, Kinds, Played, alone_s, play, poisson, poisson_of_work, quantile
from _shapes import DENOISE_STEP, add_weights, load_shapes, make_request
from fastvideo_core import Engine
from fastvideo_core.card import ModelCard
from fastvideo_core.runtime.device import DevicePlane
from fastvideo_core.runtime.engine import RuntimeOptions
from fastvideo_core.runtime.instance import ModelInstance
from fastvideo_core.runtime.loading import load_instance
from fastvideo_core.runtime.scheduler.base import CostClass, SchedulerConfig, WorkerSlot
from fastvideo_core.runtime.steps import run_call

LONG_EVERY_S = 20.0
IMAGE_SIZES = ((64, 64), (64, 96), (96, 64))
VIDEO_FRAMES = (17, 33, 81)
STEP = SchedulerConfig(max_running=32, max_queued=100_000)
FIFO = replace(STEP, dispatch="request_fifo")
EDF = replace(STEP, dispatch="request_edf")


@dataclass(frozen=True)
class Bench:
    """What all parts need.

    Attributes:
        instance: The model.
        kinds: Parameters of all kinds of requests.
        alone: Seconds of each kind alone.
        costs: Contents of the cost model's file after that; every run begins with them.
        horizon_s: Seconds in which requests arrive.
        num_rounds: How often each kind was timed alone.
    """

    instance: ModelInstance
    kinds: Kinds
    alone: Mapping[str, float]
    costs: bytes
    horizon_s: float
    num_rounds: int

    @classmethod
    def measured(cls, instance: ModelInstance, kinds: Kinds, horizon_s: float, num_rounds: int) -> Self:
        """Time each kind alone, which calibrates the cost model too."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "costs.json"
            alone = alone_s(instance, kinds, path, num_rounds=num_rounds)
            return cls(instance, kinds, alone, path.read_bytes(), horizon_s, num_rounds)

    def play(
        self,
        trace: list[Arrival],
        config: SchedulerConfig,
        *,
        instance: ModelInstance | None = None,
        workers: tuple[WorkerSlot, ...] = (),
    ) -> Played:
        """Play a trace with the cost model as it was at first."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "costs.json"
            path.write_bytes(self.costs)
            options = RuntimeOptions(scheduler=config, costs_file=path, workers=workers)
            return play(instance or self.instance, self.kinds, trace, options)

    def images(self) -> dict[str, float]:
        """Return the kinds of images, with their seconds alone."""
        return {name: seconds for name, seconds in self.alone.items() if name.startswith("image")}

    def videos(self) -> dict[str, float]:
        """Return the kinds of videos of the second trace, with their seconds alone."""
        return {name: seconds for name, seconds in self.alone.items() if name.startswith("video")}


def make_kinds(card: ModelCard, *, quick: bool) -> dict[str, dict[str, Any]]:
    """Return all kinds of requests; lengths beyond the card's longest are cut to that."""
    longest = int(card.capabilities.tasks[card.capabilities.default_task].parameters["num_frames"].maximum or 81)
    frames = {count: min(count, longest) for count in (*VIDEO_FRAMES, 81)}
    kinds: dict[str, dict[str, Any]] = {
        "long": {"num_frames": frames[81], "num_inference_steps": 50, "guidance_scale": 5.0},
        "short": {"num_frames": 17, "num_inference_steps": 8, "guidance_scale": 1.0},
    }
    for height, width in IMAGE_SIZES[: 1 if quick else None]:
        kinds[f"image-{height}x{width}"] = {"num_frames": 1, "height": height, "width": width}
    for count in dict.fromkeys(frames[count] for count in VIDEO_FRAMES[: 1 if quick else None]):
        kinds[f"video-{count}"] = {"num_frames": count}
    if quick:
        small = {"num_inference_steps": 2, "height": 48, "width": 48}
        kinds = {name: {**parameters, **small} for name, parameters in kinds.items()}
        kinds["long"] |= {"num_inference_steps": 6, "num_frames": 33}
    return kinds


def kinds_of(kinds: Kinds, parts: Iterable[str]) -> Kinds:
    """Return the kinds of requests that some parts need."""
    firsts = ("long", "short")
    needs = {"first": True, "pools": True, "transfers": True, "second": False, "tiles": False}
    wanted = {needs[part] for part in parts}
    return {name: parameters for name, parameters in kinds.items() if (name in firsts) in wanted}


def first_trace(bench: Bench, num_workers: int = 1) -> list[Arrival]:
    """Return long jobs at fixed times, and short ones up to 70 % of the capacity of some workers."""
    starts = [LONG_EVERY_S * index for index in range(1 + int((bench.horizon_s - 1e-9) // LONG_EVERY_S))]
    free_s = 0.7 * num_workers * bench.horizon_s - len(starts) * bench.alone["long"]
    if free_s <= 0:
        raise SystemExit(f"{len(starts)} long jobs of {bench.alone['long']:.1f} s alone are more than 70 % of the time")
    rate = free_s / (bench.horizon_s * bench.alone["short"])
    shorts = [Arrival(at_s, "short", "interactive") for at_s in poisson(rate, bench.horizon_s, random.Random(7))]
    return sorted([Arrival(at_s, "long") for at_s in starts] + shorts, key=lambda arrival: arrival.at_s)


def second_trace(bench: Bench) -> list[Arrival]:
    """Return images and videos, half of the work each, at 90 % of the capacity, with deadlines."""
    rng = random.Random(11)
    work_s = 0.45 * bench.horizon_s
    arrivals = [
        one
        for kinds in (bench.images(), bench.videos())
        for one in poisson_of_work(kinds, work_s, bench.horizon_s, rng)
    ]
    due = [replace(one, deadline_s=2.5 * bench.alone[one.kind]) for one in arrivals]
    return sorted(due, key=lambda arrival: arrival.at_s)


def run_first(bench: Bench) -> dict[str, Any]:
    """Play the first trace, by step and by request."""
    trace = first_trace(bench)
    request, step = bench.play(trace, FIFO), bench.play(trace, STEP)
    p95_request_s, p95_step_s = (quantile(played.durations("short"), 0.95) for played in (request, step))
    total_request_s, total_step_s = (_last_end(played, "long") for played in (request, step))
    figures = {
        "p95_short_ratio": p95_step_s / p95_request_s,
        "long_total_ratio": total_step_s / total_request_s,
        "long_duration_ratio": sum(step.durations("long")) / sum(request.durations("long")),
        "p95_short_step_s": p95_step_s,
        "p95_short_request_s": p95_request_s,
        "num_short": len(step.durations("short")),
        "longest_wait_s": max(step.longest_wait_s.values()),
        "lost": request.num_lost + step.num_lost,
    }
    wins = figures["p95_short_ratio"] <= 0.25 and figures["long_total_ratio"] <= 1.05
    return {**figures, "verdict_step_level": "keep step-level dispatch" if wins else "request-level dispatch does"}


def run_second(bench: Bench) -> dict[str, Any]:
    """Play the second trace, by step and by request in both orders."""
    trace = second_trace(bench)
    played = {name: bench.play(trace, config) for name, config in (("fifo", FIFO), ("edf", EDF), ("step", STEP))}
    shares = {name: one.attainment() for name, one in played.items()}
    parts = {
        f"slo_{name}_{what}": played[name].attainment(kinds)
        for name in played
        for what, kinds in (("images", bench.images()), ("videos", bench.videos()))
    }
    return {
        "slo_attainment_gain": shares["step"] - max(shares["fifo"], shares["edf"]),
        **{f"slo_{name}": share for name, share in shares.items()},
        **parts,
        "num_second": len(trace),
        "lost_second": sum(one.num_lost for one in played.values()),
    }


def run_tiles(bench: Bench) -> dict[str, Any]:
    """Play the second trace with videos decoded in several units, and in one."""
    trace = second_trace(bench)
    few_pixels = 17 * 64 * 64
    cards = {"tiles": _with_tiles(bench.instance.card, few_pixels), "whole": _with_tiles(bench.instance.card, 1 << 40)}
    played = {name: bench.play(trace, STEP, instance=load_instance(card)) for name, card in cards.items()}
    p95_s = {name: quantile(one.durations(*bench.images()), 0.95) for name, one in played.items()}
    shares = {name: one.attainment() for name, one in played.items()}
    wins = shares["tiles"] > shares["whole"] or (shares["tiles"] == shares["whole"] and p95_s["tiles"] < p95_s["whole"])
    return {
        "slo_tiles": shares["tiles"],
        "slo_whole_decode": shares["whole"],
        "p95_image_tiles_s": p95_s["tiles"],
        "p95_image_whole_decode_s": p95_s["whole"],
        "verdict_tiles": "keep tiles as units" if wins else "decode in one unit",
    }


def run_pools(bench: Bench) -> dict[str, Any]:
    """Play the first trace on two workers of one thread each: both take everything, or one takes short steps only."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        pair = {name: bench.kinds[name] for name in ("long", "short")}
        bench = Bench.measured(bench.instance, pair, bench.horizon_s, bench.num_rounds)
        trace = first_trace(bench, num_workers=2)
        config = replace(STEP, jumbo_s=_between_steps(bench))
        small: frozenset[CostClass] = frozenset({"small"})
        slots = {
            "fine": (WorkerSlot(), WorkerSlot()),
            "pools": (WorkerSlot(cost_classes=small), WorkerSlot()),
        }
        played = {name: bench.play(trace, config, workers=workers) for name, workers in slots.items()}
    finally:
        torch.set_num_threads(threads)
    p95_s = {name: quantile(one.durations("short"), 0.95) for name, one in played.items()}
    long_s = {name: statistics.mean(one.durations("long")) for name, one in played.items()}
    wins = p95_s["fine"] <= p95_s["pools"]
    return {
        "p95_short_fine_s": p95_s["fine"],
        "p95_short_pools_s": p95_s["pools"],
        "long_fine_s": long_s["fine"],
        "long_pools_s": long_s["pools"],
        "verdict_pools": "interleave finely" if wins else "cost-class pools where there are two workers",
    }


def run_transfers(bench: Bench) -> dict[str, Any]:
    """Run denoise steps with data to be moved or stored, in line with the steps and beside them."""
    step = _one_step(bench)
    figures: dict[str, Any] = {}
    plane = DevicePlane(1, lambda function: function())
    with tempfile.TemporaryDirectory() as folder:
        moves = {"transfer": _copy_weights(bench.instance), "cache_io": _checkpoint(Path(folder))}
        for name, move in moves.items():
            cases = {"inline": partial(_in_line, plane, step, move), "beside": partial(_beside, plane, step, move)}
            times = interleaved(cases, num_rounds=5)
            figures[f"{name}_beside_over_inline"] = ratio(times, "beside", "inline")
    plane.close()
    loses = [name for name in moves if figures[f"{name}_beside_over_inline"] > 0.97]
    kept = " and ".join(name for name in moves if name not in loses)
    verdict = f"keep beside the steps: {kept or 'nothing'}"
    if loses:
        verdict += f"; in line does for {', '.join(loses)}"
    return {**figures, "verdict_transfers": verdict}


def _one_step(bench: Bench) -> Callable[[], object]:
    """Return a denoise step of a long job, as it is given to a worker."""
    found: list[Callable[[], object]] = []
    body = bench.instance.steps["diffusion_denoise"]

    def keep(instance: ModelInstance, plans: Any, ctx: Any) -> Any:
        if plans[0].batch_key.loop_kind == DENOISE_STEP:
            found.append(lambda: run_call(instance, plans))
        return body(instance, plans, ctx)

    bench.instance.steps["diffusion_denoise"] = keep
    try:
        with Engine(bench.instance) as engine:
            request = make_request(bench.instance.card, "a red circle", "one", seed=1, **bench.kinds["short"])
            engine.submit(request).result()
    finally:
        bench.instance.steps["diffusion_denoise"] = body
    return found[-1]


def _copy_weights(instance: ModelInstance) -> Callable[[], object]:
    """Return what moves the transformer's weights to another place and back."""
    weights = [weight.detach() for weight in instance.component("transformer").parameters()]
    places = [torch.empty_like(weight) for weight in weights]

    def move() -> None:
        for weight, place in zip(weights, places, strict=True):
            place.copy_(weight)

    return move


def _checkpoint(folder: Path) -> Callable[[], object]:
    """Return what writes a video's latents to the disk, and waits until they are there."""
    latents = torch.zeros(1, 16, 21, 8, 8)

    def write() -> None:
        with (folder / "latents.safetensors").open("wb") as file:
            file.write(save({"latents": latents}))
            file.flush()
            os.fsync(file.fileno())

    return write


NUM_STEPS = 16


def _in_line(plane: DevicePlane, step: Callable[[], object], move: Callable[[], object]) -> None:
    """Run steps and moves on a pool's worker, one after the other."""
    ended = threading.Semaphore(0)
    for _ in range(NUM_STEPS):
        plane.run(0, step, lambda _: ended.release())
        plane.run(0, move, lambda _: ended.release())
    for _ in range(2 * NUM_STEPS):
        ended.acquire()


def _beside(plane: DevicePlane, step: Callable[[], object], move: Callable[[], object]) -> None:
    """Run the steps on a pool's worker and the moves on its link."""
    ended = threading.Semaphore(0)
    for _ in range(NUM_STEPS):
        plane.run(0, step, lambda _: ended.release())
        plane.transfer(move, lambda _: ended.release())
    for _ in range(2 * NUM_STEPS):
        ended.acquire()


def _between_steps(bench: Bench) -> float:
    """Return seconds that a short job's steps stay below, and a long one's exceed."""
    long_s, short_s = (bench.alone[name] / int(bench.kinds[name]["num_inference_steps"]) for name in ("long", "short"))
    return 0.5 * (long_s + short_s)


def _with_tiles(card: ModelCard, max_step_pixels: int) -> ModelCard:
    loop = card.loops["vae_decode"]
    changed = loop.model_copy(update={"options": {**loop.options, "max_step_pixels": max_step_pixels}})
    return card.model_copy(update={"loops": {**card.loops, "vae_decode": changed}})


def _last_end(played: Played, kind: str) -> float:
    chosen = [one for one in played.outcomes if one.arrival.kind == kind]
    return max(one.end_s for one in chosen) - min(one.arrival.at_s for one in chosen)


RUNS = {"first": run_first, "second": run_second, "tiles": run_tiles, "transfers": run_transfers, "pools": run_pools}


def main() -> None:
    """Measure and print."""
    parser = make_parser(__doc__.splitlines()[0], num_rounds=3)
    add_weights(parser)
    parser.add_argument("--seconds", type=float, default=120.0, help="length of each trace (default: %(default)s)")
    parser.add_argument("--only", nargs="+", choices=RUNS, default=tuple(RUNS), help="parts of it; without it, all")
    parser.add_argument("--quick", action="store_true", help="requests of two steps, to see that it runs")
    args = parser.parse_args()
    instance = load_shapes(args.weights)
    kinds = kinds_of(make_kinds(instance.card, quick=args.quick), args.only)
    bench = Bench.measured(instance, kinds, args.seconds, args.rounds)
    if args.quick:
        bench = replace(bench, horizon_s=max(args.seconds, *(4 * seconds for seconds in bench.alone.values())))
    figures: dict[str, Any] = {}
    for name in args.only:
        figures |= RUNS[name](bench)
    figures |= {f"alone_{name}_s": seconds for name, seconds in bench.alone.items()}
    report({**figures, "seconds": bench.horizon_s, "num_threads": torch.get_num_threads()}, as_json=args.json)


if __name__ == "__main__":
    main()
