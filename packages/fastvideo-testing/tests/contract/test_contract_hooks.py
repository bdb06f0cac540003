"""The suite passes the sample interceptors and observer, and each check catches one that breaks that promise."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fastvideo_core.loop.hooks import BlockOutcome
from fastvideo_core.loop.state import PluginState
from fastvideo_testing.contract import ContractError, InterceptorContract, ObserverContract, hooks
from fastvideo_testing.samples import (
    HOLD,
    RECORD,
    REUSE,
    HoldInterceptor,
    HoldState,
    RecordObserver,
    ReuseInterceptor,
    ReuseState,
)
from fastvideo_testing.tiny.model import TinyBlock

SMALL = {"num_frames": 5, "height": 16, "width": 16, "num_inference_steps": 5}


class TestHold(InterceptorContract):
    @pytest.fixture
    def spec(self):
        return HOLD


class TestReuse(InterceptorContract):
    @pytest.fixture
    def spec(self):
        return REUSE


class TestRecord(ObserverContract):
    @pytest.fixture
    def spec(self):
        return RECORD


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"options": "os:getcwd"}, "it cannot be switched on: .*is no pydantic model"),
        ({"request_options": ("speed",)}, "a request may set options that there are not: speed"),
        ({"state": "os:getcwd"}, "is no dataclass derived of PluginState"),
        ({"state": "fastvideo_core.loop.state:PluginState"}, "is no dataclass derived of PluginState"),
    ],
)
def test_a_wrong_description_is_caught(changes, why):
    with pytest.raises(ContractError, match=why):
        hooks.check_options(replace(HOLD, **changes))


def test_options_that_take_anything_are_caught(made_up):
    from pydantic import BaseModel

    class Lenient(BaseModel):
        model_config = {"extra": "allow"}

    # Core itself refuses a name that is no field, whatever the model lets pass.
    hooks.check_options(replace(HOLD, options=made_up("Lenient", Lenient), request_options=()))


class Patching(HoldInterceptor):
    """Leaves something behind, as patching a class does."""

    def __init__(self, options):
        super().__init__(options)
        TinyBlock.forward = patched


plain_forward = TinyBlock.forward


def patched(self, hidden, conditions):
    return plain_forward(self, hidden, conditions) * 1.5


def test_what_is_left_behind_when_it_is_off_is_caught(made_up, tiny_card, monkeypatch):
    monkeypatch.setattr(TinyBlock, "forward", plain_forward)
    spec = replace(HOLD, implementation=made_up("Patching", Patching))
    with pytest.raises(ContractError, match="is off, and after it was on, results on the same model are others"):
        hooks.check_absent_when_off(spec, tiny_card, SMALL)


class Keeping(HoldInterceptor):
    """Keeps the last prediction on itself, as a cache on a module does."""

    last = None

    def answer(self, call, states):
        if self.last is not None and self.last.shape[1:] == call.wanted.sample.shape[1:]:
            rows = len(call.wanted.branches)
            return self.last[:rows] if self.last.shape[0] >= rows and call.step.step_index % 2 else None
        return None

    def record(self, call, states, prediction, *, is_computed):
        self.last = prediction
        return {}


def test_state_on_the_interceptor_is_caught(made_up, tiny_card):
    spec = replace(HOLD, implementation=made_up("Keeping", Keeping), state=None)
    with pytest.raises(ContractError, match="does not give what it gives|something of requests on itself|once more"):
        hooks.check_hook_gate(spec, tiny_card, SMALL)


class Counting(HoldInterceptor):
    """Counts its calls on itself, which changes no result, yet."""

    calls = 0

    def answer(self, call, states):
        self.calls += 1
        return super().answer(call, states)


def test_harmless_state_on_the_interceptor_is_caught_too(made_up, tiny_card):
    spec = replace(HOLD, implementation=made_up("Counting", Counting))
    with pytest.raises(ContractError, match="keeps something of requests on itself: hold.calls"):
        hooks.check_hook_gate(spec, tiny_card, SMALL)


class OneForAll(HoldInterceptor):
    """Keeps a view of all branches' prediction in each branch's state."""

    def record(self, call, states, prediction, *, is_computed):
        return {branch: HoldState(prediction, 0) for branch in call.wanted.branches}

    def answer(self, call, states):
        return None


class OnlyCond(HoldInterceptor):
    def record(self, call, states, prediction, *, is_computed):
        return {"cond": HoldState(prediction[:1].clone(), 0)}

    def answer(self, call, states):
        return None


class Forgetful(HoldInterceptor):
    def record(self, call, states, prediction, *, is_computed):
        return {}


@pytest.mark.parametrize(
    ("cls", "why"),
    [
        (OneForAll, "branches share memory in their states: transformer/cond, transformer/uncond"),
        (OnlyCond, "a guided request has states of cond alone"),
        (Forgetful, "declares a state, and after a whole request there is none"),
    ],
)
def test_states_that_are_not_per_branch_are_caught(cls, why, made_up, tiny_card):
    with pytest.raises(ContractError, match=why):
        hooks.check_states(replace(HOLD, implementation=made_up("Cls", cls)), tiny_card, SMALL)


class Hoarding(HoldInterceptor):
    """Keeps three times what it answers from."""

    def record(self, call, states, prediction, *, is_computed):
        new = super().record(call, states, prediction, is_computed=is_computed)
        return {name: HoldState(torch.cat([one.prediction_1CTHW] * 3)[:1], one.age) for name, one in new.items()}


def test_a_state_that_keeps_more_than_is_declared_is_caught(made_up, tiny_card):
    spec = replace(HOLD, implementation=made_up("Hoarding", Hoarding))
    with pytest.raises(ContractError, match="keeps 384 bytes; it declares 1 tensors of 128 bytes each"):
        hooks.check_states(spec, tiny_card, SMALL)
    hooks.check_states(replace(spec, num_kept=made_up("three", lambda options: 3)), tiny_card, SMALL)


def test_an_error_beyond_the_declared_one_is_caught(tiny_card):
    with pytest.raises(ContractError, match=r"a result is off by .* relative; it declares 1e-06"):
        hooks.check_declared_error(replace(REUSE, declared_error=1e-6), tiny_card, SMALL)


def test_an_alteration_that_is_not_declared_is_caught(tiny_card):
    spec = replace(HOLD, distribution_altering=False, declared_error=0.0)
    with pytest.raises(ContractError, match="declares that it alters nothing, and an exact result has other bits"):
        hooks.check_exact(spec, tiny_card, SMALL)


class Vandal(RecordObserver):
    def tensor(self, name, step, value):
        value.add_(1)


class Sneak(RecordObserver):
    """Writes past torch's count of writes."""

    def tensor(self, name, step, value):
        value.numpy()[...] = 0


