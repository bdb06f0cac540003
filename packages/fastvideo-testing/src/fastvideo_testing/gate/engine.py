"""Runs requests on the real engine, with settings under which it lets them alternate as often as it can."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from fastvideo_core.errors import FastVideoError
from fastvideo_core.runtime.engine import Engine, RequestHandle, RuntimeOptions
from fastvideo_core.runtime.instance import ModelInstance
from fastvideo_core.runtime.scheduler.base import LatencyClass, SchedulerConfig
from fastvideo_testing.gate.pool import Outcome
from fastvideo_testing.gate.requests import GatePlan

__all__ = ["run_on_engine"]

_IN_TURN = {"standard": LatencyClass("standard", 0, patience_s=0.0)}
"""Who has no patience is served in turn."""


def run_on_engine(
    instance: ModelInstance, plan: GatePlan, *, seed: int = 0, max_batch: int = 8, timeout_s: float = 300.0
) -> dict[str, Outcome]:
    """Run all requests of a plan at once; some are cancelled when they have made so many steps.

    Args:
        instance: The model.
        plan: The requests.
        seed: Decides the order in which they come.
        max_batch: Most plans in a call.
        timeout_s: Seconds that a request may take.
    """
    requests = list(plan.requests)
    random.Random(seed).shuffle(requests)
    config = SchedulerConfig(max_running=len(requests), max_batch=max_batch, classes=_IN_TURN)
    handles: dict[str, RequestHandle] = {}
    with Engine(instance, options=RuntimeOptions(scheduler=config)) as engine:
        for one in requests:
            request_id = one.request.request_id
            on_event = _canceller(handles, request_id, plan.cancelled.get(request_id))
            handles[request_id] = engine.submit_prepared(one, on_event=on_event)
        return {name: _outcome(handle, timeout_s) for name, handle in handles.items()}


def _canceller(handles: dict[str, RequestHandle], request_id: str, after: int | None) -> Callable[[Any], None] | None:
    if after is None:
        return None
    steps = iter(range(1, after))

    def look(event: Any) -> None:
        if event.type == "request.progress" and next(steps, None) is None and request_id in handles:
            handles[request_id].cancel("cancelled by the gate")

    return look


def _outcome(handle: RequestHandle, timeout_s: float) -> Outcome:
    try:
        return Outcome(handle.result(timeout_s).artifacts)
    except FastVideoError as error:
        return Outcome(error=error)
