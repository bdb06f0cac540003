from __future__ import annotations

import pytest

from fastvideo_core.card import PrecisionPolicy
from fastvideo_core.runtime.instance import needed_components
from fastvideo_core.runtime.weights.needs import find_weights
from fastvideo_testing.tiny import tiny_card, write_tiny_checkpoint


@pytest.fixture
def card(tmp_path):
    return write_tiny_checkpoint(tmp_path)


def test_all_components_with_weights_are_found(card, tmp_path):
    found = find_weights(card)
    assert set(found.folders.values()) == {tmp_path}
    assert set(found.files) == {"text_encoder", "transformer", "vae"}
    assert found.problems == ()
    assert found.disk_bytes == sum(path.stat().st_size for path in tmp_path.glob("*/*.safetensors"))


def test_some_components(card):
    specs = [spec for spec in needed_components(card, ["text_to_video"]) if spec.component_id != "vae"]
    assert set(find_weights(card, specs).files) == {"text_encoder", "transformer"}


def test_memory_follows_the_format(card):
    found = find_weights(card)
    assert found.memory_bytes(card, "float32") == 2 * found.memory_bytes(card, "bfloat16")


def test_parts_that_keep_their_format_do(card):
    def with_policy(policy):
        vae = card.components["vae"].model_copy(update={"precision_policy": policy})
        return card.model_copy(update={"components": {**card.components, "vae": vae}})

    found = find_weights(card)
    low = found.memory_bytes(card, "bfloat16")
    # mix: 8 x 4 weights and 4 biases, two bytes more each.
    assert found.memory_bytes(with_policy(PrecisionPolicy(keep_float32=("mix.",))), "bfloat16") == low + 2 * 36
    num_vae = (8 * 4 + 4) + (4 * 768 + 768) + (192 * 4 + 4)
    assert found.memory_bytes(with_policy(PrecisionPolicy(compute="float32")), "bfloat16") == low + 2 * num_vae


def test_what_is_missing_is_said_and_the_rest_is_found(card, tmp_path):
    (tmp_path / "vae/diffusion_pytorch_model.safetensors").unlink()
    found = find_weights(card)
    assert set(found.files) == {"text_encoder", "transformer"}
    assert len(found.problems) == 1
    assert "vae" in found.problems[0]


def test_a_hub_repository_that_is_not_in_the_cache(card):
    source = card.checkpoint.source.model_copy(update={"kind": "hub", "location": "org/name", "revision": "0" * 40})
    hub = card.model_copy(update={"checkpoint": card.checkpoint.model_copy(update={"source": source})})
    assert find_weights(hub) is None


def test_a_folder_that_is_gone(tmp_path):
    found = find_weights(tiny_card(tmp_path / "gone"))
    assert found.files == {}
    assert "no folder" in found.problems[0]