@pytest.mark.parametrize(
    ("cls", "why"), [(Vandal, "which it only reads"), (Sneak, "changes '.*', which it only reads|others with it")]
)
def test_an_observer_that_writes_is_caught(cls, why, made_up, tiny_card):
    with pytest.raises(ContractError, match=why):
        hooks.check_observer_reads_only(replace(RECORD, implementation=made_up("Cls", cls)), tiny_card, SMALL)


class Unclosable(RecordObserver):
    def close(self):
        raise ValueError("nothing to write") if not self.finished else AssertionError


class Fragile(RecordObserver):
    """Takes it that no step is ever made twice; those of a batch in which one fails are."""

    def step_started(self, steps):
        assert not any(step in seen for step in steps for seen in self.started), "this has been"
        super().step_started(steps)


@pytest.mark.parametrize(
    ("cls", "why"), [(Unclosable, "cannot be closed before anything has run"), (Fragile, "record: .*this has been")]
)
def test_an_observer_that_does_not_live_through_it_is_caught(cls, why, made_up, tiny_card):
    spec = replace(RECORD, implementation=made_up("Cls", cls), wants=("steps",))
    with pytest.raises(ContractError, match=why):
        hooks.check_observer_calls(spec, tiny_card, SMALL)


class Leaky(ReuseInterceptor):
    """Gives the blocks' stream away and changes it later."""

    def run_blocks(self, call, state, blocks, hidden, *inputs):
        outcome = super().run_blocks(call, state, blocks, hidden, *inputs)
        if isinstance(state, ReuseState):
            state.added.mul_(0.5)
        return BlockOutcome(outcome.hidden, outcome.state, outcome.computed_share)


def test_a_state_that_is_changed_in_place_is_caught(made_up, tiny_card):
    spec = replace(REUSE, implementation=made_up("Leaky", Leaky))
    with pytest.raises(ContractError, match="wrote into the state that it was given, before the step was committed"):
        hooks.check_hook_gate(spec, tiny_card, SMALL)


def test_the_suite_knows_states_without_tensors():
    assert hooks._shared_tensors([{"a": PluginState()}]) == set()
    one = torch.zeros(3)
    assert hooks._shared_tensors([{"a": HoldState(one, 0), "b": HoldState(one[1:], 0)}]) == {"a", "b"}
