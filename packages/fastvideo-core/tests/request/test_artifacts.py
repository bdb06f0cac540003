from __future__ import annotations

import json
import subprocess
import sys
import wave
from fractions import Fraction

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.numpy import load_file
from safetensors.torch import load_file as load_tensors

from fastvideo_core.errors import MediaError, NonFiniteError, OutputError, ParameterError, ResourceError
from fastvideo_core.request.artifacts import (
    AudioArtifact,
    ImageArtifact,
    LatentArtifact,
    TensorArtifact,
    TextArtifact,
    VideoArtifact,
)
from fastvideo_core.request.media.embedded import read_provenance
from fastvideo_core.request.media.output import check_output
from fastvideo_core.request.media.videos import load_video
from fastvideo_core.request.provenance import Provenance

PROVENANCE = Provenance(
    node="denoise", card_id="c", parameters={"seed": {"value": 7, "source": "request"}}, seed=7, software={}
)


def video(num_frames=4, **options):
    frames = np.random.default_rng(0).integers(0, 256, (num_frames, 16, 24, 3), dtype=np.uint8)
    return VideoArtifact(frames, 16, **options)


def test_a_video_knows_its_rate_and_length():
    assert (video().name, video().fps, video().duration_s) == ("video", Fraction(16), Fraction(1, 4))
    assert VideoArtifact(video().frames, 23.976).fps == Fraction(24000, 1001)
    with pytest.raises(ParameterError, match="fps"):
        VideoArtifact(video().frames, 0)
    with pytest.raises(ParameterError, match="uint8"):
        VideoArtifact(np.zeros((2, 4, 4, 3)), 16)


def test_artifacts_hold_their_fields_only():
    with pytest.raises(AttributeError):
        video().extra = 1


def test_a_video_from_pixels():
    pixels = torch.linspace(-1, 1, 3 * 20 * 4 * 6).reshape(3, 20, 4, 6)
    made = VideoArtifact.from_pixels(pixels, Fraction(16), provenance=PROVENANCE)
    assert made.frames.shape == (20, 4, 6, 3)
    assert (made.frames[0, 0, 0, 0], made.frames[-1, -1, -1, -1]) == (0, 255)
    pixels[0, 13, 0, 0] = float("nan")
    with pytest.raises(NonFiniteError):
        VideoArtifact.from_pixels(pixels, Fraction(16))


@pytest.mark.parametrize("suffix", [".mp4", ".webm", ".gif", ".png"])
def test_save_a_video(tmp_path, suffix):
    saved = video(provenance=PROVENANCE).save(str(tmp_path / f"out{suffix}"))
    assert read_provenance(saved.path) == PROVENANCE
    if suffix != ".png":
        assert load_video(saved.path).frames.shape == (4, 16, 24, 3)


def test_save_with_sound(tmp_path):
    sound = AudioArtifact(torch.zeros(2, 4000), 48000)
    saved = video().save(tmp_path / "out.mp4", audio=sound)
    assert load_video(saved.path).frames.shape == (4, 16, 24, 3)
    with pytest.raises(OutputError, match="no sound"):
        video().save(tmp_path / "out.gif", audio=sound)


def test_saving_twice_does_not_write_over(tmp_path):
    first = video().save(tmp_path / "out.gif").path.read_bytes()
    with pytest.raises(OutputError, match="nothing is written over"):
        VideoArtifact(video().frames[:1], 16).save(tmp_path / "out.gif")
    assert (tmp_path / "out.gif").read_bytes() == first


def test_a_frame_is_an_image():
    made = video(provenance=PROVENANCE)
    assert np.array_equal(made.frame(-1).pixels, made.frames[3])
    assert made.frame(0).provenance is PROVENANCE


def test_sound_is_fitted_to_a_length():
    sound = AudioArtifact(np.ones(10, np.float32), 10, provenance=PROVENANCE)
    assert sound.duration_s == 1
    assert sound.fitted(Fraction(1, 2)).samples.tolist() == [[1.0] * 5]
    longer = sound.fitted(Fraction(3, 2))
    assert longer.samples.tolist() == [[1.0] * 10 + [0.0] * 5]
    assert longer.provenance is PROVENANCE


def test_save_sound(tmp_path):
    saved = AudioArtifact(np.zeros((2, 32)), 16000, provenance=PROVENANCE).save(tmp_path / "out.wav")
    with wave.open(str(saved.path)) as reader:
        assert reader.getparams()[:4] == (2, 2, 16000, 32)
    assert json.loads(saved.sidecar.read_text())["file"]["sample_rate"] == 16000


@pytest.mark.parametrize("suffix", [".png", ".webp", ".jpg", ".jpeg"])
def test_save_an_image(tmp_path, suffix):
    pixels = np.full((8, 12, 3), (200, 30, 90), np.uint8)
    saved = ImageArtifact(pixels, provenance=PROVENANCE).save(tmp_path / f"out{suffix}")
    with Image.open(saved.path) as image:
        shown = np.array(image.convert("RGB"))
    assert np.abs(shown.astype(int) - pixels).max() <= (2 if suffix in {".jpg", ".jpeg"} else 0)
    assert read_provenance(saved.path) == PROVENANCE


def test_only_images_are_images():
    with pytest.raises(ParameterError, match="pixels"):
        ImageArtifact(np.zeros((4, 4), np.uint8))


