"""What is to be done with the jobs that an earlier process has left, whenever and however it ended.

A job is promised once its row says `queued`; before that come its row as `accepting` and its request in the store. It
has ended once its row says so; before that comes its result. So at every instant it is clear what is true.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from fastvideo_core.errors import FastVideoError, StateError
from fastvideo_core.runtime.durable import RefusedJob, SavedJob
from fastvideo_core.runtime.instance import ModelInstance
from fastvideo_core.runtime.serving import WeightStack
from fastvideo_server.jobs.records import JobRecord

if TYPE_CHECKING:
    from fastvideo_server.jobs.service import Shelf

__all__ = ["plan_recovery"]

_LOG = logging.getLogger(__name__)


def plan_recovery(
    shelf: Shelf, instance: ModelInstance, weights: Callable[[JobRecord], WeightStack | None]
) -> list[tuple[JobRecord, SavedJob, WeightStack | None]]:
    """Settle what can be settled, and return the jobs that go on, in the order in which they were accepted.

    Args:
        shelf: Where jobs are kept.
        instance: The model to go on with.
        weights: Gives the changes of weights that a job began under, or raises a FastVideoError.
    """
    going_on = []
    seen: set[str] = set()
    for saved in shelf.store.load(instance):
        seen.add(saved.job_id)
        record = shelf.database.get(saved.job_id)
        if isinstance(saved, RefusedJob):
            if record is not None and not record.is_final:
                _fail(shelf, record, saved.error)
            _LOG.warning("%s", saved.error)
            continue
        if record is None:  # the table was lost; what was written down with the request is enough
            record = JobRecord.from_json(saved.note["record"])
            shelf.database.insert(record)
        if record.is_final or _complete(shelf, record):
            shelf.store.finish(saved.job_id)
            continue
        try:
            stack = weights(record)
        except FastVideoError as error:
            _fail(shelf, record, error)
            shelf.store.finish(saved.job_id)
            continue
        record = replace(record, status="queued", run=record.run + 1)
        shelf.database.update(record)
        going_on.append((record, saved, stack))
    _settle_others(shelf, seen)
    return going_on


def _settle_others(shelf: Shelf, seen: set[str]) -> None:
    """Settle what the store has nothing of."""
    for record in shelf.database.unfinished():
        if record.job_id not in seen and not _complete(shelf, record):
            _give_up(shelf, record)
    for record in shelf.database.deleted():
        shelf.artifacts.remove(record.job_id)
        if record.idempotency_key is None:
            shelf.database.remove(record.job_id)


def _complete(shelf: Shelf, record: JobRecord) -> bool:
    """Note the end of a job whose result is there; say whether it is."""
    manifest = shelf.artifacts.manifest(record.job_id)
    if manifest is None:
        return False
    shelf.database.update(JobRecord.from_json(manifest["record"]))
    return True


def _give_up(shelf: Shelf, record: JobRecord) -> None:
    if record.status == "accepting":  # nobody was told that it is accepted
        shelf.database.remove(record.job_id)
    else:
        _fail(shelf, record, StateError(f"what there was of job {record.job_id} is lost"))


def _fail(shelf: Shelf, record: JobRecord, error: FastVideoError) -> None:
    shelf.database.update(
        replace(
            record, status="failed", completed_at=time.time(), error_code=type(error).__name__, error_message=str(error)
        )
    )
