from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fastvideo_core.errors import ExecutionError, PrecisionMismatchError, PromptError
from fastvideo_core.request.build import build_request
from fastvideo_core.runtime.host import load_host
from fastvideo_core.runtime.loading import load_instance
from fastvideo_core.runtime.prepare import prepare_request
from fastvideo_testing.tiny import tiny_card

TASKS = ("text_to_video",)
NOWHERE = tiny_card(Path("/there/are/no/weights/here"))


@pytest.fixture
def weightless(tiny_folder, tmp_path):
    """The card of a folder that has everything but weights."""
    folder = tmp_path / "weightless"
    shutil.copytree(tiny_folder, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    return tiny_card(folder)


def prepare(card, prompt, **parameters):
    return prepare_request(card, build_request(card, prompt, parameters=parameters))


def test_a_long_prompt_is_refused_without_weights(weightless):
    host = load_host(weightless, tasks=TASKS)
    assert list(host.components) == ["tokenizer"]
    host.check(prepare(weightless, "x" * 128))
    with pytest.raises(PromptError, match="prompt='x.*: the text has 129 tokens; allowed: at most 128 tokens"):
        host.check(prepare(weightless, "x" * 129))


def test_a_text_that_is_not_encoded_may_be_of_any_length(weightless):
    host = load_host(weightless, tasks=TASKS)
    long = {"negative_prompt": "x" * 129}
    host.check(prepare(weightless, "x", guidance_scale=1, **long))
    with pytest.raises(PromptError, match="negative_prompt='x"):
        host.check(prepare(weightless, "x", guidance_scale=2, **long))


def test_what_the_host_has_is_not_loaded_again(tiny_folder):
    card = tiny_card(tiny_folder)
    host = load_host(card, tasks=TASKS)
    instance = load_instance(card, loaded=host.components)
    assert instance.component("tokenizer") is host.components["tokenizer"].component
    assert set(instance.loops) == set(card.loops)


def test_a_card_without_checks_has_nothing_to_load(with_loop):
    card = with_loop(NOWHERE, "text", check=None)
    host = load_host(card, tasks=TASKS)
    assert host.components == {}
    host.check(prepare(card, "x" * 999))


def test_a_precision_that_is_not_the_cards_is_refused_first():
    with pytest.raises(PrecisionMismatchError, match="fp4"):
        load_host(NOWHERE, tasks=TASKS, precision="fp4")


def test_a_check_that_fails_is_named(weightless, with_loop, made_up):
    def check(spec, model, parameters, inputs):
        return spec.options["missing"]

    card = with_loop(weightless, "text", check=made_up("check", check))
    with pytest.raises(ExecutionError, match="the check of loop text failed: KeyError: 'missing'"):
        load_host(card, tasks=TASKS).check(prepare(card, "x"))


def test_warnings_of_all_checks_are_told_once(weightless, with_loop, made_up):
    def check(spec, model, parameters, inputs):
        return ["a warning", f"{inputs['prompt']} is odd", "a warning"]

    card = with_loop(weightless, "text", check=made_up("check", check))
    assert load_host(card, tasks=TASKS).check(prepare(card, "x")) == ("a warning", "x is odd")
    assert load_host(weightless, tasks=TASKS).check(prepare(weightless, "x")) == ()
