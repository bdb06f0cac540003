"""Jobs and steps with few words."""

from __future__ import annotations

from itertools import count

import pytest

from fastvideo_core.runtime.scheduler.base import DEFAULT_CLASSES, Job, ReadyStep
from fastvideo_core.runtime.scheduler.ordering import order_of


@pytest.fixture
def make_job():
    """Return a function that makes jobs, each accepted after the one before."""
    numbers = count()

    def make(latency_class="standard", accepted_at=0.0, job_id=None, **fields):
        number = next(numbers)
        chosen = DEFAULT_CLASSES[latency_class] if isinstance(latency_class, str) else latency_class
        job = Job(job_id or f"j{number}", chosen, accepted_at, number, **fields)
        job.order = order_of(job)
        return job

    return make


@pytest.fixture
def make_step(make_job):
    """Return a function that makes ready steps, of a job of their own if none is given."""

    def make(job=None, group=0, patience_at=1e9, max_batch=32, **fields):
        return ReadyStep(job or make_job(), group, patience_at, max_batch=max_batch, **fields)

    return make
