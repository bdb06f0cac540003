"""Prompts, views and patches against the reference's own code."""

from __future__ import annotations

import hashlib
import json
import logging
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from fastvideo_core.errors import CheckpointError, MediaError
from fastvideo_core.request.media.videos import VideoClip
from fastvideo_cosmos3.loops.texts import read_text, read_visual
from fastvideo_cosmos3.models import embodiments
from fastvideo_cosmos3.models.frames import action_view, cover_image, stretch_frames
from fastvideo_cosmos3.models.prompts import SYSTEM_VIDEO, action_caption, generation_text
from fastvideo_cosmos3.models.tokenizer import ChatTokenizer
from fastvideo_cosmos3.models.vision import VisionPreprocessor, VisionSettings, text_positions

RECORDED = json.loads((Path(__file__).parents[1] / "data" / "vision.json").read_text())


@pytest.fixture(scope="module")
def tokenizer(folder):
    return ChatTokenizer.from_folder(folder / "text_tokenizer")


def picture(rows, columns, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (rows, columns, 3), dtype=np.uint8)


@pytest.mark.parametrize(("num_frames", "fps"), [(1, 24.0), (9, 24.0), (29, 16.0)])
def test_prompts_are_tokenized_as_in_diffusers(pipeline, tokenizer, num_frames, fps):
    size = {"num_frames": num_frames, "height": 64, "width": 96, "fps": fps}
    expected = pipeline.tokenize_prompt("a red ball.", "blurred", **size)
    system = (
        "You are a helpful assistant who will generate images from a give prompt." if num_frames == 1 else SYSTEM_VIDEO
    )
    for text, is_negative, ids in (("a red ball.", False, expected[0]), ("blurred", True, expected[1])):
        messages = [
            {"role": "system", "content": system},
            {"role": "user", "content": generation_text(text, **size, is_negative=is_negative)},
        ]
        found = tokenizer.encode_chat(messages)
        assert [*found, tokenizer.eos_id, tokenizer.start_of_generation_id] == ids


@pytest.mark.parametrize("view_point", embodiments.VIEW_POINTS)
@pytest.mark.parametrize("size", [(256, 320), (192, 320), (640, 640)])
def test_action_captions_are_those_of_diffusers(pipeline, view_point, size):
    height, width = size
    settings = {"view_point": view_point, "num_frames": 17, "height": height, "width": width}
    for text in ("pick the cup", "Is it there?", " a."):
        assert action_caption(text, fps=5.0, **settings) == pipeline._build_action_json_prompt(
            text, fps=5.0, **settings
        )


def test_tables_of_embodiments_are_those_of_diffusers():
    from diffusers.pipelines.cosmos import pipeline_cosmos3_omni as reference

    assert dict(embodiments.DOMAINS) == reference._EMBODIMENT_TO_DOMAIN_ID
    assert dict(embodiments.ACTION_WIDTHS) == reference._EMBODIMENT_TO_RAW_ACTION_DIM
    bins = {
        f"{tier}p": {float(k): v for k, v in sizes.items()} for tier, sizes in reference._ACTION_RESOLUTION_BINS.items()
    }
    assert {tier: dict(sizes) for tier, sizes in embodiments.CANVASES.items()} == bins


@pytest.mark.parametrize("size", [(40, 70), (33, 20), (64, 64)])
def test_images_cover_the_frame_as_in_diffusers(size):
    from diffusers.pipelines.cosmos.pipeline_cosmos3_omni import _preprocess_conditioning_image

    image = picture(*size)
    expected = _preprocess_conditioning_image(Image.fromarray(image), 32, 48)
    assert torch.equal(cover_image(image, height=32, width=48), expected)


def test_videos_are_stretched_as_in_diffusers(pipeline):
    frames = np.stack([picture(40, 70, seed) for seed in range(3)])
    images = [Image.fromarray(frame) for frame in frames]
    expected = pipeline.video_processor.preprocess_video(images, height=32, width=48)
    assert torch.equal(stretch_frames(frames, height=32, width=48), expected)


@pytest.mark.parametrize("size", [(50, 70), (300, 500), (256, 256)])
def test_views_are_laid_out_as_in_diffusers(pipeline, size):
    frames = np.stack([picture(*size, seed) for seed in range(2)])
    images = [Image.fromarray(frame) for frame in frames]
    expected, content, height, width = pipeline._prepare_action_video_conditioning(images, 256, 5, "cpu", torch.float32)
    view = action_view(frames, tier="256p", num_frames=5, grid=16)
    assert torch.equal(view.pixels_1PTHW, expected)
    assert [view.height, view.width, view.content_height, view.content_width] == content.int().tolist()
    assert (view.height, view.width) == (height, width)


