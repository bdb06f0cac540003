from __future__ import annotations

import io
import wave
from fractions import Fraction

import numpy as np
import pytest
import torch

from fastvideo_core.errors import NonFiniteError, ParameterError
from fastvideo_core.request.media.sound import AudioTrack, as_samples, encode_wav


def test_wav_holds_the_samples():
    samples = np.array([[0.0, 1.0, -1.0, 0.5, 7.0], [0.25, 0.0, 0.0, 0.0, -7.0]], np.float32)
    with wave.open(io.BytesIO(encode_wav(AudioTrack(samples, 22050)))) as reader:
        assert (reader.getnchannels(), reader.getsampwidth(), reader.getframerate()) == (2, 2, 22050)
        pcm = np.frombuffer(reader.readframes(5), "<i2").reshape(5, 2).T
    assert pcm.tolist() == [[0, 32767, -32767, 16384, 32767], [8192, 0, 0, 0, -32767]]


@pytest.mark.parametrize(
    "samples", [np.zeros(8), np.zeros((1, 8)), torch.zeros(8), torch.zeros(1, 8, dtype=torch.bfloat16)]
)
def test_samples_come_in_many_forms(samples):
    track = as_samples(samples, 16)
    assert track.samples.shape == (1, 8)
    assert track.samples.dtype == np.float32
    assert (track.duration_s, track.layout) == (Fraction(1, 2), "mono")


@pytest.mark.parametrize(
    "samples", [np.zeros((3, 8)), np.zeros((8, 2)), np.zeros((1, 2, 8)), np.zeros((1, 8), np.int16), np.float32(0)]
)
def test_other_arrays_are_no_sound(samples):
    with pytest.raises(ParameterError, match="one or two channels"):
        as_samples(samples, 16)


@pytest.mark.parametrize("sample_rate", [0, -1, 1_000_000])
def test_impossible_rates(sample_rate):
    with pytest.raises(ParameterError, match="not a sample rate"):
        as_samples(np.zeros(8), sample_rate)


def test_non_finite_sound_is_no_silence():
    with pytest.raises(NonFiniteError, match="1 of 8 sound samples"):
        as_samples(np.array([0, 0, np.nan, 0, 0, 0, 0, 0.0]), 16)
