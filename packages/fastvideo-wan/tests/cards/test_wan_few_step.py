from __future__ import annotations

import pytest

from fastvideo_core.errors import CardError, LoopMismatchError
from fastvideo_core.request.build import build_request
from fastvideo_core.runtime.catalog import Catalog
from fastvideo_core.runtime.engine import Engine
from fastvideo_core.runtime.prepare import prepare_request
from fastvideo_wan.cards.few_step import few_step_card


@pytest.fixture
def teacher(checkpoint):
    return Catalog.installed().read_folder(checkpoint("t2v"))


def test_a_student_has_the_steps_that_it_was_made_for(teacher):
    card = few_step_card(teacher, steps=[1000, 750, 500], flow_shift=5.0)
    assert card.recipe.assumes_loop == "dmd_denoise"
    assert card.recipe.parents == (teacher.model_id,)
    assert "diffusion_denoise" not in card.loops
    task = card.task("text_to_video")
    assert {name: task.parameters[name].default for name in ("sampler", "num_inference_steps", "flow_shift")} == {
        "sampler": "lcm", "num_inference_steps": 3, "flow_shift": 5.0,
    }  # fmt: skip
    assert not {"guidance_scale", "negative_prompt"} & set(task.parameters)
    request = build_request(
        card, "x", task=None, image=None, outputs=(), exact=False, parameters={"num_inference_steps": 4}
    )
    with pytest.raises(LoopMismatchError, match="num_inference_steps=4"):
        prepare_request(card, request)


def test_it_runs_at_the_times_that_were_given(teacher):
    times = []

    def note(name, plan, value):
        if name == "rows.velocity":
            times.append(plan.payload.schedule.timestep_values[plan.payload.sampler_step])

    with Engine.open(few_step_card(teacher, steps=[1000, 500]), tap=note) as engine:
        engine.generate("x", seed=1, num_frames=5, height=32, width=32, outputs=("latents",))
    assert times == [1000.0, 500.0]


@pytest.mark.parametrize("steps", [[], [500, 1000], [1000, 1000], [1001], [0]])
def test_steps_that_are_none_are_refused(teacher, steps):
    with pytest.raises(CardError, match="not the steps of a student"):
        few_step_card(teacher, steps=steps)


def test_a_card_that_is_distilled_already_is_no_teacher(teacher):
    with pytest.raises(CardError, match="no teacher for few steps"):
        few_step_card(few_step_card(teacher, steps=[1000]), steps=[1000])
