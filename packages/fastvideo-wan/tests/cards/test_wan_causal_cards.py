"""Cards of published causal checkpoints: the releases' figures, and what a folder's files make of them."""

from __future__ import annotations

import json
import re
import shutil

import pytest

from fastvideo_core.card import ModelCard
from fastvideo_core.errors import CheckpointError, InputError, ParameterError
from fastvideo_core.request.build import build_request
from fastvideo_core.runtime.catalog import Catalog
from fastvideo_core.runtime.prepare import prepare_request
from fastvideo_core.runtime.validate import card_problems
from fastvideo_wan.cards.causal_published import PUBLISHED_CAUSAL, published_causal_cards
from fastvideo_wan.plugin import hub_repositories, model_cards

CARDS = {card.model_id: card for card in published_causal_cards()}


@pytest.mark.parametrize("name", CARDS)
def test_a_card_keeps_its_word_and_survives_json(name):
    card = CARDS[name]
    assert list(card_problems(card)) == []
    assert ModelCard.from_json(card.model_dump_json(), origin="here") == card
    assert card in model_cards()


def test_hub_repositories_are_pinned_to_commits():
    hub = [card for card in CARDS.values() if card.checkpoint.source.kind == "hub"]
    assert len(hub) == 2
    for card in hub:
        assert re.fullmatch("[0-9a-f]{40}", card.checkpoint.source.revision)
        assert hub_repositories()[card.checkpoint.source.location] == card.model_id


@pytest.mark.parametrize(
    ("name", "window", "sink", "first", "shift", "num_steps"),
    [
        ("wan2.1-self-forcing-1.3b", 21, 0, None, 5.0, 4),
        ("longlive-1.3b", 12, 3, None, 5.0, 4),
        ("sfwan2.2-i2v-a14b-preview", 21, 0, 1, 12.0, 8),
    ],
)
def test_figures_are_the_releases(name, window, sink, first, shift, num_steps):
    card = CARDS[name]
    options = card.loops["chunk_rollout"].options
    assert (options["window_frames"], options["sink_frames"], options["first_frames"]) == (window, sink, first)
    assert len(options["steps"]) == num_steps and options["chunk_frames"] == 3
    assert card.loops["chunk_rollout"].pinned == {"flow_shift": shift}


def test_a_slab_is_as_large_as_the_releases_cache():
    """A window of 21 frames in bfloat16 is 6.04 GB, of 12 frames 3.45 GB; slabs are stated in float32."""
    slab = CARDS["wan2.1-self-forcing-1.3b"].caches["chunk_kv"].block_bytes
    assert slab / 2 * 7 == pytest.approx(6.04e9, rel=2e-3)
    assert CARDS["longlive-1.3b"].caches["chunk_kv"].block_bytes / 2 * 4 == pytest.approx(3.45e9, rel=2e-3)


def test_lengths_are_whole_chunks():
    card = CARDS["wan2.1-self-forcing-1.3b"]
    request = build_request(card, "a red circle", parameters={"num_frames": 81})
    assert prepare_request(card, request).parameters["num_frames"] == 81
    with pytest.raises(ParameterError, match="num_frames") as caught:
        prepare_request(card, build_request(card, "a red circle", parameters={"num_frames": 85}))
    assert caught.value.nearest in (81, 93)
    experts = CARDS["sfwan2.2-i2v-a14b-preview"]
    with pytest.raises(InputError, match="image"):
        prepare_request(experts, build_request(experts, "a red circle"))


@pytest.fixture
def folder(checkpoint, tmp_path):
    """A causal checkpoint in diffusers layout, as releases have it."""
    copied = tmp_path / "causal"
    shutil.copytree(checkpoint("t2v"), copied)
    index = json.loads((copied / "model_index.json").read_text())
    (copied / "model_index.json").write_text(json.dumps({**index, "_class_name": "WanCausalDMDPipeline"}))
    scheduler = {"_class_name": "SelfForcingFlowMatchScheduler", "shift": 7.0, "num_inference_steps": 1000}
    (copied / "scheduler" / "scheduler_config.json").write_text(json.dumps(scheduler))
    return copied


def change(folder, **keys):
    path = folder / "transformer" / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "_class_name": "CausalWanTransformer3DModel", **keys}))


def test_a_folder_says_what_it_is(folder):
    card = Catalog.installed().read_folder(folder)
    options = card.loops["chunk_rollout"].options
    assert (options["window_frames"], options["sink_frames"], options["has_reread"]) == (21, 0, False)
    assert card.loops["chunk_rollout"].pinned == {"flow_shift": 7.0}
    change(folder, local_attn_size=9, sink_size=3, num_frames_per_block=3)
    options = Catalog.installed().read_folder(folder).loops["chunk_rollout"].options
    assert (options["window_frames"], options["sink_frames"], options["has_reread"]) == (9, 3, True)
    change(folder, local_attn_size=-1, sink_size=0)
    assert list(card_problems(Catalog.installed().read_folder(folder))) == []
    change(folder, num_frames_per_block=2, local_attn_size=4)
    assert Catalog.installed().read_folder(folder).task("text_to_video").defaults()["num_frames"] == 85


def test_a_folder_that_makes_no_sense_is_refused(folder):
    change(folder, in_channels=36)
    with pytest.raises(CheckpointError, match="in_channels"):
        Catalog.installed().read_folder(folder)
    change(folder, in_channels=16, local_attn_sise=9)
    with pytest.raises(CheckpointError, match="local_attn_size"):
        Catalog.installed().read_folder(folder)
    shutil.rmtree(folder / "vae")
    with pytest.raises(CheckpointError, match="vae"):
        Catalog.installed().read_folder(folder)


def test_every_release_has_a_name_of_its_own():
    assert len({facts.base.model_id for facts in PUBLISHED_CAUSAL}) == len(PUBLISHED_CAUSAL) == 3
