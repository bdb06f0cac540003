"""From results of loops to artifacts of every kind."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fastvideo_core.errors import InputError, MediaError
from fastvideo_core.program import ArtifactNode, TensorEdge
from fastvideo_core.request.base import ActionPart, VideoPart
from fastvideo_core.request.build import build_request
from fastvideo_core.runtime import artifacts
from fastvideo_core.runtime.prepare import _read
from fastvideo_testing.tiny import tiny_card

FRAMES = torch.arange(2 * 3 * 4 * 4 * 3, dtype=torch.uint8).reshape(2, 3, 4, 4, 3)
SOUND = SimpleNamespace(samples=torch.linspace(-1, 1, 2 * 700).reshape(2, 700), sample_rate=800)


@pytest.fixture
def make(monkeypatch):
    monkeypatch.setattr(artifacts, "make_provenance", lambda *_: None)
    prepared = SimpleNamespace(parameters_of=lambda _: {"fps": 8})

    def made(modality, value, *, carries=(), **parts):
        source = TensorEdge(node="n", output="o")
        node = ArtifactNode(node_id="a", modality=modality, source=source, parameters=carries)
        return artifacts.make_artifact(node, value, prepared, None, parts=parts)

    return made


def test_a_video_has_its_sound_cut_or_padded_to_its_length(make):
    video = make("video", tuple(FRAMES), carries=("fps",), audio=SOUND)
    assert np.array_equal(video.frames, FRAMES.flatten(0, 1).numpy())
    assert video.audio.samples.shape == (2, 600)  # 6 frames of 8 a second, 800 samples a second
    assert np.array_equal(video.audio.samples, SOUND.samples[:, :600].numpy())
    short = SimpleNamespace(samples=SOUND.samples[:, :100], sample_rate=800)
    padded = make("video", tuple(FRAMES), carries=("fps",), audio=short).audio.samples
    assert padded.shape == (2, 600)
    assert not padded[:, 100:].any()


def test_a_video_without_sound_has_none(make):
    assert make("video", tuple(FRAMES), carries=("fps",)).audio is None
    assert make("video", tuple(FRAMES), carries=("fps",), audio=None).audio is None


def test_images_sound_text_and_actions(make):
    assert np.array_equal(make("image", tuple(FRAMES)).pixels, FRAMES[0, 0].numpy())
    assert np.array_equal(make("audio", SOUND).samples, SOUND.samples.numpy())
    text = make("text", SimpleNamespace(token_ids=(1, 2), text="hi", finish="stop", num_read=3))
    assert (text.text, text.token_ids, text.name) == ("hi", (1, 2), "a")
    assert (text.finish, text.num_read) == ("stop", 3)
    assert np.array_equal(make("action", torch.ones(3, 2)).tensor, np.ones((3, 2), np.float32))


def test_a_silent_format_leaves_the_sound_out(make, tmp_path):
    video = make("video", tuple(FRAMES), carries=("fps",), audio=SOUND)
    saved = video.save(tmp_path / "clip.gif", sidecar=False)
    assert saved.path.read_bytes().startswith(b"GIF8")


def test_videos_and_actions_are_read_before_anything_runs():
    clip = _read(VideoPart(name="video", frames=FRAMES[0].numpy(), fps=8.0), True)
    assert (clip.frames.shape, clip.fps) == ((3, 4, 4, 3), 8)
    assert np.array_equal(_read(ActionPart(name="actions", values=[[1, 2], [3, 4]]), True), np.array([[1, 2], [3, 4]]))
    for part in (
        VideoPart(name="video", frames=FRAMES[0, :0].numpy(), fps=8.0),
        VideoPart(name="video", frames=FRAMES[0].numpy()),
    ):
        with pytest.raises(MediaError):
            _read(part, True)
    for values in ([], [[]], [1.0], [[1.0], [2.0, 3.0]], [[float("inf")]], "x"):
        with pytest.raises(InputError, match="not actions"):
            _read(ActionPart(name="actions", values=values), True)


def test_inputs_become_parts_by_what_the_task_takes(tmp_path):
    card = tiny_card(tmp_path)
    image = np.zeros((4, 4, 3), np.uint8)
    request = build_request(card, "x", task="image_to_video", inputs={"image": image})
    assert request.part("image").pixels is image
    with pytest.raises(InputError, match=r"takes no such input.*nearest: image"):
        build_request(card, "x", task="image_to_video", inputs={"imag": image})
