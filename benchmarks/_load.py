"""Requests that arrive over time: traces, and an engine that is given one and timed."""

from __future__ import annotations

import math
import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from _shapes import make_request, prompts
from fastvideo_core import Engine
from fastvideo_core.errors import FastVideoError
from fastvideo_core.request.base import Request
from fastvideo_core.request.events import RequestCompleted
from fastvideo_core.runtime.engine import RuntimeOptions
from fastvideo_core.runtime.instance import ModelInstance
from fastvideo_core.runtime.scheduler.base import SchedulerConfig
from fastvideo_core.runtime.scheduler.log import DecisionLog

Kinds = Mapping[str, Mapping[str, Any]]
"""Parameters of each kind of request, by name."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request of a trace.

    Attributes:
        at_s: When it comes.
        kind: What it is.
        latency_class: How urgent it is.
        deadline_s: Seconds after its arrival by which it is due.
    """

    at_s: float
    kind: str
    latency_class: str = "standard"
    deadline_s: float | None = None


@dataclass(slots=True)
class Outcome:
    """What became of a request.

    Attributes:
        arrival: The request.
        end_s: When all its frames were there, after the trace's start; NaN if it failed.
    """

    arrival: Arrival
    end_s: float = math.nan

    @property
    def duration_s(self) -> float:
        """Seconds from when it was due to arrive to its frames."""
        return self.end_s - self.arrival.at_s

    @property
    def is_in_time(self) -> bool:
        """Whether it kept its deadline."""
        return self.arrival.deadline_s is not None and self.duration_s <= self.arrival.deadline_s


@dataclass(slots=True)
class Played:
    """A trace that was played.

    Attributes:
        outcomes: What became of its requests, in order of arrival.
        longest_wait_s: Longest that a step of a started request was ready and did not run, by latency class.
        batch_sizes: How many calls had how many steps.
    """

    outcomes: list[Outcome]
    longest_wait_s: dict[str, float] = field(default_factory=dict)
    batch_sizes: Counter[int] = field(default_factory=Counter)

    def durations(self, *kinds: str) -> list[float]:
        """Return the durations of some kinds."""
        return [one.duration_s for one in self.outcomes if one.arrival.kind in kinds]

    def attainment(self, kinds: Iterable[str] | None = None) -> float:
        """Return the share of deadlines kept, of some kinds or of all."""
        wanted = None if kinds is None else set(kinds)
        chosen = [one.is_in_time for one in self.outcomes if wanted is None or one.arrival.kind in wanted]
        return sum(chosen) / len(chosen) if chosen else math.nan

    @property
    def num_lost(self) -> int:
        """How many did not come to their frames."""
        return sum(math.isnan(one.end_s) for one in self.outcomes)


