from __future__ import annotations

import asyncio
import dataclasses
import gc
import subprocess
import sys
import weakref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fastvideo_core.errors import CancelledError, InputError, NonFiniteError
from fastvideo_core.loop.base import LoopContext, LoopRequest, LoopResult
from fastvideo_core.loop.driver import LoopRun, drive
from fastvideo_core.loop.state import LoopState, decode_state, encode_state
from fastvideo_core.loop.work import (
    BatchKey,
    CachePlan,
    Done,
    PlacementHint,
    ResourceRequest,
    ShapeSignature,
    StepCost,
    StepResult,
    Wait,
    WorkKind,
    WorkPlan,
)
from fastvideo_core.request.cancel import CancelScope, CancelState
from fastvideo_core.request.parameters import resolve_parameters
from fastvideo_core.runtime.loading import load_instance
from fastvideo_core.runtime.run import make_generator
from fastvideo_testing.tiny import write_tiny_checkpoint
from fastvideo_testing.tiny.denoise import DenoiseState

SCOPE = CancelScope("request", "r").child("loop", "sum")


@dataclasses.dataclass(slots=True)
class SumState(LoopState):
    """Sums numbers; where `is_waiting`, the next one comes from outside."""

    total: torch.Tensor
    left: tuple[float, ...]
    is_waiting: bool = False


class SumLoop:
    """Adds one number a step, and waits before every number that is None."""

    def next(self, state):
        if state.is_waiting:
            return Wait("input")
        if not state.left:
            return Done()
        signature = ShapeSignature.of(width=1)
        return WorkPlan(
            loop_id="sum", instance_id="m", kind=WorkKind.ENCODER_CHUNK, shape_sig=signature,
            resources=ResourceRequest(StepCost(1.0, 1.0)), cache=CachePlan(), placement=PlacementHint(),
            cancel_scope=SCOPE, emits=(), batch_key=BatchKey("m", "adder", "sum", signature, "float32"),
            payload=(state.total, state.left[0]), step_index=3 - len(state.left), num_steps=3,
        )  # fmt: skip

    def advance(self, state, result):
        state.total, state.left = result.values, state.left[1:]
        return state

    def apply(self, state, event):
        if not isinstance(event, float):
            raise InputError("takes numbers", field="event", value=event, allowed="float")
        return SumState(state.total, (event, *state.left))

    def finalize(self, state):
        return LoopResult({"total": state.total})


class Context:
    """Runs steps at once, and notes what the driver did."""

    def __init__(self, events=(), before_step=lambda plan: None, arriving=None):
        self.log = []
        self.events = list(events)
        self.arriving = dict(arriving or {})
        self.before_step = before_step

    async def execute(self, plan):
        self.before_step(plan)
        self.log.append("step")
        total, number = plan.payload
        total = total + number
        return StepResult(total, is_finite=bool(torch.isfinite(total).all()))

    def boundary(self, run):
        event = self.arriving.pop(run.num_committed, None)
        return None if event is None else self.bring(run, event)

    async def bring(self, run, event):
        self.log.append(f"brought {event}")
        run.apply(event)

    async def wait(self, wait):
        """Wait until the next event is there, which the next boundary brings; None is the time."""
        self.log.append(wait.reason)
        event = self.events.pop(0)
        if event is not None:
            self.arriving[0] = event
        return event is None

    def committed(self, run, plan, result):
        self.log.append(f"committed {run.num_committed}")


def start(*numbers, is_waiting=False, cancel=None):
    state = SumState(torch.zeros(1), numbers, is_waiting)
    return LoopRun(SumLoop(), state, scope=SCOPE, cancel=cancel or CancelState(), node_id="sum")


def test_steps_are_planned_executed_and_committed_in_turn():
    run, context = start(1.0, 2.0, 3.0), Context()
    result = asyncio.run(drive(run, context))
    assert result.outputs["total"].tolist() == [6]
    assert context.log == ["step", "committed 1", "step", "committed 2", "step", "committed 3"]


