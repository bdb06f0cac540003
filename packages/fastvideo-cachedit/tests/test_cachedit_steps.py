from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from fastvideo_cachedit.masks import mask_of
from fastvideo_cachedit.options import StepOptions
from fastvideo_cachedit.steps import StepCache, StepState
from fastvideo_core.loop.hooks import Prediction, StepCall
from fastvideo_core.loop.state import decode_state, encode_state

BRANCHES = ("cond", "uncond")


def call(options, index, num_predictions):
    step = SimpleNamespace(step_index=index + 1, num_steps=num_predictions + 1)
    wanted = Prediction("transformer", BRANCHES, torch.zeros(1, 2, 1, 1, 1), 1.0, index, num_predictions)
    return StepCall(step, wanted, options)


def run(options, predictions, through_bytes=False):
    """Let a model make the given predictions; return what was used, and which steps the model made."""
    cache, states, used, made = StepCache(StepOptions()), {}, [], []
    for index, prediction in enumerate(predictions):
        at = call(options, index, len(predictions))
        answer = cache.answer(at, states)
        value = prediction if answer is None else answer
        used.append(value.clone())
        made += [index] if answer is None else []
        states = dict(states) | dict(cache.record(at, states, value, is_computed=answer is None))
        if through_bytes:
            states = {branch: decode_state(encode_state(state), StepState) for branch, state in states.items()}
        value.zero_()
    return used, made


def line(index):
    return torch.tensor([1.0 + 2.0 * index, 5.0 - index]).view(2, 1, 1, 1, 1)


def bend(index):
    return torch.tensor([0.5 * index * index, 3.0 - 0.25 * index * index]).view(2, 1, 1, 1, 1)


@pytest.mark.parametrize("through_bytes", [False, True], ids=["", "through bytes"])
@pytest.mark.parametrize("preset", ["slow", "medium", "fast"])
def test_a_line_is_carried_on_exactly(preset, through_bytes):
    predictions = [line(index) for index in range(30)]
    expected = [one.clone() for one in predictions]
    used, made = run(StepOptions(mask=preset), predictions, through_bytes)
    assert made == [index for index, one in enumerate(mask_of(preset, 30)) if one]
    for got, one in zip(used, expected, strict=True):
        torch.testing.assert_close(got, one)


@pytest.mark.parametrize(("order", "is_exact"), [(1, False), (2, True)])
def test_a_parabola_needs_the_second_order(order, is_exact):
    """The library's second derivative is of first derivatives, each one step old: exact up to a known rest."""
    mask = (1,) * 8 + (0, 0)
    used, _ = run(StepOptions(mask=mask, taylor_order=order), [bend(index) for index in range(10)])
    # Backward differences at 7: value 24.5, first 6.5, second 1.0; the series adds 6.5 k + k^2 / 2.
    series = [24.5 + 6.5 * k + (0.5 * k * k if is_exact else 0.0) for k in (1, 2)]
    assert [float(one[0]) for one in used[8:]] == pytest.approx(series)


def test_without_a_forecast_the_last_one_is_given_again():
    used, made = run(StepOptions(mask=[1, 0, 0, 1, 0], forecast="none"), [line(index) for index in range(5)])
    assert made == [0, 3]
    assert [float(one[0]) for one in used] == [1.0, 1.0, 1.0, 7.0, 7.0]


def test_foca_goes_on_from_its_own_forecasts():
    """On a line, half of the anchors' slope and half of the last two values' make the line."""
    used, _ = run(StepOptions(mask=[1, 1, 1, 0, 0, 0], forecast="foca"), [line(index) for index in range(6)])
    for index, got in enumerate(used):
        torch.testing.assert_close(got, line(index))


def test_a_branch_that_is_new_lets_the_model_compute_all():
    cache, options = StepCache(StepOptions()), StepOptions(mask=[1, 0, 0, 0])
    known = cache.record(call(options, 0, 4), {}, line(0), is_computed=True)
    assert cache.answer(call(options, 1, 4), {"cond": known["cond"]}) is None
    assert cache.answer(call(options, 1, 4), known) is not None


def test_what_somebody_else_answers_is_not_learnt():
    cache, options = StepCache(StepOptions()), StepOptions(mask=[1, 1, 0, 0])
    states = cache.record(call(options, 0, 4), {}, line(0), is_computed=True)
    assert cache.record(call(options, 1, 4), states, line(9), is_computed=False) == {}
    assert cache.record(call(options, 1, 4), {}, line(9), is_computed=False) == {}


def test_states_keep_copies_of_their_own():
    rows = torch.randn(2, 3, 2, 2, 2)
    states = StepCache(StepOptions()).record(call(StepOptions(), 0, 30), {}, rows, is_computed=True)
    kept = [state.course.derivatives[0] for state in states.values()]
    assert torch.equal(torch.cat(kept), rows)
    assert len({one.untyped_storage().data_ptr() for one in [*kept, rows]}) == 3
    assert all(one.untyped_storage().nbytes() == one.nbytes for one in kept)


def test_an_expert_that_comes_in_later_keeps_to_the_masks_own_steps():
    cache, options, states, made = StepCache(StepOptions()), StepOptions(mask="medium", warmup_steps=2), {}, []
    for index in range(11, 30):
        at = call(options, index, 30)
        answer = cache.answer(at, states)
        made += [index] if answer is None else []
        states = dict(cache.record(at, states, line(index) if answer is None else answer, is_computed=answer is None))
    mask = mask_of("medium", 30)
    assert made == [11, 12, *(index for index in range(13, 30) if mask[index])]
