"""What scheduling costs: one decision, and everything of the engine that is outside the step bodies.

    decide_us_N             one decision over N running requests, each with a step that is ready: who may start (one
                            request waits and does not fit), which steps share the next call, and what that is predicted
                            to take; N is 1, 8, 64 and 1,024
    cycle_us_N              the same with all that a call changes: its end, the measured time learnt from, and the next
                            steps of its requests priced and offered
    engine_us_per_unit_N    wall time of a real engine less the time in step bodies, a unit of work; N requests of a
                            tiny model at a time, from acceptance to the last latents; N is 8 and 64
    engine_cpu_us_per_unit_N    the same in processor time of the whole process, which other programs do not stretch

Decisions are those of `Scheduler` with prices of a `CostModel`, four batch keys, three latency classes, and deadlines
on every other request; calls take 8 ms and 3 ms more a request. Their times are processor time of the deciding thread,
means within a round, so that what happens only now and then counts, and other programs do not. Figures are medians over
rounds.
"""

from __future__ import annotations

import gc
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch

from _common import make_parser, report
from fastvideo_core import Engine
from fastvideo_core.cost import CostModel, DeviceIdentity
from fastvideo_core.loop.work import (
    BatchKey,
    CachePlan,
    PlacementHint,
    ResourceRequest,
    ShapeSignature,
    StepCost,
    WorkKind,
    WorkPlan,
)
from fastvideo_core.request.cancel import CancelScope
from fastvideo_core.runtime.engine import RuntimeOptions
from fastvideo_core.runtime.offers import Offers
from fastvideo_core.runtime.scheduler.base import DEFAULT_CLASSES, Batch, Job, Limits, ReadyStep, SchedulerConfig
from fastvideo_core.runtime.scheduler.core import Scheduler
from fastvideo_core.runtime.steps import CallOutcome
from fastvideo_testing.tiny import tiny_card, write_tiny_checkpoint

DECIDE_AT = (1, 8, 64, 1024)
ENGINE_AT = (8, 64)
TOKENS = (960, 960, 1536, 3600)
STEP_BYTES = 50_000_000
CLASSES = ("interactive", "standard", "standard", "batch")


class Load:
    """A scheduler with a number of running requests, and one more that waits.

    Args:
        num_running: Requests that have started; each always has a step that is ready or in a call.
    """

    def __init__(self, num_running: int) -> None:
        self.costs = CostModel(DeviceIdentity("cpu", "benchmark"))
        self.offers = Offers(tiny_card(Path("/nowhere")), self.costs)
        self.plans = [_plan(index) for index in range(len(TOKENS))]
        for plan in self.plans:
            for num_plans in range(1, 33):
                self.costs.observe(plan.batch_key, plan.resources.cost, num_plans, 8e-3 + 3e-3 * num_plans)
        config = SchedulerConfig(max_running=num_running + 1, max_queued=4)
        limits = Limits(memory_bytes=num_running * 4 * STEP_BYTES + 64 * STEP_BYTES)
        self.scheduler = Scheduler(config, limits, self.offers.predict)
        self.now = 0.0
        jobs = [self._job(index) for index in range(num_running)]
        for job in jobs:
            self.scheduler.submit(job, self.now)
            self.scheduler.start_jobs(self.now)
        assert len(self.scheduler.running) == num_running, "all requests have started"
        # It fits alone, and not beside the others.
        waiting = self._job(num_running)
        waiting.resident_bytes = limits.memory_bytes - 2 * STEP_BYTES if limits.memory_bytes else 0
        self.scheduler.submit(waiting, self.now)
        for index, job in enumerate(jobs):
            self.scheduler.offer(self._offer(job, self.plans[index % len(self.plans)]), self.now)

    def decide(self) -> Batch:
        """Make one decision."""
        self.scheduler.start_jobs(self.now)
        batch = self.scheduler.next_batch(self.now)
        assert batch is not None, "a step is always ready"
        return batch

    def go_on(self, batch: Batch) -> None:
        """End a call as predicted, learn from it, and offer the next steps of its requests."""
        self.now += batch.seconds
        self.offers.measured(batch, CallOutcome([], batch.seconds, is_clean=True))
        self.scheduler.finished(batch.worker, self.now, batch.seconds)
        for step in batch.steps:
            self.scheduler.offer(self._offer(step.job, step.handle[1]), self.now)

    def _job(self, index: int) -> Job:
        latency_class = DEFAULT_CLASSES[CLASSES[index % len(CLASSES)]]
        deadline_at = 1e6 + index if index % 2 else None
        return Job(
            f"request-{index}", latency_class, self.now, deadline_at=deadline_at, resident_bytes=3 * STEP_BYTES,
            peak_bytes=STEP_BYTES, remaining_s=1e3,
        )  # fmt: skip

    def _offer(self, job: Job, plan: WorkPlan[Any]) -> ReadyStep:
        return self.offers.make(job, plan, None, self.now)


