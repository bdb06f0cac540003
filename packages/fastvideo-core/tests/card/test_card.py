from __future__ import annotations

import json
import sys
import types
from pathlib import Path

import pytest
from pydantic import ValidationError

from fastvideo_core.card import CheckpointSource, ModelCard, ParallelismContract, foreign_refs, object_refs, resolve_ref
from fastvideo_core.errors import CardError, LoopMismatchError, PrecisionMismatchError, UnknownTaskError
from fastvideo_testing.tiny import tiny_card

CARD = tiny_card(Path("weights"))


def changed(**changes):
    """Return the tiny card's JSON form with parts replaced; a key such as `recipe.assumes_loop` is a path."""
    data = CARD.model_dump(mode="json")
    for path, value in changes.items():
        *parents, last = path.split("__")
        place = data
        for name in parents:
            place = place[name]
        place[last] = value
    return data


def test_a_card_survives_json():
    text = CARD.model_dump_json()
    assert ModelCard.from_json(text, origin="here") == CARD
    assert ModelCard.from_json(text, origin="here").model_dump_json() == text


def test_a_card_cannot_be_changed():
    with pytest.raises(ValidationError, match="frozen"):
        CARD.version = "2"


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"licence": "MIT"}, "licence: Extra inputs are not permitted"),
        ({"loops__denoise__max_batchs": 3}, "loops.denoise.max_batchs: Extra inputs"),
        ({"schema_version": 2}, "schema_version: .*less than or equal to 1"),
        ({"model_id": "../x"}, "model_id: .*match pattern"),
        ({"components__vae__component_id": "vea"}, "components.'vae'..component_id is 'vea'"),
        ({"components__vae__load_id": "x"}, "component 'vae' loads 'x', which the checkpoint does not have"),
        ({"components__vae__factory": "os.system"}, "components.vae.factory: .*match pattern"),
        ({"components__vae__parity_tests": ["c0"]}, "component 'vae' names unknown parity tests .'c0'"),
        ({"components__vae__required_for": ["t2v"]}, "component 'vae' is required for unknown tasks .'t2v'"),
        ({"loops__decode__loop_id": "x"}, "loops.'decode'..loop_id is 'x'"),
        ({"loops__decode__components": ["vea"]}, "loop 'decode' uses unknown components .'vea'"),
        ({"loops__decode__cache_policy": {"reads": ["kv"]}}, "loop 'decode' uses unknown caches .'kv'"),
        ({"capabilities__default_task": "x"}, "default task 'x' is not among"),
        ({"capabilities__tasks__text_to_video__outputs": {}}, "a task needs at least one output"),
        ({"capabilities__tasks__text_to_video__parameters__fps__default": 0}, "fps: .*default=0.*nearest: 1"),
        ({"checkpoint__components__vae__required_for": ["x"]}, "'vae' names unknown tasks .'x'"),
        ({"checkpoint__source": {"kind": "hub", "location": "a/b"}}, "needs a pinned revision"),
        ({"precision__default": "float16"}, "default precision 'float16' is not among"),
        ({"parallelism__patterns": []}, "at least one parallel plan"),
        ({"parallelism__patterns": [{"max_degree": {"tp": 0}}]}, "degrees must be at least 1"),
        ({"parallelism__patterns": [{"max_degree": {"cfgp": 4}}]}, "its degree is at most 2, got 4"),
        ({"figures": {"accuracy": [1]}}, "figures.accuracy"),
        (
            {"parity__tests": [{"test_id": "a", "level": "C0", "subject": "", "reference": "", "check": "a:b"}] * 2},
            "parity tests declared twice: .'a'",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_card_that_contradicts_itself_is_refused_in_one_line(changes, text):
    with pytest.raises(CardError, match=text) as caught:
        ModelCard.from_json(json.dumps(changed(**changes)), origin="folder/card.json")
    assert str(caught.value).startswith("folder/card.json is not a valid card: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"model_id": NaN}'])
def test_what_is_no_card_is_refused(text):
    with pytest.raises(CardError, match="x is not a valid card: "):
        ModelCard.from_json(text, origin="x")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_figures_are_numbers_that_json_can_hold(value):
    with pytest.raises(ValidationError, match="finite"):
        CARD.model_validate({**CARD.model_dump(), "figures": {"accuracy": value}})


@pytest.mark.parametrize(("loop", "allowed"), [("dmd_denoise", "denoise"), ("decode", "denoise")])
def test_a_recipe_for_a_loop_that_is_not_there_is_a_typed_error(loop, allowed):
    with pytest.raises(LoopMismatchError) as caught:
        ModelCard.from_json(json.dumps(changed(recipe__assumes_loop=loop)), origin="x")
    assert (caught.value.field, caught.value.value, caught.value.allowed) == ("recipe.assumes_loop", loop, allowed)


def test_a_recipe_for_a_precision_that_is_not_allowed_is_a_typed_error():
    with pytest.raises(PrecisionMismatchError, match=r"recipe.assumes_precision='nvfp4'.*float32, bfloat16"):
        ModelCard.from_json(json.dumps(changed(recipe__assumes_precision="nvfp4")), origin="x")


def test_weights_run_under_the_loop_that_they_assume_only():
    other = CARD.loops["denoise"].model_copy(update={"loop_id": "other"})
    card = ModelCard.model_validate(CARD.model_copy(update={"loops": {**CARD.loops, "other": other}}).model_dump())
    assert card.check_loop("denoise") is card.loops["denoise"]
    assert card.check_loop("decode") is card.loops["decode"]
    with pytest.raises(LoopMismatchError, match=r"loop='other'.*made for another loop; allowed: denoise"):
        card.check_loop("other")
    with pytest.raises(LoopMismatchError, match=r"loop='none'.*no such loop; allowed: text, image, denoise, decode"):
        card.check_loop("none")


def test_weights_run_in_a_precision_that_card_and_recipe_allow():
    card = ModelCard.model_validate(changed(recipe__assumes_precision="bfloat16"))
    card.check_precision("bfloat16")
    CARD.check_precision("float32")
    for checked, precision in [(card, "float32"), (CARD, "float16"), (CARD, "fp8")]:
        with pytest.raises(PrecisionMismatchError) as caught:
            checked.check_precision(precision)
        assert caught.value.allowed == ("bfloat16" if checked is card else "float32, bfloat16")


def test_an_unknown_task_names_the_nearest():
    assert CARD.task("text_to_video").defaults()["num_frames"] == 9
    with pytest.raises(UnknownTaskError, match="allowed: text_to_video, image_to_video; nearest: text_to_video"):
        CARD.task("text2video")


def test_one_device_is_always_a_parallel_plan():
    assert ParallelismContract().patterns[0].max_degree == {}


def test_a_hub_source_is_pinned():
    assert CheckpointSource(kind="hub", location="a/b", revision="0" * 40).revision == "0" * 40
    assert CheckpointSource(kind="folder", location="x").revision is None


def test_references_are_resolved():
    assert resolve_ref("fastvideo_core.card:ModelCard") is ModelCard


@pytest.mark.parametrize(
    ("ref", "text"),
    [
        ("no_such_package.x:Y", "'no_such_package.x:Y', which cannot be imported: ModuleNotFoundError"),
        ("fastvideo_core.card:Nothing", "'fastvideo_core.card:Nothing'.*AttributeError"),
    ],
)
def test_a_reference_that_leads_nowhere_is_a_typed_error(ref, text):
    with pytest.raises(CardError, match=text):
        resolve_ref(ref)


def test_a_module_that_fails_when_it_is_imported_is_a_typed_error(tmp_path, monkeypatch):
    (tmp_path / "breaks_at_import.py").write_text("raise RuntimeError('two\\nlines')")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(CardError, match="'breaks_at_import:X', which cannot be imported: RuntimeError: two lines"):
        resolve_ref("breaks_at_import:X")


def test_all_references_of_a_card_are_found():
    refs = dict(object_refs(CARD))
    assert refs["card.components.vae.factory"] == "fastvideo_testing.tiny.model:load_vae"
    assert refs["card.capabilities.tasks.image_to_video.program"] == "fastvideo_testing.tiny.programs:IMAGE_TO_VIDEO"
    assert refs["card.loops.decode.step_cost_model"] == "fastvideo_testing.tiny.plans:plan_cost"
    text = CARD.model_dump_json()
    assert sorted(refs.values()) == sorted(ref for ref in json_texts(json.loads(text)) if ":" in ref)


def json_texts(data):
    if isinstance(data, str):
        yield data
    for part in data.values() if isinstance(data, dict) else data if isinstance(data, list) else ():
        yield from json_texts(part)


def test_references_out_of_the_plugins_are_found(monkeypatch):
    monkeypatch.setitem(sys.modules, "third_party", types.ModuleType("third_party"))
    data = changed(checkpoint__components__vae__key_map="os:system", loops__decode__step="third_party.loops:run_step")
    card = ModelCard.model_validate(data)
    assert dict(foreign_refs(card, {"third_party"})) == {"card.checkpoint.components.vae.key_map": "os:system"}
    assert len(list(foreign_refs(card, ()))) == 2
    assert list(foreign_refs(CARD, ())) == []


@pytest.mark.parametrize("ref", ["fastvideo_core.cli.__main__:main", "fastvideo_core.errors:__builtins__"])
def test_pythons_own_names_are_no_parts_of_a_plugin(ref):
    card = ModelCard.model_validate(changed(loops__decode__step=ref))
    assert dict(foreign_refs(card, ())) == {"card.loops.decode.step": ref}
