from __future__ import annotations

import dataclasses
import io
from fractions import Fraction

import av
import numpy as np
import pytest

from fastvideo_core.errors import OutputError
from fastvideo_core.request.media.encoder import CONTAINERS, ContainerEncoder
from fastvideo_core.request.media.sound import AudioTrack


def encode(sink, suffix=".mp4", *, num_frames=16, fps=Fraction(16), audio=None, spec=None):
    spec = spec or CONTAINERS[suffix]
    encoder = ContainerEncoder(sink, spec, height=32, width=48, fps=fps, audio=audio, metadata={"title": "t"})
    for index in range(num_frames):
        encoder.write(np.full((32, 48, 3), index * 10 % 256, np.uint8))
    encoder.finish()


def clicks(sample_rate, num_samples, channels=1):
    """A click at every quarter of the sound, in the last channel only."""
    samples = np.zeros((channels, num_samples), np.float32)
    for quarter in range(1, 4):
        samples[-1, quarter * num_samples // 4 : quarter * num_samples // 4 + sample_rate // 500] = 0.9
    return AudioTrack(samples, sample_rate)


def decode_sound(path):
    with av.open(str(path)) as container:
        stream = container.streams.audio[0]
        frames = list(container.decode(stream))
        pieces = [frame.to_ndarray() for frame in frames]
        start_s = frames[0].time
        duration_s = float(stream.duration * stream.time_base) if stream.duration else None
        return np.concatenate(pieces, axis=1), stream.sample_rate, duration_s, start_s


@pytest.mark.parametrize("suffix", [".mp4", ".webm"])
@pytest.mark.parametrize("sample_rate", [16000, 24000, 44100, 48000])
def test_sound_is_where_it_belongs(tmp_path, suffix, sample_rate):
    path = tmp_path / f"out{suffix}"
    encode(str(path), suffix, audio=clicks(sample_rate, sample_rate, channels=2))
    samples, rate, duration_s, start_s = decode_sound(path)
    assert rate == (48000 if suffix == ".webm" else sample_rate)
    assert duration_s in (None, pytest.approx(1.0, abs=1e-3))
    # The codec's own lead-in is skipped by players; what is left starts with the first frame.
    assert abs(start_s) < 0.01
    loud_s = np.flatnonzero(np.abs(samples[1]) > 0.45) / rate + start_s
    for quarter in (0.25, 0.5, 0.75):
        near = loud_s[np.abs(loud_s - quarter) < 0.1]
        assert near.min() == pytest.approx(quarter, abs=0.002)
    assert np.abs(samples[0]).max() < 0.1


@pytest.mark.parametrize(("num_samples", "expected_s"), [(3000, 1.0), (0, 1.0), (16000, 1.0), (24000, 1.5)])
def test_short_sound_is_padded_and_long_sound_kept(tmp_path, num_samples, expected_s):
    path = tmp_path / "out.mp4"
    encode(str(path), audio=AudioTrack(np.full((1, num_samples), 0.25, np.float32), 16000))
    samples, _, duration_s, _ = decode_sound(path)
    assert duration_s == pytest.approx(expected_s, abs=1e-3)
    if num_samples == 3000:
        assert np.abs(samples[0, 6000:]).max() < 0.01
    with av.open(str(path)) as container:
        assert container.streams.video[0].duration * container.streams.video[0].time_base == 1


def test_padding_ends_with_the_last_frame_at_fractional_rates(tmp_path):
    path = tmp_path / "out.mp4"
    fps = Fraction(24000, 1001)
    encode(str(path), num_frames=49, fps=fps, audio=AudioTrack(np.zeros((2, 100), np.float32), 44100))
    assert decode_sound(path)[2] == pytest.approx(float(49 / fps), abs=1e-3)


def test_loud_sound_is_clipped_not_wrapped(tmp_path):
    path = tmp_path / "out.webm"
    wave = 3 * np.sin(np.arange(48000) * (2 * np.pi * 100 / 48000))
    encode(str(path), ".webm", audio=AudioTrack(wave[None].astype(np.float32), 48000))
    decoded = decode_sound(path)[0][0, :48000]
    # Wrapping would turn the tops over; clipping makes a tone of the same sign everywhere.
    assert np.corrcoef(decoded, np.clip(wave, -1, 1))[0, 1] > 0.95


@pytest.mark.parametrize(("sample_rate", "nearest"), [(1600, 7350), (44000, 44100), (192000, 96000)])
def test_rates_that_aac_lacks(tmp_path, sample_rate, nearest):
    path = tmp_path / "out.mp4"
    with pytest.raises(OutputError, match="does not take this sample rate") as caught:
        encode(str(path), audio=AudioTrack(np.zeros((1, 10), np.float32), sample_rate))
    assert caught.value.nearest == nearest
    assert not path.exists()


def test_sizes_that_the_codec_refuses(tmp_path):
    with pytest.raises(OutputError, match="does not take 48x33"):
        ContainerEncoder(str(tmp_path / "a.mp4"), CONTAINERS[".mp4"], height=33, width=48, fps=Fraction(16))


def test_a_folder_that_is_not_there_stays_an_os_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        encode(str(tmp_path / "no" / "a.mp4"))


class Pipe(io.RawIOBase):
    """A sink that cannot seek, like a socket."""

    def __init__(self):
        self.data = b""

    def writable(self):
        return True

    def seekable(self):
        return False

    def write(self, data):
        self.data += bytes(data)
        return len(data)


def test_the_same_encoder_streams_fragments_into_a_pipe():
    spec = dataclasses.replace(
        CONTAINERS[".mp4"],
        options={"movflags": "+frag_every_frame+empty_moov+default_base_moof"},
        video_options={"crf": "20", "preset": "ultrafast", "tune": "zerolatency"},
    )
    pipe = Pipe()
    encoder = ContainerEncoder(pipe, spec, height=32, width=48, fps=Fraction(16))
    sizes = []
    for index in range(6):
        encoder.write(np.full((32, 48, 3), index * 40, np.uint8))
        sizes.append(len(pipe.data))
    encoder.finish()
    assert sizes[0] < sizes[2] < sizes[4]
    with av.open(io.BytesIO(pipe.data)) as container:
        levels = [frame.to_ndarray(format="gray")[16, 24] for frame in container.decode(video=0)]
    assert np.abs(np.array(levels, int) - np.arange(6) * 40).max() <= 20
