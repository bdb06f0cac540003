"""The control plane: steps the loops of all requests, asks the scheduler what runs next, and hands it to a worker.

Everything here runs on one thread, the control plane's; only `ControlPlane.call` may be used from others.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from fastvideo_core.cache import FeatureHandle
from fastvideo_core.errors import CancelledError, ExecutionError, FastVideoError, WorkerLostError, describe_failure
from fastvideo_core.loop.work import StepResult, Wait, WorkKind, WorkPlan
from fastvideo_core.request.artifacts import Artifact
from fastvideo_core.runtime.active import Active, Rebuilt, Reports, Task
from fastvideo_core.runtime.compile_cache import CompileCache
from fastvideo_core.runtime.control_pauses import PausableControl
from fastvideo_core.runtime.device import DevicePlane
from fastvideo_core.runtime.failures import as_failure, release_frames
from fastvideo_core.runtime.instance import ModelInstance
from fastvideo_core.runtime.offers import Offers
from fastvideo_core.runtime.run import GenerationResult, HostWork, Node
from fastvideo_core.runtime.scheduler.base import Batch, ReadyStep
from fastvideo_core.runtime.scheduler.core import Scheduler
from fastvideo_core.runtime.sharing import SharedResults
from fastvideo_core.runtime.steps import CallOutcome, Tap, run_call

__all__ = ["ControlPlane"]

_LOG = logging.getLogger(__name__)
REPORT_AFTER_S = 2e-4
"""When committed steps are told of, once the next call has been handed over."""
_TRANSFERS = frozenset({WorkKind.TRANSFER, WorkKind.CACHE_IO})
"""Kinds that use a link and not the device, so that they run beside its steps."""


class ControlPlane(PausableControl):
    """Runs requests on one resident model.

    Args:
        instance: The model.
        scheduler: Decides.
        offers: Makes offers to the scheduler of what the loops ask for.
        shared: Results that requests share.
        tap: Observer of intermediate tensors.
        compiler: Offers compiled blocks to the steps; None runs all eagerly.
        on_committed: Told the request, and the seconds of compute of each of its committed steps.
        on_cancelled: Told the request before a cancellation drops its states.
        rebuild: Loads the model anew, on a worker, after its device was lost; returns it with the last checkpoints of
            some requests. None if it cannot be.
    """

    def __init__(
        self,
        instance: ModelInstance,
        scheduler: Scheduler,
        offers: Offers,
        shared: SharedResults,
        *,
        tap: Tap | None = None,
        compiler: CompileCache | None = None,
        on_committed: Callable[[Active, float], None] | None = None,
        on_cancelled: Callable[[Active], None] | None = None,
        rebuild: Callable[[list[str]], Rebuilt] | None = None,
    ) -> None:
        self._instance: ModelInstance | None = instance
        self._scheduler = scheduler
        self._offers = offers
        self._shared = shared
        self._run_call = partial(run_call, tap=tap, compiler=compiler)
        self._on_committed = on_committed
        self._on_cancelled = on_cancelled
        self._rebuild = rebuild
        self._is_lost = False
        self._has_failed = False
        self._actives: dict[str, Active] = {}
        self._num_settling = 0
        self._idle: list[Callable[[], None]] = []
        self._reports = Reports(self._ill_reported)
        self._is_reporting = False
        super().__init__(self._broken)
        self._device = DevicePlane(len(scheduler.workers), self.notify)

    @property
    def is_healthy(self) -> bool:
        """Whether requests are being worked on: no fault of the control plane, no device lost, no worker gone."""
        return self._thread.is_alive() and self._device.is_alive and not (self._is_lost or self._has_failed)

    def accept(self, active: Active) -> None:
        """Take a request.

        Raises:
            InputError: Its id is in use.
            ResourceError: It could never run, or too many wait.
        """
        run, now = active.run, time.monotonic()
        if len(self._scheduler.queued) >= self._scheduler.config.max_queued:
            self._start_jobs(now)  # of a burst, nobody has looked yet at those that came first
        self._scheduler.submit(active.job, now)
        self._actives[run.request_id] = active
        if run.outside is None:
            run.report = self._reports.add
        run.cancel.listen(lambda: self.notify(partial(self._cancelled, active)))
        run.accepted()
        self._cancelled(active)  # it may have been, before anybody listened
        self._loop.call_soon(self._pump)

    def close(self) -> None:
        """Wait until all requests have ended, then stop the workers and the thread."""
        empty = threading.Event()
        self.call(lambda: self._tell_when_idle(empty.set))
        empty.wait()
        self._device.close()
        self.stop()
        self._instance = None

    def _tell_when_idle(self, tell: Callable[[], None]) -> None:
        if self._actives or self._num_settling:
            self._idle.append(tell)
        else:
            tell()

    def _pump(self) -> None:
        """Give every idle worker something to do; then there is time to report what has been done."""
        self._give_work()
        if not self._reports or self._is_reporting:
            return
        if self._scheduler.is_idle:
            self._reports.give_out()
        else:
            # Not at once: Python runs one thread at a time, and a worker that was given something shall begin.
            self._is_reporting = True
            self._loop.call_later(REPORT_AFTER_S, self._report)

    def _report(self) -> None:
        self._is_reporting = False
        self._reports.give_out()

    def _give_work(self) -> None:
        """Start what can start, and find the next calls."""
        if self._is_lost or self._num_pauses:
            return
        now = time.monotonic()
        self._start_jobs(now)
        while (batch := self._scheduler.next_batch(now)) is not None:
            self._dispatch(batch)
        for step in self._scheduler.next_transfers(now):
            self._transfer(step)

    def _start_jobs(self, now: float) -> None:
        if not (self._is_lost or self._num_freezes):
            for job in self._scheduler.start_jobs(now):
                self._start_nodes(self._actives[job.job_id])

    def _start_nodes(self, active: Active) -> None:
        for node in active.run.next_nodes():
            task = Task(active, node, active.run.run_node(node))
            active.tasks[task] = None
            self._resume(task)
            if active.run.request_id not in self._actives:
                return

    def _resume(self, task: Task, value: Any = None, error: BaseException | None = None) -> None:
        """Send an answer into a node's coroutine, and take its next wish or its end."""
        if task.coroutine is None:
            return  # its request has ended meanwhile
        task.asked_nothing()
        try:
            wish = task.coroutine.send(value) if error is None else task.coroutine.throw(error)
        except StopIteration as stop:
            self._finish_task(task, stop.value)
        except Exception as failure:  # noqa: BLE001 - one request's error, of whatever kind, ends that one alone
            self._fail(task, failure)
        else:
            try:
                self._take(task, wish)
            except Exception as failure:  # noqa: BLE001 - a wish that makes no sense is its loop's fault
                where = "" if task.node is None else f"/loop:{task.node.node_id}"
                self._fail(task, as_failure(failure, f"{task.active.run.scope.path()}{where}: what it asks for"))

    def _take(self, task: Task, wish: WorkPlan[Any] | HostWork | Wait) -> None:
        """Offer a step to the scheduler, or set a timer."""
        if isinstance(wish, Wait):
            task.is_waiting = True
            if wish.until_s is not None:
                task.timer = self._loop.call_later(max(0.0, wish.until_s - time.monotonic()), self._wake, task, True)
            return
        if isinstance(wish, WorkPlan) and wish.cache.result_key is not None:
            task.claim = self._shared.ask(
                wish, answer=partial(self._answer, task), compute=partial(self._offer, task, wish)
            )
            if task.claim is not None:
                return
        self._offer(task, wish)

    def _offer(self, task: Task, wish: WorkPlan[Any] | HostWork) -> None:
        now = time.monotonic()
        task.step = self._offers.make(task.active.job, wish, task, now)
        if isinstance(wish, WorkPlan) and wish.kind in _TRANSFERS:
            self._scheduler.offer_transfer(task.step, now)
        else:
            self._scheduler.offer(task.step, now)

    def _answer(self, task: Task, result: StepResult[Any], handle: FeatureHandle) -> None:
        """Give a node a result that another request has made."""
        if task.coroutine is None:
            handle.release()
            return
        task.active.handles.append(handle)
        # Not at once: this may be called while another request's results are handed out.
        self._loop.call_soon(self._wake, task, result)

    def wake(self, active: Active) -> None:
        """Let a session that waits look at what has come from outside; any other will at its next boundary."""
        for task in [task for task in active.tasks if task.is_waiting]:
            self._wake(task, False)

    def _wake(self, task: Task, value: Any = None) -> None:
        """Go on with a node whose time has come, or to which another request's result is given."""
        task.claim = None
        self._resume(task, value)
        self._pump()

    def _finish_task(self, task: Task, value: Any) -> None:
        active, task.coroutine = task.active, None
        del active.tasks[task]
        if task.node is None:
            assert active.error is not None
            self._end(active, active.error, artifacts=value)
            return
        active.run.finish_node(task.node, value)
        self._refund(active, task.node)
        if active.run.is_complete:
            self._end(active, None)
        else:
            self._start_nodes(active)

    def _refund(self, active: Active, node: Node) -> None:
        """Let others have what a loop was admitted with and did not take, as an answer that ends early."""
        expected = None if active.estimate is None else active.estimate.nodes.get(node.node_id)
        if expected is not None:
            seconds, blocks = expected.unused(active.run.num_made.get(node.node_id, 0))
            if seconds or blocks:
                self._scheduler.refund(active.job, seconds, blocks, time.monotonic())

    def _dispatch(self, batch: Batch) -> None:
        wishes = []
        for step in batch.steps:
            task, wish = step.handle
            task.is_in_flight = True
            wishes.append(wish)
        first = wishes[0]
        if isinstance(first, HostWork):
            work: Callable[[], Any] = first.do
        else:
            assert self._instance is not None, "no step is left when the control plane is closed"
            work = partial(self._run_call, self._instance, wishes)
        self._device.run(batch.worker, work, partial(self._finished, batch))

    def _transfer(self, step: ReadyStep) -> None:
        """Run a transfer beside the steps, on the worker that does nothing else."""
        task, plan = step.handle
        task.is_in_flight = True
        assert self._instance is not None, "no step is left when the control plane is closed"
        self._device.transfer(partial(self._run_call, self._instance, [plan]), partial(self._transferred, step))

    def _transferred(self, step: ReadyStep, outcome: Any) -> None:
        self._scheduler.finished_transfer(step, time.monotonic())
        self._hand_out(Batch((step,), step.seconds, step.peak_bytes), outcome)

    def _finished(self, batch: Batch, outcome: Any) -> None:
        seconds = outcome.seconds if isinstance(outcome, CallOutcome) else 0.0
        self._scheduler.finished(batch.worker, time.monotonic(), seconds)
        self._hand_out(batch, outcome)

    def _hand_out(self, batch: Batch, outcome: Any) -> None:
        """Give what came of a call to those who asked, then find its worker something else to do."""
        tasks = [step.handle[0] for step in batch.steps]
        if isinstance(outcome, WorkerLostError):
            self._lost(tasks, outcome)
        elif isinstance(outcome, CallOutcome):
            self._offers.measured(batch, outcome)
            self._deliver(batch, tasks, outcome)
        else:
            (task,) = tasks  # host work is alone in its call
            task.is_in_flight = False
            self._reports.give_out()  # the artifact that it made is announced after the steps that led to it
            if isinstance(outcome, BaseException):
                self._resume(task, error=outcome)
            else:
                self._resume(task, outcome)
        self._pump()

    def _deliver(self, batch: Batch, tasks: list[Task], outcome: CallOutcome) -> None:
        share_s = outcome.seconds / len(tasks)
        for step, task, one in zip(batch.steps, tasks, outcome.outcomes, strict=True):
            task.is_in_flight = False
            step.handle = None  # the plan holds the tensors that the step read
            active, is_wanted = task.active, task.coroutine is not None
            if isinstance(one, BaseException):
                task.drop_claim()
                self._resume(task, error=one)
                continue
            if task.claim is not None and is_wanted and one.is_finite is not False:
                active.handles.append(self._shared.fill(task.claim, one))
                task.claim = None
            if active.run.outside is not None:
                active.run.outside.ran(step.seconds)
            self._resume(task, one)
            # Of a request that was stopped meanwhile, as when the device is lost, no state is there to be saved.
            if self._on_committed is not None and is_wanted and active.run.request_id in self._actives:
                self._on_committed(active, share_s)

    def _keep(self, active: Active) -> None:
        """Let the states of a request that is being cancelled be saved, so that it can be taken up again."""
        if active.run.outside is not None:
            active.run.outside.park(active.run.snapshot())
        elif self._on_cancelled is not None and active.run.request_id in self._actives:
            self._on_cancelled(active)

    def _cancelled(self, active: Active) -> None:
        """End what a cancellation is aimed at, unless it is on a worker: then it ends at that step's boundary."""
        run = active.run
        if run.request_id not in self._actives or active.error is not None:
            return
        if not run.started:
            if (error := run.cancel.error(run.scope)) is not None:
                self._end(active, error)
                self._pump()
            return
        for task in tuple(active.tasks):
            if task.is_in_flight or task.coroutine is None or task.node is None:
                continue
            scope = run.scope if task.node.kind == "artifact" else run.scope.child("loop", task.node.node_id)
            if (error := run.cancel.error(scope)) is not None:
                self._resume(task, error=error)
                self._pump()
                return

    def _fail(self, task: Task, error: Exception) -> None:
        """End a request early; what it holds of finished latents is saved first, on the device plane."""
        active = task.active
        active.tasks[task] = None  # if it is not there any more, its coroutine is closed with the others
        if isinstance(error, CancelledError):
            self._keep(active)
        self._close_tasks(active)
        nodes = [] if isinstance(error, (CancelledError, WorkerLostError)) or active.error else active.run.salvage()
        if not nodes:
            self._end(active, active.error or error)
            return
        active.error = error
        saving = Task(active, None, active.run.save(nodes))
        active.tasks[saving] = None
        self._resume(saving)

    def _close_tasks(self, active: Active) -> None:
        for task in active.tasks:
            step = task.close()
            if step is not None:
                self._scheduler.retract(step, time.monotonic())
        active.tasks.clear()

    def _end(self, active: Active, error: Exception | None, artifacts: dict[str, Artifact] | None = None) -> None:
        """Free everything that a request holds, and tell of its end."""
        run = active.run
        self._reports.give_out()
        if run.request_id not in self._actives:
            return
        self._close_tasks(active)
        self._scheduler.withdraw(run.request_id, time.monotonic())
        del self._actives[run.request_id]
        result = run.result() if error is None else None
        if isinstance(error, CancelledError):
            run.events.cancelled(str(error))
        elif error is not None:
            if artifacts and isinstance(error, FastVideoError):
                error.artifacts = artifacts
            run.events.failed(error)
        run.release()
        for handle in active.handles:
            handle.release()
        active.handles.clear()
        # Not at once: frames on the stack, which the error keeps alive, hold the step's tensors.
        self._num_settling += 1
        self._loop.call_soon(self._settle, active, result, error)

    def _ill_reported(self, request_id: str, error: Exception) -> None:
        """End a request of whose step nothing could be told: what its loop says of it makes no sense."""
        active = self._actives.get(request_id)
        if active is not None:
            self._end(active, as_failure(error, f"{active.run.scope.path()}: the report of a step"))

    def _settle(self, active: Active, result: GenerationResult | None, error: Exception | None) -> None:
        """Hand a request's result or error out."""
        active.on_end()
        if error is not None:
            release_frames(error)
            active.future.set_exception(error)
        else:
            assert result is not None
            active.future.set_result(result)
        self._num_settling -= 1
        self._tell_drained()
        if not self._actives and not self._num_settling:
            for tell in self._idle:
                tell()
            self._idle.clear()
        self._pump()

    def _lost(self, tasks: list[Task], error: WorkerLostError) -> None:
        """Load the model anew after its device was lost, and start all requests from their last checkpoints.

        A request whose own step has been there twice when that happened ends: it may be what does it.
        """
        _LOG.error("%s", error)
        for active in {task.active for task in tasks}:
            active.num_lost += 1
            if active.num_lost > 1 or self._rebuild is None:
                self._end(active, error)
        for active in [one for one in self._actives.values() if one.run.outside is not None]:
            self._end(active, error)  # from its beginning, a stream would be made twice
        if self._is_lost or self._rebuild is None:
            return
        self._is_lost = True
        for active in self._actives.values():
            self._close_tasks(active)
        self._instance = None
        started = [name for name, active in self._actives.items() if active.run.started]
        for active in self._actives.values():
            active.run.lose()
        self._device.run(0, partial(self._rebuild, started), self._rebuilt)

    def _rebuilt(self, outcome: Rebuilt | FastVideoError) -> None:
        self._is_lost = False
        if isinstance(outcome, FastVideoError):
            for active in tuple(self._actives.values()):
                self._end(active, outcome)
            return
        self._instance = outcome.instance
        for name, active in tuple(self._actives.items()):
            active.run.restore(outcome.nodes.get(name, {}), outcome.instance)
            if name in self._scheduler.running and active not in self._anew:
                self._start_nodes(active)
        self._pump()

    def _broken(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """End all requests when the control plane itself has a fault: nobody waits for what will not come."""
        self._has_failed = True
        cause = context.get("exception")
        _LOG.error("the control plane failed: %s", context.get("message"), exc_info=cause)
        text = describe_failure(cause) if cause is not None else str(context.get("message"))
        for active in tuple(self._actives.values()):
            with suppress(Exception):
                self._end(active, ExecutionError(f"{active.run.scope.path()}: the control plane failed: {text}"))
