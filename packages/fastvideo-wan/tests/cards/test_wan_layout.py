"""Cards of folders, from their JSON files alone."""

from __future__ import annotations

import pytest

from fastvideo_core.card import CheckpointSource
from fastvideo_core.errors import CheckpointError
from fastvideo_wan.cards.layout import card_from_folder, facts_from_folder
from fastvideo_wan.cards.published import PUBLISHED

SOURCE = CheckpointSource(kind="folder", location="/models/My Wan!")
VAE_21 = {"_class_name": "AutoencoderKLWan"}
VAE_22 = {
    "_class_name": "AutoencoderKLWan", "z_dim": 48, "base_dim": 160, "decoder_base_dim": 256, "is_residual": True,
    "patch_size": 2, "in_channels": 12, "out_channels": 12, "scale_factor_spatial": 16,
    "latents_mean": [0.0] * 48, "latents_std": [1.0] * 48,
}  # fmt: skip
SCHEDULER = {
    "_class_name": "UniPCMultistepScheduler", "prediction_type": "flow_prediction", "use_flow_sigmas": True,
    "num_train_timesteps": 1000,
}  # fmt: skip


def describe(pipeline="WanPipeline", *, heads=12, channels=16, vae=VAE_21, shift=3.0, without=(), index=(), more=()):
    """Return the facts of a folder with these files."""
    transformer = {"num_attention_heads": heads, "in_channels": channels, "out_channels": vae.get("z_dim", 16)}
    scheduler = {**SCHEDULER, "flow_shift": shift}
    configs = {"transformer": transformer, "vae": vae, "scheduler": scheduler, "text_encoder": {}}
    for name, fields in dict(more).items():
        configs[name] = {**configs.get(name, {}), **fields}
    left = {name: config for name, config in configs.items() if name not in without}
    return facts_from_folder(SOURCE, {"_class_name": pipeline, **dict(index)}, left)


VISION = dict(
    pipeline="WanImageToVideoPipeline",
    heads=40,
    channels=36,
    more={"transformer": {"image_dim": 1280, "added_kv_proj_dim": 5120}},
)
COPIES = {
    "wan2.1-i2v-14b-480p": VISION,
    "wan2.1-i2v-14b-720p": {**VISION, "shift": 5.0},
    "wan2.1-t2v-1.3b": {},
    "wan2.1-t2v-14b": dict(heads=40),
    "wan2.2-ti2v-5b": dict(heads=24, channels=48, vae=VAE_22, shift=5.0, index={"expand_timesteps": True}),
    "fastwan2.2-ti2v-5b": dict(
        pipeline="WanDMDPipeline", heads=24, channels=48, vae=VAE_22, shift=5.0, index={"expand_timesteps": True}
    ),
    "wan2.2-t2v-a14b": dict(heads=40, index={"boundary_ratio": 0.875}, more={"transformer_2": {}}),
    "wan2.2-i2v-a14b": dict(
        pipeline="WanImageToVideoPipeline", heads=40, channels=36, index={"boundary_ratio": 0.9},
        more={"transformer_2": {}},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", COPIES)
def test_a_copy_of_a_published_checkpoint_runs_as_that_does(name):
    published = next(facts for facts in PUBLISHED if facts.model_id == name)
    facts = describe(**COPIES[name])
    same = (
        "conditioning", "accepts_text_only", "spatial_factor", "temporal_factor", "patch", "num_frames", "height",
        "width", "fps", "num_inference_steps", "guidance_scale", "guidance_scale_2", "boundary_ratio",
        "expand_timesteps", "flow_shift", "sampler", "dmd_steps", "text_length", "num_heads", "loop_id",
    )  # fmt: skip
    assert {field: getattr(facts, field) for field in same} == {field: getattr(published, field) for field in same}
    assert facts.recipe.method != "base"  # where the weights come from, a folder does not say


def test_a_make_that_is_not_published_has_the_usual_values():
    facts = describe(heads=2)
    assert (facts.fps, facts.num_frames, facts.height, facts.width) == (16, 81, 480, 832)


def test_the_files_shift_goes_before_the_published_one():
    assert describe(heads=40, shift=7.0).flow_shift == 7.0


def test_the_name_is_made_of_the_folders():
    assert describe().model_id == "my-wan"


def test_another_family_is_left_to_others():
    assert card_from_folder(SOURCE, {"_class_name": "FluxPipeline"}, {}) is None


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (dict(without=("vae",)), "names a WanPipeline and has no vae/"),
        (dict(channels=20), r"in_channels of the transformer is 20; allowed with this VAE: 16 .* or 36"),
        (dict(pipeline="WanImageToVideoPipeline"), "whose transformer takes 36 channels; its config says 16"),
        (dict(index={"boundary_ratio": 0.875}), "boundary_ratio 0.875 and there is no transformer_2/"),
        (dict(pipeline="WanDMDPipeline", channels=36), "there is no few-step Wan with image channels"),
        (dict(more={"scheduler": {"num_train_timesteps": 500}}), "num_train_timesteps of the scheduler is 500.*1000"),
        (dict(more={"transformer": {"num_layer": 4}}), "unknown keys: num_layer; nearest: num_layers"),
    ],
)
def test_files_that_contradict_each_other(options, text):
    with pytest.raises(CheckpointError, match=text):
        describe(**options)
