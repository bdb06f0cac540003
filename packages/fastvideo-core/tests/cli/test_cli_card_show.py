from __future__ import annotations

import re

import pytest

from fastvideo_core.card import ModelCard, ParityTestSpec
from fastvideo_testing.tiny import tiny_card


@pytest.fixture
def shown(run, tiny):
    return run("card", "show", tiny).out


def test_both_tasks_with_what_they_take_and_make(shown):
    assert "task text_to_video (default)  a video from a prompt" in shown
    assert "task image_to_video  a video that begins with an image" in shown
    assert re.search(r"takes prompt +text, at most 128 +what to show", shown)
    assert re.search(r"takes image +image +the first frame", shown)
    assert "makes video (video), latents (latents)" in shown


@pytest.mark.parametrize("name", tiny_card.__globals__["_parameters"]())
def test_every_parameter_with_its_range_and_default(name, shown):
    assert len(re.findall(rf"^  {name} ", shown, re.MULTILINE)) == 2


def test_a_parameter_in_words(shown):
    assert re.search(r"num_frames +9 +integer of the form 4k \+ 1 from 1 to 81 +frames", shown)


def test_recipe_precision_and_parity(shown):
    assert re.search(r"precision +float32, bfloat16 \(default float32, on a CPU float32\)", shown)
    assert re.search(r"assumes +loop denoise, precision any", shown)
    assert "no comparison declared" in shown
    assert "in a batch: within 1e-05 relative" in shown


def test_parity_figures_and_what_is_pinned(run, tiny, tmp_path):
    card = tiny_card(tiny)
    test = ParityTestSpec(
        test_id="step",
        level="C0",
        subject="denoise",
        reference="formula",
        check="fastvideo_a.b:c",
        max_relative_error=1e-6,
    )
    loops = {**card.loops, "denoise": card.loops["denoise"].model_copy(update={"pinned": {"num_inference_steps": 4}})}
    changed = card.model_copy(
        update={
            "parity": card.parity.model_copy(update={"tests": (test,), "batch_invariant": True}),
            "figures": {"accuracy": 0.93, "note": "x" * 60},
            "loops": loops,
        }
    )
    (tmp_path / "card.json").write_text(changed.model_dump_json())
    out = run("card", "show", tmp_path).out
    assert re.search(r"C0 +step +denoise against formula +to the bit with --exact, within 1e-06 relative", out)
    assert re.search(r"accuracy +0\.93", out)
    assert "x" * 47 + "…" in out
    assert "in a batch: the same bits" in out
    assert re.search(r"num_inference_steps +4 +only 4: the weights assume it", out)


def test_as_json_it_can_be_read_back(run, tiny):
    assert ModelCard.from_json(run("card", "show", tiny, "--json").out, origin="stdout") == tiny_card(tiny)


@pytest.mark.parametrize("name", ["tyni", "/nowhere/at/all"])
def test_an_unknown_card(name, run, installed):
    ran = run("card", "show", name)
    assert ran.code == 2
    assert ran.error.startswith(f"error: card='{name}': no such card")