def test_a_wait_ends_with_an_event_which_is_applied():
    run, context = start(1.0, is_waiting=True), Context(events=[5.0])
    result = asyncio.run(drive(run, context))
    assert result.outputs["total"].tolist() == [6]
    assert context.log == ["input", "brought 5.0", "step", "committed 1", "step", "committed 2"]


def test_an_event_from_outside_is_applied_between_two_steps():
    run, context = start(1.0, 2.0), Context(arriving={1: 5.0})
    result = asyncio.run(drive(run, context))
    assert result.outputs["total"].tolist() == [8]
    assert context.log == ["step", "committed 1", "brought 5.0", "step", "committed 2", "step", "committed 3"]


def test_when_its_time_has_come_the_loop_is_told():
    run, context = start(is_waiting=True), Context(events=[None])
    with pytest.raises(InputError, match="event=None: takes numbers"):
        asyncio.run(drive(run, context))
    assert context.log == ["input"]


def test_an_event_that_a_loop_does_not_take_changes_nothing():
    run = start(1.0)
    before = encode_state(run.state)
    with pytest.raises(InputError, match="event='x': takes numbers"):
        run.apply("x")
    assert encode_state(run.state) == before


def test_cancellation_takes_effect_at_the_next_boundary_only():
    cancel = CancelState()

    def cancel_in_second(plan):
        if plan.step_index == 1:
            cancel.cancel(CancelScope("request", "r"), "no longer wanted")

    run, context = start(1.0, 2.0, 3.0, cancel=cancel), Context(before_step=cancel_in_second)
    with pytest.raises(CancelledError, match="request:r/loop:sum: no longer wanted"):
        asyncio.run(drive(run, context))
    assert context.log == ["step", "committed 1", "step", "committed 2"]
    assert run.state.total.tolist() == [3]


def test_a_cancelled_loop_plans_nothing_not_even_its_end():
    run = start()
    assert isinstance(run.plan(), Done)
    run.cancel.cancel(SCOPE)
    with pytest.raises(CancelledError, match="cancelled by the caller"):
        run.plan()


def test_a_result_that_is_not_finite_leaves_the_state_as_it_was():
    run, context = start(1.0, float("nan"), 3.0), Context()
    with pytest.raises(NonFiniteError) as caught:
        asyncio.run(drive(run, context))
    assert str(caught.value) == (
        "request:r/loop:sum: step 2 of 3 of sum gave NaN or infinity in adder at float32; nothing was written"
    )
    assert run.num_committed == 1
    assert encode_state(run.state) == encode_state(SumState(torch.ones(1), (float("nan"), 3.0)))


def test_a_step_without_a_known_number_says_so():
    run = start(float("inf"))
    plan = dataclasses.replace(run.plan(), num_steps=None, step_index=6)
    assert plan.where() == "request:r/loop:sum: step 7 of sum"


def test_state_of_a_finished_run_dies_with_it():
    run = start(1.0)
    alive = weakref.ref(run.state.total)
    asyncio.run(drive(run, Context()))
    del run
    gc.collect()
    assert alive() is None


class CountOps(TorchDispatchMode):
    """Counts every operator that reaches a kernel."""

    num_ops = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        type(self).num_ops += 1
        return func(*args, **(kwargs or {}))


class Taps:
    is_tapped = False

    def tap(self, name, value):
        pass


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("tiny")
    write_tiny_checkpoint(place)
    return place


@pytest.fixture(scope="module")
def instance(folder):
    from fastvideo_testing.tiny import tiny_card

    return load_instance(tiny_card(folder))


