"""Cards some of whose components come from other checkpoints."""

from __future__ import annotations

import shutil

import pytest
import torch

from fastvideo_core.card import CheckpointSource, ModelCard
from fastvideo_core.errors import CheckpointError
from fastvideo_core.runtime.loading import load_instance
from fastvideo_core.runtime.machine import inspect_machine, judge_card
from fastvideo_core.runtime.validate import checkpoint_problems
from fastvideo_core.runtime.weights.locate import locate_components
from fastvideo_core.runtime.weights.needs import find_weights
from fastvideo_core.runtime.weights.whole import whole_checkpoint
from fastvideo_testing.tiny import write_tiny_checkpoint


def with_source(card: ModelCard, load_id: str, source: CheckpointSource) -> ModelCard:
    files = card.checkpoint.components[load_id].model_copy(update={"source": source})
    components = {**card.checkpoint.components, load_id: files}
    changed = card.model_copy(update={"checkpoint": card.checkpoint.model_copy(update={"components": components})})
    return ModelCard.from_json(changed.model_dump_json(), origin="test")


@pytest.fixture
def lender(tmp_path):
    return write_tiny_checkpoint(tmp_path / "lender", seed=1)


@pytest.fixture
def card(tmp_path, lender):
    """A card of seed 2 whose VAE, of seed 1, is in another checkpoint, and not in its own."""
    own = write_tiny_checkpoint(tmp_path / "own", seed=2)
    shutil.rmtree(tmp_path / "own" / "vae")
    return with_source(own, "vae", CheckpointSource(kind="folder", location=str(tmp_path / "lender")))


def test_each_component_is_where_it_is_said_to_be(card, tmp_path):
    assert locate_components(card.checkpoint) == {
        "transformer": tmp_path / "own", "text_encoder": tmp_path / "own", "vae": tmp_path / "lender",
    }  # fmt: skip
    assert locate_components(card.checkpoint, {"vae"}) == {"vae": tmp_path / "lender"}
    assert [held for _, held in card.checkpoint.sources.items()][-1] == ("vae",)


def test_the_model_has_the_weights_of_both(card, lender):
    instance, other = load_instance(card), load_instance(lender)
    for name, tensor in instance.component("vae").state_dict().items():
        assert torch.equal(tensor, other.component("vae").state_dict()[name])
    ours, theirs = (one.component("transformer").state_dict() for one in (instance, other))
    assert any(not torch.equal(ours[name], theirs[name]) for name in ours)


def test_files_of_both_are_found_and_counted(card, tmp_path):
    found = find_weights(card)
    expected = [*(tmp_path / "own").glob("*/*.safetensors"), *(tmp_path / "lender" / "vae").glob("*.safetensors")]
    assert found.problems == ()
    assert found.disk_bytes == sum(path.stat().st_size for path in expected)
    assert list(checkpoint_problems(card)) == []
    assert str(tmp_path / "lender") in judge_card(card, inspect_machine()).weights


def test_a_lender_that_is_gone_is_named(card, tmp_path):
    (tmp_path / "lender").rename(tmp_path / "lenders")
    with pytest.raises(CheckpointError, match="no folder .*lender; nearest: .*lenders"):
        load_instance(card)
    (problem,) = find_weights(card).problems
    assert "no folder" in problem


def test_one_folder_holds_all_of_it(card, tmp_path):
    with whole_checkpoint(card.checkpoint) as folder:
        assert {path.name for path in folder.iterdir()} >= {"model_index.json", "transformer", "text_encoder", "vae"}
        assert (folder / "vae" / "config.json").samefile(tmp_path / "lender" / "vae" / "config.json")
        assert (folder / "transformer").samefile(tmp_path / "own" / "transformer")
    assert not folder.exists()
    assert (tmp_path / "lender" / "vae").is_dir()


def test_what_is_whole_is_not_copied(lender, tmp_path):
    with whole_checkpoint(lender.checkpoint) as folder:
        assert folder == tmp_path / "lender"


def test_downloads_of_both_places_add_up(card):
    hub = [CheckpointSource(kind="hub", location=f"a/{n}", revision="0" * 40, download_bytes=n) for n in (5, 7)]
    both = with_source(card, "vae", hub[0])
    assert both.checkpoint.download_bytes == 5
    both = both.model_copy(update={"checkpoint": both.checkpoint.model_copy(update={"source": hub[1]})})
    assert both.checkpoint.download_bytes == 12
    assert card.checkpoint.download_bytes is None