@pytest.mark.parametrize("case", RECORDED["cases"], ids=lambda case: f"{case['kind']}-{case['shape']}")
def test_what_is_shown_is_cut_up_as_in_transformers(folder, tokenizer, case):
    """To the bit as its processor did it with torchvision, which it needs for videos and tests do not have."""
    frames = np.random.default_rng(case["seed"]).integers(0, 256, (*case["shape"], 3), dtype=np.uint8)
    shown = VideoClip(frames, case["fps"]) if case["kind"] == "video" else frames
    model = SimpleNamespace(
        component={
            "text_tokenizer": tokenizer,
            "image_processor": VisionPreprocessor(VisionSettings.from_folder(folder)),
        }.get
    )
    inputs = {"text": "chat", "answers": True, "prompt": "what?", case["kind"]: shown}
    visual = read_visual(model.component("image_processor"), inputs)
    assert list(visual.grid) == case["grid"]
    assert hashlib.sha256(visual.patches_PK.numpy().tobytes()).hexdigest() == case["patches_sha256"]
    pads = ((tokenizer.image_id, "I"), (tokenizer.video_id, "V"))
    expected = case["ids"]
    for token, letter in pads:
        expected = expected.replace(letter, tokenizer._tokenizer.convert_ids_to_tokens(token))
    assert read_text(model, None, {}, inputs).ids == tokenizer.encode(expected)


def test_settings_of_images_and_videos_are_where_transformers_looks(folder, tmp_path):
    def write(name, **content):
        (tmp_path / name).write_text(json.dumps(content))

    size = {"shortest_edge": 4096, "longest_edge": 8192}
    write("preprocessor_config.json", patch_size=8)
    assert VisionSettings.from_folder(tmp_path).video.patch_size == 8
    write("video_preprocessor_config.json", patch_size=8, size=size, fps=4)
    read = VisionSettings.from_folder(tmp_path)
    assert (read.video.size.longest_edge, read.video.fps, read.image.size.longest_edge) == (8192, 4.0, 16777216)
    write("processor_config.json", video_processor={"patch_size": 4}, processor_class="Qwen3VLProcessor")
    read = VisionSettings.from_folder(tmp_path)
    assert (read.video.patch_size, read.image.patch_size) == (4, 8)
    write("preprocessor_config.json", patch_size=0)
    with pytest.raises(CheckpointError, match=r"preprocessor_config.json: patch_size"):
        VisionSettings.from_folder(tmp_path)
    with pytest.raises(CheckpointError, match=r"preprocessor_config.json is missing"):
        VisionSettings.from_folder(tmp_path / "nowhere")


def test_a_video_of_one_frame_stands_still(folder):
    found = VisionPreprocessor(VisionSettings.from_folder(folder)).video(picture(40, 70)[None], 24.0)
    assert (found.grid[0], found.seconds) == (1, (0.0,))
    first, second = found.patches_PK.unflatten(1, (3, 2, 64)).unbind(2)
    assert torch.equal(first, second)


def test_videos_are_sampled_twice_a_second(folder):
    frames = np.stack([picture(32, 48, seed) for seed in range(24)])
    found = VisionPreprocessor(VisionSettings.from_folder(folder)).video(frames, 8.0)
    assert found.grid[0] == 3  # 6 frames of 3 seconds, two a group
    assert found.seconds == pytest.approx((2.5 / 8, 11.5 / 8, 20.5 / 8))
    with pytest.raises(MediaError, match="no frames"):
        VisionPreprocessor(VisionSettings()).video(frames[:0], 8.0)


def test_positions_of_text_with_images_are_those_of_transformers(reasoner):
    image, video = reasoner.config.image_token_id, reasoner.config.video_token_id
    ids = [1, 2, *[image] * 6, 3, *[video] * 4, 4, *[video] * 4, 5]
    kinds = torch.tensor([[1 if one == image else 2 if one == video else 0 for one in ids]])
    expected, _ = reasoner.model.get_rope_index(
        torch.tensor([ids]), kinds, image_grid_thw=torch.tensor([[1, 4, 6]]), video_grid_thw=torch.tensor([[2, 4, 4]])
    )
    found = text_positions(ids, (image, video), [(2, 3), (2, 2), (2, 2)])
    assert torch.equal(found, expected[:, 0].float())


def test_text_comes_out_in_whole_characters(tokenizer):
    text = "a é 漢 🚀 b"
    ids, start, shown, parts = tokenizer.encode(text), 0, 0, []
    for count in range(1, len(ids) + 1):
        part, start, shown = tokenizer.decode_step(ids[:count], start, shown)
        parts.append(part)
    assert "".join(parts) == text
    assert "🚀" in parts
    assert "" in parts


def test_bytes_that_are_no_character_do_not_hold_text_back_for_ever(tokenizer):
    lone = tokenizer.encode("é")[1]
    ids, start, shown, text = [lone] * 20, 0, 0, ""
    for count in range(1, 21):
        part, start, shown = tokenizer.decode_step(ids[:count], start, shown)
        text += part
    assert text


def test_a_tokenizer_without_a_chat_template_is_refused(folder, tmp_path):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((folder / "text_tokenizer" / name).read_bytes())
    with pytest.raises(CheckpointError, match="no chat template"):
        ChatTokenizer.from_folder(tmp_path)
    with pytest.raises(CheckpointError, match="is missing"):
        ChatTokenizer.from_folder(tmp_path / "nothing")


def test_a_long_text_is_counted_without_a_warning_of_the_library(folder):
    records = []
    heard = logging.Handler()
    heard.emit = records.append
    logger = logging.getLogger("transformers")
    level = logger.level
    logger.addHandler(heard)
    logger.setLevel(logging.WARNING)
    try:
        assert len(ChatTokenizer.from_folder(folder / "text_tokenizer").encode("x" * 33000)) > 32768
    finally:
        logger.removeHandler(heard)
        logger.setLevel(level)
    assert not records
