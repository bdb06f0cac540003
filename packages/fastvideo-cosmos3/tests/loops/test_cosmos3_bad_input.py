"""What cannot be done is refused before any step, with what is allowed."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fastvideo_core.errors import CheckpointError, InputError, MediaError, PromptError, UnknownTaskError
from fastvideo_core.request.base import ActionPart, ImagePart, VideoPart
from fastvideo_core.request.build import build_request
from fastvideo_core.runtime.catalog import Catalog
from fastvideo_core.runtime.host import load_host
from fastvideo_core.runtime.prepare import prepare_request
from fastvideo_cosmos3.testing import write_checkpoint

IMAGE = np.zeros((32, 32, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def card(folder):
    return Catalog.installed().read_folder(folder)


def check(card, task, prompt="x", inputs=None, **parameters):
    """Prepare a request and check it as the command does before weights are loaded."""
    request = build_request(card, prompt, task=task, inputs=inputs, parameters=parameters)
    return load_host(card, tasks=(task,), device="cpu").check(prepare_request(card, request))


def test_a_good_request_passes(card):
    assert check(card, "policy", inputs={"image": IMAGE}) == ()
    assert check(card, "reasoning_text", inputs={"image": IMAGE}) == ()


def test_a_task_that_the_card_lacks(card):
    with pytest.raises(UnknownTaskError, match="text_to_video_sound"):
        check(card, "text_to_video_sund")


def test_sound_of_a_checkpoint_without_a_sound_decoder(tmp_path):
    silent = Catalog.installed().read_folder(write_checkpoint(tmp_path / "silent", has_sound=False))
    with pytest.raises(UnknownTaskError):
        check(silent, "text_to_video_sound")
    with pytest.raises(UnknownTaskError):
        check(silent, "omni")
    assert check(silent, "text_to_video") == ()


def test_no_actions_of_a_checkpoint_without_action_heads(tmp_path):
    card = Catalog.installed().read_folder(write_checkpoint(tmp_path / "plain", action_gen=False, action_dim=None))
    with pytest.raises(UnknownTaskError):
        check(card, "policy", inputs={"image": IMAGE})


def test_actions_of_a_wrong_width(card):
    actions = np.zeros((3, 7), dtype=np.float32)
    with pytest.raises(InputError, match=r"\(steps, 10\)"):
        check(card, "forward_dynamics", inputs={"image": IMAGE, "actions": actions}, embodiment="umi")


def test_an_embodiment_that_is_wider_than_the_model(card):
    with pytest.raises(InputError, match="agibotworld"):
        check(card, "policy", inputs={"image": IMAGE}, embodiment="agibotworld")


@pytest.mark.parametrize("values", [[[1.0], [2.0, 3.0]], [], "up", [[float("nan")] * 10]])
def test_what_are_no_actions(card, values):
    part = ActionPart(name="actions", values=values)
    with pytest.raises(InputError, match="not actions"):
        check(card, "forward_dynamics", inputs={"image": IMAGE, "actions": part}, embodiment="umi")


def test_a_text_that_is_longer_than_the_context(card):
    with pytest.raises(PromptError, match="at most 32768 tokens"):
        check(card, "reasoning_text", "x" * 33000)
    with pytest.raises(PromptError, match="negative_prompt"):
        check(card, "text_to_video", negative_prompt="x" * 33000)
    with pytest.raises(PromptError, match="of the answer"):
        check(card, "reasoning_text", "x" * 30000, max_tokens=4000)


def test_a_missing_chat_template(tmp_path):
    folder = write_checkpoint(tmp_path / "untold")
    (folder / "text_tokenizer" / "chat_template.jinja").unlink()
    with pytest.raises(CheckpointError, match="no chat template"):
        check(Catalog.installed().read_folder(folder), "reasoning_text")


def test_a_video_without_frames(card):
    part = VideoPart(name="video", frames=np.zeros((0, 32, 32, 3), dtype=np.uint8), fps=8.0)
    with pytest.raises(MediaError, match="no frames"):
        check(card, "reasoning_text", inputs={"video": part})


def test_a_video_without_a_rate(card):
    part = VideoPart(name="video", frames=np.zeros((2, 32, 32, 3), dtype=np.uint8))
    with pytest.raises(MediaError, match="no frame rate"):
        check(card, "video_to_video", inputs={"video": part})


def test_an_image_and_a_video_in_one_question(card):
    part = VideoPart(name="video", frames=np.zeros((2, 32, 32, 3), dtype=np.uint8), fps=8.0)
    with pytest.raises(InputError, match="shows one thing"):
        check(card, "reasoning_text", inputs={"video": part, "image": ImagePart(name="image", pixels=IMAGE)})


def test_tokens_of_images_in_a_text(card):
    for task, settings in (("reasoning_text", {}), ("text_to_video", {"guidance_scale": 1.0})):
        with pytest.raises(PromptError, match="not shown"):
            check(card, task, "look: <|image_pad|>", **settings)


def test_kept_frames_that_are_not_in_the_video(card):
    part = VideoPart(name="video", frames=np.zeros((2, 32, 32, 3), dtype=np.uint8), fps=8.0)
    with pytest.raises(InputError, match="some of 0 to 2"):
        check(card, "video_to_video", inputs={"video": part}, num_frames=9, condition_frames=[0, 3])


@pytest.mark.parametrize(
    "history", ["[", '{"role": "user"}', '[{"role": "robot", "content": "x"}]', '[{"role": "user"}]']
)
def test_what_is_no_conversation(card, history):
    with pytest.raises(InputError, match="not a conversation"):
        check(card, "reasoning_text", inputs={"history": history})


def test_an_empty_stop_string(card):
    with pytest.raises(InputError, match="stop"):
        check(card, "reasoning_text", stop=["x", ""])


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("vae/config.json", {"z_dim": 8, "latents_mean": [0.0] * 8, "latents_std": [1.0] * 8}, "latent channels"),
        ("sound_tokenizer/config.json", {"vocoder_input_dim": 4}, "4 channels"),
        ("scheduler/scheduler_config.json", {"num_train_timesteps": 500}, "500"),
        (
            "transformer/config.json",
            {"hidden_act": "relu2"},
            "hidden_act: an Edge checkpoint .*Nano and larger",
        ),
        ("transformer/config.json", {"hidden_act": "gelu"}, "hidden_act"),
    ],
)
def test_a_checkpoint_whose_parts_do_not_fit(tmp_path, file, change, message):
    folder = write_checkpoint(tmp_path / "odd")
    path = folder / file
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(CheckpointError, match=message):
        Catalog.installed().read_folder(folder)