def denoise(instance, *, profile="serve"):
    """Return a denoise loop of the tiny family that is about to make its first step."""
    scope = CancelScope("request", "r").child("loop", "denoise")
    parameters = resolve_parameters(instance.card.task("text_to_video"), {"seed": 5, "num_inference_steps": 3})
    embeds = tuple(torch.randn(1, 8, generator=make_generator(seed)) for seed in (1, 2))
    request = LoopRequest("r", "denoise", "denoise", parameters, {"embeds": embeds}, scope, profile=profile)
    loop = instance.loop("denoise")
    return LoopRun(loop, loop.init(request, LoopContext(make_generator)), scope=scope, cancel=CancelState())


def step(instance, run):
    plan = run.plan()
    with torch.no_grad():
        (result,) = instance.steps[plan.loop_id](instance, [plan], Taps())
    run.commit(plan, result)


def test_next_is_repeatable_and_launches_nothing(instance):
    run = denoise(instance)
    while not isinstance(run.plan(), Done):
        before = encode_state(run.state)
        CountOps.num_ops = 0
        with CountOps():
            first, second = run.plan(), run.plan()
        assert CountOps.num_ops == 0
        assert dataclasses.replace(first, payload=None) == dataclasses.replace(second, payload=None)
        assert all(
            getattr(first.payload, name) is getattr(second.payload, name) or not torch.is_tensor(value)
            for name, value in ((f.name, getattr(first.payload, f.name)) for f in dataclasses.fields(first.payload))
        )
        assert encode_state(run.state) == before
        with torch.no_grad():
            (result,) = instance.steps["denoise"](instance, [first], Taps())
        with CountOps():
            run.commit(first, result)
        assert CountOps.num_ops == 0, "advance reads no tensor data"


def test_the_counter_counts():
    CountOps.num_ops = 0
    with CountOps():
        torch.ones(2) + 1
    assert CountOps.num_ops >= 1


RESUME = """
import sys
from pathlib import Path
import torch
from fastvideo_core.loop.driver import LoopRun
from fastvideo_core.loop.state import decode_state, encode_state
from fastvideo_core.loop.work import Done
from fastvideo_core.request.cancel import CancelState
from fastvideo_core.runtime.loading import load_instance
from fastvideo_testing.tiny import tiny_card
from fastvideo_testing.tiny.denoise import DenoiseState

class Taps:
    is_tapped = False
    def tap(self, name, value):
        pass

folder, *states = map(Path, sys.argv[1:])
instance = load_instance(tiny_card(folder))
loop, step = instance.loop("denoise"), instance.steps["denoise"]
for path in states:
    state = decode_state(path.read_bytes(), DenoiseState)
    run = LoopRun(loop, state, scope=state.scope, cancel=CancelState())
    while not isinstance(plan := run.plan(), Done):
        with torch.no_grad():
            (result,) = step(instance, [plan], Taps())
        run.commit(plan, result)
    path.with_suffix(".end").write_bytes(encode_state(run.state))
"""


def test_a_job_stopped_at_any_boundary_goes_on_in_another_process_to_the_same_bits(instance, folder, tmp_path):
    run = denoise(instance)
    paths = []
    while True:
        paths.append(tmp_path / f"{len(paths)}.state")
        paths[-1].write_bytes(encode_state(run.state))
        if isinstance(run.plan(), Done):
            break
        step(instance, run)
    expected = encode_state(run.state)
    command = [sys.executable, "-c", RESUME, str(folder), *map(str, paths)]
    subprocess.run(command, check=True, timeout=100)
    assert len(paths) == 4
    assert [path.with_suffix(".end").read_bytes() for path in paths] == [expected] * 4


def test_grads_flow_through_a_step_in_the_train_profile(instance):
    run = denoise(instance, profile="train")
    run.state.latents_1CTHW.requires_grad_()
    plan = run.plan()
    assert (plan.profile, plan.batch_key.profile) == ("train", "train")
    (result,) = instance.steps["denoise"](instance, [plan], Taps())
    result.values.latents_1CTHW.sum().backward()
    assert run.state.latents_1CTHW.grad.abs().sum() > 0
    assert not decode_state(encode_state(run.state), DenoiseState).latents_1CTHW.requires_grad