def test_save_text(tmp_path):
    saved = TextArtifact((1, 2, 3), "ein Kreis ○\n", provenance=PROVENANCE).save(tmp_path / "out.txt")
    assert saved.path.read_text(encoding="utf-8") == "ein Kreis ○\n"
    assert json.loads(saved.sidecar.read_text())["file"]["token_ids"] == [1, 2, 3]


def test_latents_come_back_to_the_bit(tmp_path):
    latents = np.random.default_rng(1).standard_normal((16, 3, 4, 5), dtype=np.float32)
    saved = LatentArtifact(torch.from_numpy(latents), provenance=PROVENANCE).save(tmp_path / "out.safetensors")
    read = load_file(saved.path)
    assert list(read) == ["latents"]
    assert read["latents"].dtype == np.float32
    assert np.array_equal(read["latents"], latents)
    again = LatentArtifact.load(saved.path)
    assert np.array_equal(again.latents, latents)
    assert again.provenance == PROVENANCE
    assert json.loads(saved.sidecar.read_text())["file"]["shape"] == [16, 3, 4, 5]


def test_latents_of_another_kind_are_refused():
    with pytest.raises(ParameterError, match="float32"):
        LatentArtifact(np.zeros((16, 3, 4, 5)))
    with pytest.raises(ParameterError, match=r"\(C, T, H, W\)"):
        LatentArtifact(np.zeros((1, 16, 3, 4, 5), np.float32))
    with pytest.raises(NonFiniteError, match="1 of 2 latent values"):
        LatentArtifact(np.array([0.0, np.inf], np.float32).reshape(2, 1, 1, 1))


@pytest.mark.parametrize(
    "content",
    [b"", b"junk", b"\xff" * 64, (2).to_bytes(8, "little") + b"{}"],
)
def test_broken_latent_files(tmp_path, content):
    path = tmp_path / "in.safetensors"
    path.write_bytes(content)
    with pytest.raises(MediaError, match="latents"):
        LatentArtifact.load(path)


def test_truncated_latents(tmp_path):
    saved = LatentArtifact(np.zeros((4, 3, 4, 5), np.float32)).save(tmp_path / "out.safetensors")
    saved.path.write_bytes(saved.path.read_bytes()[:-1])
    with pytest.raises(MediaError, match="not a readable safetensors file"):
        LatentArtifact.load(saved.path)


@pytest.mark.parametrize(
    "tensor", [torch.arange(6, dtype=torch.bfloat16).reshape(2, 3).T, np.arange(6).reshape(2, 3).T]
)
def test_tensors_keep_their_type(tmp_path, tensor):
    saved = TensorArtifact(tensor, name="features", provenance=PROVENANCE).save(tmp_path / "out.safetensors")
    read = load_tensors(saved.path)["features"]
    assert torch.equal(
        read, torch.as_tensor(np.ascontiguousarray(tensor) if isinstance(tensor, np.ndarray) else tensor)
    )
    facts = json.loads(saved.sidecar.read_text())["file"]
    assert (facts["shape"], facts["dtype"]) == ([3, 2], str(tensor.dtype).removeprefix("torch."))
    assert read_provenance(saved.path) == PROVENANCE


def test_a_target_checked_before_the_work(tmp_path):
    target = check_output(tmp_path / "new" / "out.safetensors")
    saved = LatentArtifact(np.zeros((1, 1, 1, 1), np.float32)).save(target)
    assert saved.path == tmp_path / "new" / "out.safetensors"


def test_formats_do_not_mix(tmp_path):
    with pytest.raises(OutputError, match=r"allowed: \.safetensors"):
        LatentArtifact(np.zeros((1, 1, 1, 1), np.float32)).save(check_output(tmp_path / "out.mp4"))


def test_a_full_disk_while_one_file_is_written(tmp_path, monkeypatch):
    from pathlib import Path

    def full(self, data):
        raise OSError(28, "No space left on device")

    target = check_output(tmp_path / "out.wav", allowed=(".wav",))
    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(ResourceError, match="no space left"):
        AudioArtifact(np.zeros(4), 16).save(target)
    assert list(tmp_path.iterdir()) == []


def test_nothing_here_needs_torch(tmp_path):
    code = """
import sys
import numpy as np
from fastvideo_core.request.artifacts import LatentArtifact, VideoArtifact
from fastvideo_core.request.media import embedded, images, videos, writer
VideoArtifact(np.zeros((1, 4, 4, 3), np.uint8), 16).save(sys.argv[1])
LatentArtifact(np.zeros((1, 1, 1, 1), np.float32)).save(sys.argv[2])
assert "torch" not in sys.modules
"""
    command = [sys.executable, "-c", code, str(tmp_path / "a.gif"), str(tmp_path / "a.safetensors")]
    subprocess.run(command, check=True)


def test_a_name_of_any_bytes_is_told_by_the_sidecar(tmp_path):
    saved = video(provenance=PROVENANCE).save(tmp_path / "gr\udcfcn.mp4")
    assert [saved.path, saved.sidecar] == [tmp_path / "gr\udcfcn.mp4", tmp_path / "gr\udcfcn.json"]
    assert json.loads(saved.sidecar.read_text(encoding="utf-8"))["file"]["name"] == "gr\udcfcn.mp4"