def _plan(index: int) -> WorkPlan[Any]:
    tokens, rows = TOKENS[index], 1 + index % 2
    shape = ShapeSignature.of(frames=5, rows=index, columns=tokens)
    cost = StepCost(rows * (4e6 * tokens + 500.0 * tokens**2), 8e6, rows * 4e4 * tokens)
    return WorkPlan(
        loop_id="denoise",
        instance_id="tiny",
        kind=WorkKind.DIFFUSION_STEP,
        shape_sig=shape,
        resources=ResourceRequest(cost, peak_bytes=STEP_BYTES),
        cache=CachePlan(),
        placement=PlacementHint(),
        cancel_scope=CancelScope("request", "r"),
        emits=(),
        batch_key=BatchKey("tiny", "transformer", "denoise", shape, "float32", weights_version="w1", variant="fast"),
        payload=None,
    )


def decide_us(num_running: int, num_rounds: int) -> tuple[float, float]:
    """Return the processor time of one decision, and of one whole cycle, in microseconds."""
    load = Load(num_running)
    num_cycles = 300 if num_running < 1000 else 100
    decisions: list[float] = []
    cycles: list[float] = []
    clock_s = _clock_s()
    for index in range(num_rounds + 1):
        single_s = whole_s = 0.0
        with _no_collections():
            for _ in range(num_cycles):
                start = time.thread_time()
                batch = load.decide()
                decided = time.thread_time()
                load.go_on(batch)
                whole_s += time.thread_time() - start - clock_s
                single_s += decided - start - clock_s
        if index:  # the first round warms up
            decisions.append(single_s / num_cycles)
            cycles.append(whole_s / num_cycles)
    return 1e6 * statistics.median(decisions), 1e6 * statistics.median(cycles)


def _clock_s() -> float:
    """Return what reading the clock adds to an interval."""
    intervals = []
    for _ in range(1001):
        start = time.thread_time()
        intervals.append(time.thread_time() - start)
    return statistics.median(intervals)


class TimedBody:
    """A step body that adds up its time and its units."""

    def __init__(self, body: Any) -> None:
        self.body = body
        self.wall_s = 0.0
        self.cpu_s = 0.0
        self.num_units = 0

    def __call__(self, instance: Any, plans: Sequence[WorkPlan[Any]], ctx: Any) -> Any:
        """Run the body."""
        start, cpu = time.perf_counter(), time.thread_time()
        results = self.body(instance, plans, ctx)
        self.wall_s += time.perf_counter() - start
        self.cpu_s += time.thread_time() - cpu
        self.num_units += len(plans)
        return results


def engine_us(folder: Path, num_requests: int, num_steps: int) -> tuple[float, float]:
    """Return the microseconds a unit of work that an engine takes outside its step bodies: wall and processor time."""
    options = RuntimeOptions(scheduler=SchedulerConfig(max_running=num_requests))
    with Engine.open(tiny_card(folder), device="cpu", options=options) as engine:
        bodies = {name: TimedBody(body) for name, body in engine.instance.steps.items()}
        cast("Any", engine.instance).steps = bodies
        _run(engine, num_requests, 8)
        wall_before, cpu_before, units_before = _total(bodies)
        with _no_collections():
            start, cpu = time.perf_counter(), time.process_time()
            _run(engine, num_requests, num_steps)
            wall_s, cpu_s = time.perf_counter() - start, time.process_time() - cpu
        wall_after, cpu_after, units_after = _total(bodies)
        num_units = units_after - units_before
        return (
            1e6 * (wall_s - (wall_after - wall_before)) / num_units,
            1e6 * (cpu_s - (cpu_after - cpu_before)) / num_units,
        )


def _total(bodies: dict[str, TimedBody]) -> tuple[float, float, int]:
    """Return wall time, processor time and units of all bodies."""
    every = bodies.values()
    return sum(one.wall_s for one in every), sum(one.cpu_s for one in every), sum(one.num_units for one in every)


def _run(engine: Engine, num_requests: int, num_steps: int) -> None:
    requests = [
        engine.make_request(
            f"request {index}",
            outputs=("latents",),
            parameters={"seed": index, "num_inference_steps": num_steps, "guidance_scale": 1.0 + index % 3},
        )
        for index in range(num_requests)
    ]
    for handle in [engine.submit(request) for request in requests]:
        handle.result(timeout_s=300)


@contextmanager
def _no_collections() -> Iterator[None]:
    """Keep the garbage collector out of the timed part, which it would hit now and then."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def main() -> None:
    """Measure and print."""
    parser = make_parser(__doc__.splitlines()[0], num_rounds=7)
    parser.add_argument("--steps", type=int, default=200, help="steps of each request of the engine (default: 200)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    figures: dict[str, float] = {}
    for num_running in DECIDE_AT:
        decide, cycle = decide_us(num_running, args.rounds)
        figures |= {f"decide_us_{num_running}": decide, f"cycle_us_{num_running}": cycle}
    with tempfile.TemporaryDirectory() as scratch:
        write_tiny_checkpoint(Path(scratch))
        for num_requests in ENGINE_AT:
            rounds = [engine_us(Path(scratch), num_requests, args.steps) for _ in range(max(1, args.rounds // 2))]
            figures[f"engine_us_per_unit_{num_requests}"] = statistics.median(wall for wall, _ in rounds)
            figures[f"engine_cpu_us_per_unit_{num_requests}"] = statistics.median(cpu for _, cpu in rounds)
    report(figures, as_json=args.json)


if __name__ == "__main__":
    main()
