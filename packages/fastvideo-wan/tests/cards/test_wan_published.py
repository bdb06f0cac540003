from __future__ import annotations

import re

import pytest

from fastvideo_core.card import ModelCard
from fastvideo_core.errors import InputError, LoopMismatchError, ParameterError, PrecisionMismatchError
from fastvideo_core.request.build import build_request
from fastvideo_core.runtime.prepare import prepare_request
from fastvideo_core.runtime.validate import card_problems
from fastvideo_wan.cards.published import PUBLISHED, published_cards
from fastvideo_wan.plugin import hub_repositories, model_cards

CARDS = {card.model_id: card for card in published_cards()}


def prepare(name, **parameters):
    return prepare_request(CARDS[name], build_request(CARDS[name], "a red circle", parameters=parameters))


@pytest.mark.parametrize("name", CARDS)
def test_a_card_keeps_its_word_and_survives_json(name):
    card = CARDS[name]
    assert list(card_problems(card)) == []
    assert ModelCard.from_json(card.model_dump_json(), origin="here") == card


@pytest.mark.parametrize("name", CARDS)
def test_a_revision_is_a_commit(name):
    source = CARDS[name].checkpoint.source
    assert source.kind == "hub"
    assert re.fullmatch(r"[\w.-]+/[\w.-]+", source.location)
    assert re.fullmatch("[0-9a-f]{40}", source.revision)


def test_every_variant_has_a_card_and_a_repository_of_its_own():
    assert len(CARDS) == len(PUBLISHED) == len({facts.source for facts in PUBLISHED})
    assert set(hub_repositories().values()) >= set(CARDS)
    assert set(CARDS) < {card.model_id for card in model_cards()}
    tasks = {name: set(card.capabilities.tasks) for name, card in CARDS.items()}
    assert {name for name, has in tasks.items() if has == {"image_to_video"}} == {
        "wan2.1-i2v-14b-480p", "wan2.1-i2v-14b-720p", "wan2.2-i2v-a14b",
    }  # fmt: skip
    assert {name for name, has in tasks.items() if len(has) == 2} == {"wan2.2-ti2v-5b", "fastwan2.2-ti2v-5b"}


@pytest.mark.parametrize(("name", "fps"), [("wan2.1-t2v-1.3b", 16), ("wan2.2-ti2v-5b", 24), ("wan2.2-t2v-a14b", 16)])
def test_the_frame_rate_is_the_models(name, fps):
    assert prepare(name).parameters["fps"] == fps


@pytest.mark.parametrize(
    ("name", "field", "value", "nearest"),
    [
        ("wan2.1-t2v-1.3b", "num_frames", 80, 81),
        ("wan2.1-t2v-1.3b", "height", 490, 496),
        ("wan2.2-ti2v-5b", "height", 720, 704),
        ("wan2.2-ti2v-5b", "width", 1290, 1280),
    ],
)
def test_the_grid_is_the_cards(name, field, value, nearest):
    with pytest.raises(ParameterError, match=f"{field}={value}: .*nearest: {nearest}$"):
        prepare(name, **{field: value})


@pytest.mark.parametrize(("field", "value"), [("num_inference_steps", 50), ("flow_shift", 3.0)])
def test_distilled_weights_run_on_their_own_steps_only(field, value):
    with pytest.raises(LoopMismatchError, match=f"{field}={value}.*dmd_denoise"):
        prepare("fastwan2.2-ti2v-5b", **{field: value})


def test_distilled_weights_take_no_guidance():
    with pytest.raises(ParameterError, match="guidance_scale=5: this card does not use such a parameter"):
        prepare("fastwan2.2-ti2v-5b", guidance_scale=5)
    assert "guidance_scale" not in prepare("fastwan2.2-ti2v-5b").parameters


def test_an_image_is_needed_where_the_weights_need_one():
    with pytest.raises(InputError, match="image=None: .*allowed: image"):
        prepare("wan2.2-i2v-a14b")


def test_an_unknown_precision_is_refused():
    with pytest.raises(PrecisionMismatchError, match="precision='fp8'"):
        CARDS["wan2.1-t2v-1.3b"].check_precision("fp8")
