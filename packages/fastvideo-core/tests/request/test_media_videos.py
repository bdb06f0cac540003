from __future__ import annotations

import contextlib
from fractions import Fraction

import av
import numpy as np
import pytest

from fastvideo_core.errors import MediaError
from fastvideo_core.request.media.videos import load_video
from fastvideo_core.request.media.writer import VideoWriter

NTSC = Fraction(24000, 1001)


def make(path, num_frames=6, fps=NTSC, seed=None):
    frames = np.zeros((num_frames, 32, 64, 3), np.uint8)
    frames[:, :16, :32] = (255, 0, 0)
    frames[:, :16, 32:] = (0, 0, 255)
    frames[:, 16:] = (np.arange(num_frames) * 40)[:, None, None, None]
    if seed is not None:
        frames = np.random.default_rng(seed).integers(0, 256, frames.shape, dtype=np.uint8)
    with VideoWriter(path, fps=fps, sidecar=False) as writer:
        writer.write(frames)
    return frames


@pytest.mark.parametrize("suffix", [".mp4", ".webm", ".gif"])
def test_frames_colours_and_rate(tmp_path, suffix):
    path = tmp_path / f"in{suffix}"
    frames = make(path)
    for source in (path, str(path), path.read_bytes()):
        clip = load_video(source)
        assert clip.frames.shape == frames.shape
        assert clip.frames.dtype == np.uint8
        inner = np.ones((32, 64), bool)
        inner[14:18] = inner[:, 30:34] = False
        assert np.abs(clip.frames.astype(int) - frames)[:, inner].max() <= 4
        # A GIF counts in 1/100 s.
        assert clip.fps == NTSC if suffix != ".gif" else abs(clip.fps - NTSC) < 0.5


@pytest.mark.parametrize(("matrix", "tag"), [("ITU601", "smpte170m"), ("ITU709", "bt709")])
@pytest.mark.parametrize(("full", "colour_range"), [(False, "tv"), (True, "pc")])
def test_colours_are_read_as_the_file_says(tmp_path, matrix, tag, full, colour_range):
    path = tmp_path / "in.mp4"
    colour = np.full((32, 32, 3), (220, 60, 20), np.uint8)
    with av.open(str(path), "w") as container:
        stream = container.add_stream(
            "libx264", rate=16, options={"colorspace": tag, "color_range": colour_range, "crf": "4"}
        )
        stream.width = stream.height = 32
        stream.pix_fmt = "yuv420p"
        frame = av.VideoFrame.from_ndarray(colour, format="rgb24").reformat(
            format="yuv420p", dst_colorspace=matrix, dst_color_range="JPEG" if full else "MPEG"
        )
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    assert np.abs(load_video(path).frames[0].astype(int) - colour).max() <= 4


@pytest.mark.skipif(not hasattr(av.VideoStream, "set_display_rotation"), reason="this PyAV cannot write a rotation")
@pytest.mark.parametrize("degrees", [0, 90, 180, 270])
def test_phones_store_videos_on_their_side(tmp_path, degrees):
    upright = np.full((32, 64, 3), 30, np.uint8)
    upright[:16, :32] = (255, 255, 255)
    # What is shown by a turn counterclockwise is stored turned clockwise.
    stored = np.ascontiguousarray(np.rot90(upright, -degrees // 90))
    path = tmp_path / "in.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=16)
        stream.height, stream.width = stored.shape[:2]
        stream.pix_fmt = "yuv420p"
        stream.set_display_rotation(degrees)
        container.mux(stream.encode(av.VideoFrame.from_ndarray(stored, format="rgb24")))
        container.mux(stream.encode(None))
    shown = load_video(path).frames[0]
    assert shown.shape == upright.shape
    assert np.abs(shown.astype(int) - upright)[4:12, 4:28].max() <= 6
    assert np.abs(shown.astype(int) - upright)[20:].max() <= 6


def test_limits_are_errors_not_cuts(tmp_path):
    path = tmp_path / "in.mp4"
    make(path)
    assert len(load_video(path, max_frames=6).frames) == 6
    with pytest.raises(MediaError, match="more than 5 frames"):
        load_video(path, max_frames=5)
    with pytest.raises(MediaError, match="more than 3 frames of this size"):
        load_video(path, max_decoded_bytes=3 * 32 * 64 * 3)
    with pytest.raises(MediaError, match="too large for a video"):
        load_video(path, max_bytes=100)


@pytest.mark.parametrize("keep", [0.2, 0.5, 0.8, 0.97])
def test_a_video_that_is_cut_off(tmp_path, keep):
    path = tmp_path / "in.mp4"
    make(path, num_frames=12, seed=0)
    data = path.read_bytes()
    with pytest.raises(MediaError, match="broken or cut off"):
        load_video(data[: int(len(data) * keep)])


def test_damaged_videos_never_raise_anything_else(tmp_path):
    generator = np.random.default_rng(0)
    for suffix in (".mp4", ".webm", ".gif"):
        path = tmp_path / f"in{suffix}"
        make(path, seed=1)
        data = path.read_bytes()
        for _ in range(15):
            broken = bytearray(data)
            for place in generator.integers(0, len(data), 12):
                broken[place] = int(generator.integers(0, 256))
            with contextlib.suppress(MediaError):
                assert load_video(bytes(broken)).frames.ndim == 4


@pytest.mark.parametrize("data", [b"hello", b"\0" * 5000, b"RIFF....AVI LIST"])
def test_files_that_are_no_videos(data):
    with pytest.raises(MediaError) as caught:
        load_video(data, field="video")
    assert caught.value.field == "video"


def test_playlists_are_not_followed(tmp_path):
    make(tmp_path / "secret.mp4")
    playlist = f"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nfile://{tmp_path}/secret.mp4\n#EXT-X-ENDLIST\n"
    path = tmp_path / "in.m3u8"
    path.write_text(playlist)
    with pytest.raises(MediaError, match="not a video|broken"):
        load_video(path)
    concat = tmp_path / "in.txt"
    concat.write_text(f"ffconcat version 1.0\nfile '{tmp_path}/secret.mp4'\n")
    with pytest.raises(MediaError, match="not a video|broken"):
        load_video(concat)


def test_sound_alone_is_no_video(tmp_path):
    path = tmp_path / "in.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("aac", rate=16000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 4096), np.float32), format="fltp", layout="mono")
        frame.sample_rate = 16000
        stream.codec_context.layout = "mono"
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    with pytest.raises(MediaError, match="no video in it"):
        load_video(path)


def test_missing_file_and_folder(tmp_path):
    with pytest.raises(MediaError, match="no such file"):
        load_video(tmp_path / "gone.mp4")
    with pytest.raises(MediaError, match="is a folder, not the file of a video"):
        load_video(tmp_path)