def quantile(values: Sequence[float], share: float) -> float:
    """Return a quantile by nearest rank; of no values, NaN."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else math.nan


def poisson(rate: float, horizon_s: float, rng: random.Random) -> list[float]:
    """Return the times of a Poisson process, up to a time."""
    times: list[float] = []
    now = rng.expovariate(rate)
    while now < horizon_s:
        times.append(now)
        now += rng.expovariate(rate)
    return times


def poisson_of_work(kinds: Mapping[str, float], work_s: float, horizon_s: float, rng: random.Random) -> list[Arrival]:
    """Return arrivals of some kinds in equal shares whose times alone add up to a given work.

    The times are those of a Poisson process, given how many come: independent and uniform. So a short trace has the
    load that it is meant to have, and not one that is off by its luck.

    Args:
        kinds: Seconds of each kind alone.
        work_s: Seconds of work in all.
        horizon_s: When the trace ends.
        rng: Random numbers.
    """
    count = max(len(kinds), round(work_s / statistics.mean(kinds.values())))
    names = [name for name, _ in zip(_endless(kinds), range(count), strict=False)]
    rng.shuffle(names)
    times = sorted(rng.uniform(0, horizon_s) for _ in names)
    return [Arrival(at_s, name) for at_s, name in zip(times, names, strict=True)]


def _endless(names: Iterable[str]) -> Iterable[str]:
    known = list(names)
    while True:
        yield from known


def alone_s(instance: ModelInstance, kinds: Kinds, costs_file: Path, *, num_rounds: int = 3) -> dict[str, float]:
    """Return the median seconds of each kind alone on the engine, and leave what the cost model learned in a file.

    After that it runs several of all kinds together, so that the file knows batches too.
    """
    texts = prompts(seed=99)
    options = RuntimeOptions(scheduler=SchedulerConfig(max_running=1), costs_file=costs_file)
    times: dict[str, list[float]] = {name: [] for name in kinds}
    with Engine(instance, options=options) as engine:
        for index in range(num_rounds + 1):
            for name, parameters in kinds.items():
                request = make_request(instance.card, next(texts), f"{name}-{index}", seed=1, **parameters)
                start_s = time.perf_counter()
                engine.submit(request).result()
                times[name].append(time.perf_counter() - start_s)
    with Engine(instance, options=RuntimeOptions(costs_file=costs_file)) as engine:
        requests = [
            make_request(instance.card, next(texts), f"{name}-{number}", seed=1, **_shortened(kinds[name]))
            for number in range(4)
            for name in kinds
        ]
        for handle in [engine.submit(request) for request in requests]:
            handle.result()
    return {name: statistics.median(values[1:]) for name, values in times.items()}


def _shortened(parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {**parameters, "num_inference_steps": min(4, parameters.get("num_inference_steps", 4))}


def play(
    instance: ModelInstance,
    kinds: Kinds,
    trace: Sequence[Arrival],
    options: RuntimeOptions,
) -> Played:
    """Give an engine the requests of a trace at their times, and wait until all have ended."""
    outcomes = [Outcome(arrival) for arrival in trace]
    log = DecisionLog()
    with Engine(instance, options=replace(options, log=log)) as engine:
        texts = prompts(seed=5)
        requests = [_request(instance, kinds, arrival, number, next(texts)) for number, arrival in enumerate(trace)]
        zero_s = time.perf_counter() + 0.05

        def listener(outcome: Outcome) -> Callable[[Any], None]:
            def on_event(event: Any) -> None:
                if isinstance(event, RequestCompleted):
                    outcome.end_s = time.perf_counter() - zero_s

            return on_event

        handles = []
        for request, outcome in zip(requests, outcomes, strict=True):
            time.sleep(max(0.0, zero_s + outcome.arrival.at_s - time.perf_counter()))
            handles.append(engine.submit(request, on_event=listener(outcome)))
        for handle in handles:
            try:
                handle.result()
            except FastVideoError as error:
                print(f"{handle.request_id}: {error}")
    return Played(outcomes, *_waits_and_batches(log))


def _request(instance: ModelInstance, kinds: Kinds, arrival: Arrival, number: int, prompt: str) -> Request:
    fields: dict[str, Any] = {**kinds[arrival.kind], "seed": number, "latency_class": arrival.latency_class}
    if arrival.deadline_s is not None:
        fields["deadline_s"] = arrival.deadline_s
    return make_request(instance.card, prompt, f"r{number}", **fields)


def _waits_and_batches(log: DecisionLog) -> tuple[dict[str, float], Counter[int]]:
    """Return how long ready steps waited at the most, by class, and the sizes of calls."""
    classes: dict[str, str] = {}
    offered: list[tuple[float, str]] = []
    waits: dict[str, float] = {}
    sizes: Counter[int] = Counter()
    for kind, now, subject, *_ in log.records:
        if kind == "submit":
            classes[subject["job_id"]] = subject["latency_class"]["name"]
        elif kind in ("offer", "offer_transfer"):
            offered.append((now, classes[subject["job"]]))
        elif kind == "batch" and subject is not None:
            sizes[len(subject[1])] += 1
            for step_id in subject[1]:
                ready_at, name = offered[step_id]
                waits[name] = max(waits.get(name, 0.0), now - ready_at)
    return waits, sizes
