"""What the control plane keeps of a request in progress."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from fastvideo_core.cache import Claim, FeatureHandle
from fastvideo_core.runtime.durable.base import NodeState
from fastvideo_core.runtime.estimate import RequestEstimate
from fastvideo_core.runtime.instance import ModelInstance
from fastvideo_core.runtime.progress import StepReport
from fastvideo_core.runtime.run import GenerationResult, Node, RequestRun
from fastvideo_core.runtime.scheduler.base import Job, ReadyStep

__all__ = ["Active", "Rebuilt", "Reports", "Task"]


@dataclass(slots=True, eq=False)
class Task:
    """A node in progress.

    Attributes:
        active: Its request.
        node: The node; None for what is done after the last one.
        coroutine: What runs; None once it has ended.
        step: What it has asked for and not been given.
        is_in_flight: Whether that is on a worker.
        is_waiting: Whether it waits for something from outside, or for a time.
        timer: What ends its wait for a time.
        claim: Its claim to a shared result that it makes or waits for.
    """

    active: Active
    node: Node | None
    coroutine: Coroutine[Any, Any, Any] | None
    step: ReadyStep | None = None
    is_in_flight: bool = False
    is_waiting: bool = False
    timer: asyncio.TimerHandle | None = None
    claim: Claim | None = None

    def asked_nothing(self) -> None:
        """Forget what it has asked for, as it is given that, or something else."""
        if self.timer is not None:
            self.timer.cancel()
        self.step, self.is_waiting, self.timer = None, False, None

    def drop_claim(self) -> None:
        """Let whoever waits for the result that it was to make look elsewhere."""
        claim, self.claim = self.claim, None
        if claim is not None:
            claim.abandon()

    def close(self) -> ReadyStep | None:
        """End it, and return the step that nobody wants any more."""
        coroutine, self.coroutine = self.coroutine, None
        if coroutine is not None:
            coroutine.close()
        self.drop_claim()
        step = self.step
        self.asked_nothing()
        return step


@dataclass(slots=True, eq=False)
class Active:
    """A request that has been accepted and has not ended.

    Attributes:
        run: The request.
        job: The same, for the scheduler.
        future: Its result to come.
        on_end: Called once it has ended, before the result is there.
        tasks: Nodes in progress.
        error: Why it is about to end early, while its latents are saved.
        handles: Shared results that it holds.
        num_lost: Calls of its that ended with the worker.
        estimate: What it was admitted with.
    """

    run: RequestRun
    job: Job
    future: Future[GenerationResult] = field(default_factory=Future)
    on_end: Callable[[], None] = lambda: None
    tasks: dict[Task, None] = field(default_factory=dict)
    error: Exception | None = None
    handles: list[FeatureHandle] = field(default_factory=list)
    num_lost: int = 0
    estimate: RequestEstimate | None = None


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """A model that was loaded anew.

    Attributes:
        instance: The model.
        nodes: Nodes of requests as they were last saved, by request.
    """

    instance: ModelInstance
    nodes: Mapping[str, Mapping[str, NodeState]]


class Reports:
    """What is still to be told of committed steps, so that no device waits while it is told.

    Args:
        failed: Given a request, and why nothing could be told of its step.
    """

    def __init__(self, failed: Callable[[str, Exception], None]) -> None:
        self._failed = failed
        self._waiting: deque[tuple[RequestRun, StepReport]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, run: RequestRun, report: StepReport) -> None:
        """Take what is to be told of a step."""
        self._waiting.append((run, report))

    def give_out(self) -> None:
        """Tell it all, in order."""
        while self._waiting:
            run, report = self._waiting.popleft()
            try:
                run.progress.committed(*report)
            except Exception as error:  # noqa: BLE001 - it ends that request alone
                self._failed(run.request_id, error)
