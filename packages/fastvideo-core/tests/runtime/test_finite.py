from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

from fastvideo_core.errors import NonFiniteError
from fastvideo_core.loop.work import StepResult
from fastvideo_core.runtime.engine import Engine
from fastvideo_core.runtime.finite import check_finite
from fastvideo_testing.tiny import denoise, tiny_card

GOOD, BAD = torch.ones(3), torch.tensor([1.0, float("nan"), 2.0])


@dataclass(frozen=True, slots=True)
class Values:
    latents: torch.Tensor
    history: tuple[torch.Tensor, ...] = ()
    named: dict[str, torch.Tensor] = field(default_factory=dict)
    label: str = ""


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (Values(GOOD), True),
        (Values(BAD), False),
        (Values(GOOD, (GOOD, BAD)), False),
        (Values(GOOD, (), {"a": torch.tensor(float("inf"))}), False),
        (Values(GOOD, (torch.arange(3),), {"a": torch.tensor([True])}, "nan"), True),
        (Values(torch.tensor([complex(0, float("-inf"))])), False),
        (Values(torch.full((2,), 3e38)), True),
        (Values(torch.empty(0)), True),
        ([GOOD, [BAD.half()]], False),
        (None, True),
    ],
)
def test_every_tensor_of_the_values_counts(values, expected):
    (result,) = check_finite([StepResult(values)])
    assert (result.is_finite is not False) is expected
    assert result.values is values


def test_a_body_that_has_looked_itself_is_believed():
    results = [StepResult(BAD, is_finite=True), StepResult(BAD), StepResult(GOOD, is_finite=False), StepResult(GOOD)]
    assert [result.is_finite for result in check_finite(results)] == [True, False, False, True]
    assert check_finite(results[::3]) == results[::3], "nothing is made anew where all is well"


def test_a_step_body_that_does_not_look_cannot_let_nan_through(tiny_folder, made_up, with_loop):
    def step(instance, plans, ctx):
        results = []
        for plan in plans:
            (result,) = denoise.run_step(instance, [plan], ctx)
            latents = result.values.latents_1CTHW
            if plan.cancel_scope.parent.scope_id == "bad" and plan.step_index == 2:
                latents = latents / 0 * 0
            results.append(StepResult(denoise.DenoiseValues(latents)))
        return results

    card = tiny_card(tiny_folder)
    with Engine.open(card) as engine:
        expected = engine.generate("x", seed=1).video.frames
    with Engine.open(with_loop(card, "denoise", step=made_up("step", step))) as engine:
        bad = engine.submit(engine.make_request("x", request_id="bad"))
        peer = engine.submit(engine.make_request("x", parameters={"seed": 1}))
        with pytest.raises(NonFiniteError, match="step 3 of 4 of denoise gave NaN or infinity"):
            bad.result(30)
        assert np.array_equal(peer.result(30).video.frames, expected)
