"""Small checkpoints saved as Self Forcing and LongLive publish theirs, read as cards."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file, save_file

from fastvideo_core.errors import CheckpointError, UnsafeFormatError
from fastvideo_core.runtime.catalog import Catalog
from fastvideo_wan.models.chunks import ChunkRule
from fastvideo_wan.releases import convert_causal_release, release_name

SELF_FORCING = ChunkRule(chunk_frames=3, window_frames=21)
LONGLIVE = ChunkRule(chunk_frames=3, window_frames=12, sink_frames=3)
WEIGHTS = "transformer/diffusion_pytorch_model.safetensors"

WHOLE = {
    "condition_embedder.time_embedder.linear_1": "time_embedding.0",
    "condition_embedder.time_embedder.linear_2": "time_embedding.2",
    "condition_embedder.text_embedder.linear_1": "text_embedding.0",
    "condition_embedder.text_embedder.linear_2": "text_embedding.2",
    "condition_embedder.time_proj": "time_projection.1",
    "patch_embedding": "patch_embedding",
    "proj_out": "head.head",
}
PARTS = {
    "attn1": "self_attn", "attn2": "cross_attn", "to_q": "q", "to_k": "k", "to_v": "v", "to_out.0": "o",
    "norm2": "norm3", "ffn.net.0.proj": "ffn.0", "ffn.net.2": "ffn.2", "norm_q": "norm_q", "norm_k": "norm_k",
}  # fmt: skip


def published(name):
    """Return the release's name of a weight, put together from its parts."""
    if name == "scale_shift_table":
        return "head.modulation"
    module, _, leaf = name.rpartition(".")
    if not name.startswith("blocks."):
        return f"{WHOLE[module]}.{leaf}"
    if leaf == "scale_shift_table":
        return f"{module}.modulation"
    _, number, rest = module.split(".", 2)
    if rest in PARTS:
        return f"blocks.{number}.{PARTS[rest]}.{leaf}"
    attention, part = rest.split(".", 1)
    return f"blocks.{number}.{PARTS[attention]}.{PARTS[part]}.{leaf}"


@pytest.fixture
def base(checkpoint):
    return checkpoint("t2v")


@pytest.fixture
def own(base):
    return load_file(base / WEIGHTS)


@pytest.mark.parametrize("prefix", ["model.", "generator_ema.model.", "generator.model._fsdp_wrapped_module.", ""])
def test_every_weight_of_a_release_finds_its_place(base, own, tmp_path, prefix):
    save_file({prefix + published(name): tensor for name, tensor in own.items()}, tmp_path / "self_forcing.safetensors")
    convert_causal_release(tmp_path / "self_forcing.safetensors", base, tmp_path / "made", rule=SELF_FORCING)
    made = load_file(tmp_path / "made" / WEIGHTS)
    assert made.keys() == own.keys()
    assert all(torch.equal(made[name], own[name]) for name in own)
    options = Catalog.installed().read_folder(tmp_path / "made").loops["chunk_rollout"].options
    assert (options["window_frames"], options["sink_frames"], options["steps"]) == (21, 0, [1000, 750, 500, 250])


def test_longlive_is_its_base_and_its_lora(base, own, tmp_path):
    changed = "blocks.0.attn1.to_q"
    shape = own[f"{changed}.weight"].shape
    draw = torch.Generator().manual_seed(0)
    down, up = torch.randn(2, shape[1], generator=draw), torch.randn(shape[0], 2, generator=draw)
    save_file({f"model.{published(name)}": tensor for name, tensor in own.items()}, tmp_path / "base.safetensors")
    place = "base_model.model.model.blocks.0.self_attn.q"
    save_file({f"{place}.lora_A.weight": down, f"{place}.lora_B.weight": up}, tmp_path / "lora.safetensors")
    convert_causal_release(
        tmp_path / "base.safetensors", base, tmp_path / "made",
        rule=LONGLIVE, lora=tmp_path / "lora.safetensors", lora_alpha=8.0,
    )  # fmt: skip
    made = load_file(tmp_path / "made" / WEIGHTS)
    torch.testing.assert_close(
        made.pop(f"{changed}.weight").float(), own[f"{changed}.weight"].float() + 4.0 * up @ down, atol=1e-2, rtol=1e-2
    )
    assert all(torch.equal(made[name], own[name]) for name in made)
    options = Catalog.installed().read_folder(tmp_path / "made").loops["chunk_rollout"].options
    assert (options["window_frames"], options["sink_frames"], options["has_reread"]) == (12, 3, True)


def test_what_does_not_fit_is_refused_by_name(base, own, tmp_path):
    names = {f"model.{published(name)}": tensor for name, tensor in own.items()}
    del names["model.head.modulation"]
    save_file({**names, "model.blocks.0.extra.weight": torch.zeros(1)}, tmp_path / "weights.safetensors")
    with pytest.raises(
        CheckpointError, match=r"missing \['scale_shift_table'\].*left over \['blocks.0.extra.weight'\]"
    ):
        convert_causal_release(tmp_path / "weights.safetensors", base, tmp_path / "made", rule=SELF_FORCING)
    assert not (tmp_path / "made").exists()
    torch.save({"generator_ema": names}, tmp_path / "self_forcing_dmd.pt")
    with pytest.raises(UnsafeFormatError):
        convert_causal_release(tmp_path / "self_forcing_dmd.pt", base, tmp_path / "made", rule=SELF_FORCING)
    with pytest.raises(CheckpointError, match="is there"):
        convert_causal_release(tmp_path / "weights.safetensors", base, tmp_path, rule=SELF_FORCING)


def test_a_lora_of_something_else_is_refused(base, own, tmp_path):
    save_file({published(name): tensor for name, tensor in own.items()}, tmp_path / "base.safetensors")
    for name in ("blocks.99.self_attn.q.lora_A.weight", "blocks.0.self_attn.q.weight"):
        save_file({name: torch.zeros(2, 2)}, tmp_path / "lora.safetensors")
        with pytest.raises(CheckpointError, match="LoRA"):
            convert_causal_release(
                tmp_path / "base.safetensors",
                base,
                tmp_path / "made",
                rule=LONGLIVE,
                lora=tmp_path / "lora.safetensors",
            )


def test_the_norm_before_the_cross_attention_changes_its_number():
    assert release_name("model.blocks.3.norm3.weight") == "blocks.3.norm2.weight"
    assert release_name("blocks.3.cross_attn.o.bias") == "blocks.3.attn2.to_out.0.bias"
