"""What is looked at when an engine accepts a request, besides what `prepare_request` has checked."""

from __future__ import annotations

import time

from fastvideo_core.errors import InputError
from fastvideo_core.program.base import ModelLoopNode
from fastvideo_core.runtime.instance import ModelInstance
from fastvideo_core.runtime.prepare import PreparedRequest
from fastvideo_core.runtime.scheduler.base import Job, SchedulerConfig

__all__ = ["check_fits", "make_job"]


def make_job(prepared: PreparedRequest, config: SchedulerConfig) -> Job:
    """Return the scheduler's view of a request, its needs not yet known.

    Raises:
        InputError: Its latency class is not one of the engine's.
    """
    request, now = prepared.request, time.monotonic()
    latency_class = config.classes.get(request.latency_class)
    if latency_class is None:
        raise InputError(
            "no such class", field="latency_class", value=request.latency_class, allowed=", ".join(config.classes)
        )
    deadline_at = None if request.deadline_s is None else now + request.deadline_s
    return Job(request.request_id, latency_class, now, deadline_at=deadline_at)


def check_fits(prepared: PreparedRequest, instance: ModelInstance) -> None:
    """Refuse a request of another card, or one whose loops need what is not loaded, before any step is made.

    Raises:
        InputError: It is of another card.
        CheckpointError: A loop needs components that are not loaded.
    """
    if prepared.card is not instance.card and prepared.card != instance.card:
        raise InputError(
            "the request was prepared for another card", field="card", value=prepared.card.model_id,
            allowed=instance.card.model_id,
        )  # fmt: skip
    for node in prepared.nodes:
        if isinstance(node, ModelLoopNode):
            instance.loop(node.loop)
