from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch

from fastvideo_core.errors import ExecutionError, NonFiniteError, ResourceError
from fastvideo_core.loop.work import StepResult
from fastvideo_core.runtime.executor import SerialExecutor


@dataclass
class Plan:
    name: str
    profile: str = "serve"
    instance_id: str = "m"
    loop_id: str = "l"

    def where(self):
        return f"request:r: {self.name}"


@pytest.fixture
def run():
    """Run plans on an executor whose step body is given, all asked for at once, in order."""

    def run_plans(step, *plans, tap=None):
        executor = SerialExecutor({"m": SimpleNamespace(steps={"l": step})}, tap=tap)

        async def ask():
            asked = [asyncio.create_task(executor.execute(plan)) for plan in plans]
            return await asyncio.gather(*asked, return_exceptions=True)

        try:
            return asyncio.run(ask())
        finally:
            executor.close()

    return run_plans


def test_steps_run_one_at_a_time_in_the_order_in_which_they_were_asked_for(run):
    running, seen, threads = [], [], set()

    def step(instance, plans, ctx):
        running.append(1)
        assert len(running) == 1
        seen.append(plans[0].name)
        threads.add(threading.current_thread().name)
        running.pop()
        return [StepResult(plans[0].name)]

    names = [str(number) for number in range(20)]
    results = run(step, *(Plan(name) for name in names))
    assert [result.values for result in results] == seen == names
    assert threads == {"fastvideo-device_0"}


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (ValueError("two\nlines"), ExecutionError, "request:r: bad failed: ValueError: two lines"),
        (SystemExit(1), ExecutionError, "request:r: bad failed: SystemExit: 1"),
        (KeyboardInterrupt(), ExecutionError, "request:r: bad failed: KeyboardInterrupt"),
        (StopIteration(), ExecutionError, "request:r: bad failed: StopIteration"),
        (asyncio.CancelledError(), ExecutionError, "request:r: bad failed: CancelledError"),
        (torch.OutOfMemoryError("full"), ResourceError, "request:r: bad ran out of memory: full"),
        (NonFiniteError("typed"), NonFiniteError, "typed"),
    ],
)
def test_a_step_that_fails_harms_no_other(run, error, kind, text):
    def step(instance, plans, ctx):
        if plans[0].name == "bad":
            raise error
        return [StepResult(plans[0].name)]

    before, failed, after = run(step, Plan("a"), Plan("bad"), Plan("b"))
    assert (before.values, after.values) == ("a", "b")
    assert type(failed) is kind
    assert str(failed).startswith(text)
    assert (failed is error) == (kind is NonFiniteError)


@pytest.mark.parametrize("results", [[], [StepResult(1), StepResult(2)], None])
def test_a_step_that_gives_no_single_result_has_failed(run, results):
    (failed,) = run(lambda instance, plans, ctx: results, Plan("x"))
    assert isinstance(failed, ExecutionError)
    assert str(failed).startswith("request:r: x failed: ")


def test_gradients_are_on_in_the_train_profile_only(run):
    def step(instance, plans, ctx):
        return [StepResult((torch.is_grad_enabled(), torch.is_inference_mode_enabled()))]

    results = run(step, Plan("a"), Plan("b", "train"), Plan("c", "rollout"))
    assert [result.values for result in results] == [(False, False), (True, False), (False, False)]


def test_taps_go_to_the_observer_with_their_plan(run):
    seen = []

    def step(instance, plans, ctx):
        ctx.tap("x", torch.ones(1))
        return [StepResult(ctx.is_tapped)]

    plan = Plan("a")
    (result,) = run(step, plan, tap=lambda *args: seen.append(args))
    assert result.values
    assert [(name, of, value.tolist()) for name, of, value in seen] == [("x", plan, [1])]
    (result,) = run(step, plan)
    assert not result.values


def test_host_work_runs_on_the_same_thread_and_is_named():
    executor = SerialExecutor({})

    async def ask():
        name = await executor.call(lambda: threading.current_thread().name, where="naming")
        with pytest.raises(ExecutionError, match="dividing failed: ZeroDivisionError"):
            await executor.call(lambda: 1 / 0, where="dividing")
        return name

    try:
        assert asyncio.run(ask()) == "fastvideo-device_0"
    finally:
        executor.close()


def test_closing_waits_for_the_step_and_drops_the_rest():
    entered, go_on, done = threading.Event(), threading.Event(), []
    executor = SerialExecutor({})

    def work(name):
        entered.set()
        go_on.wait(10)
        done.append(name)

    async def ask():
        tasks = [asyncio.create_task(executor.call(lambda n=name: work(n), where=name)) for name in "abc"]
        await asyncio.to_thread(entered.wait, 10)
        closing = asyncio.create_task(asyncio.to_thread(executor.close))
        await asyncio.sleep(0.02)
        assert not closing.done()
        go_on.set()
        await closing
        return await asyncio.gather(*tasks, return_exceptions=True)

    results = asyncio.run(ask())
    assert done == ["a"]
    assert [type(result) for result in results] == [type(None), asyncio.CancelledError, asyncio.CancelledError]
