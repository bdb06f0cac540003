"""Whether jobs can be worked on: what is wrong, in words, if anything is."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

from fastvideo_core.errors import FastVideoError
from fastvideo_server.jobs.service import JobService
from fastvideo_server.watch import SchedulerWatch

__all__ = ["Health"]

_ANSWER_S = 2.0
_PUMP_S = 5.0


class Health:
    """Looks at everything that a job needs.

    Args:
        service: The jobs.
        watch: What the scheduler does; None where nobody looks.
    """

    def __init__(self, service: JobService, watch: SchedulerWatch | None = None) -> None:
        self._service = service
        self._watch = watch

    def problems(self) -> list[str]:
        """Return what is wrong, one line each; takes up to two seconds, on a thread of its own."""
        return [*self._server_problems(), *self._engine_problems()]

    def _server_problems(self) -> Iterator[str]:
        service = self._service
        if service.is_draining:
            yield "the server stops"
        if service.pump.silence_s > _PUMP_S:
            yield "the queue is not worked on"
        if (problem := service.shelf.artifacts.problem()) is not None:
            yield problem
        try:
            free = shutil.disk_usage(service.config.folder).free
        except OSError as error:
            yield f"the server's folder is gone: {error.strerror}"
        else:
            if free < service.config.min_free:
                yield f"the disk is full: {free >> 20} MiB free, {service.config.min_free >> 20} MiB needed"
        try:
            service.shelf.database.check()
        except FastVideoError as error:
            yield f"the table of jobs cannot be written: {error}"

    def _engine_problems(self) -> Iterator[str]:
        engine = self._service.engine
        if not engine.is_healthy:
            yield "the engine does not work: a worker is gone, or a device is being rebuilt"
        elif not engine.responds(_ANSWER_S):
            yield "the engine does not respond"
        if self._watch is not None and (age_s := self._watch.oldest_s()) > self._service.config.stall_s:
            yield f"a step has been running for {age_s:.0f} s"
