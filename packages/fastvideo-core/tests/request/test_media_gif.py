from __future__ import annotations

import io
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from fastvideo_core.request.media.gif import GifEncoder, gif_delay


def encode(frames, fps=Fraction(10), comment=""):
    buffer = io.BytesIO()
    encoder = GifEncoder(buffer, height=frames.shape[1], width=frames.shape[2], fps=fps, comment=comment)
    for frame in frames:
        encoder.write(frame)
    encoder.finish()
    return buffer


def decode(buffer):
    """Return frames and delays in ms, by Pillow's reader."""
    frames, delays = [], []
    with Image.open(buffer) as image:
        for index in range(image.n_frames):
            image.seek(index)
            frames.append(np.array(image.convert("RGB")))
            delays.append(image.info["duration"])
        assert image.info["loop"] == 0
    return np.stack(frames), delays


def test_few_colours_are_exact():
    generator = np.random.default_rng(0)
    palette = generator.integers(0, 256, (256, 3), dtype=np.uint8)
    frames = palette[generator.integers(0, 256, (5, 20, 30))]
    assert np.array_equal(decode(encode(frames))[0], frames)


def test_many_colours_are_near():
    rows, columns = np.mgrid[0:64, 0:96]
    frame = np.stack([columns * 255 // 95, rows * 255 // 63, np.full_like(rows, 128)], axis=2).astype(np.uint8)
    shown = decode(encode(frame[None]))[0][0]
    error = np.abs(shown.astype(int) - frame)
    # 6,144 colours in 256 boxes of equal size leave 24 each, about 5x5 of them; 2.7 levels apart, 4 wide and high.
    assert error.mean() < 4
    assert error.max() <= 24


def test_what_stands_still_keeps_its_colours_and_frames_stay_apart():
    noise = np.random.default_rng(1).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    frames = np.stack([noise] * 6)
    for index in range(1, 4):
        frames[index, 4:8, 4 * index : 4 * index + 4] = (255, 0, 0)
    shown, delays = decode(encode(frames))
    assert len(shown) == len(delays) == 6
    still = np.ones((32, 32), bool)
    still[4:8, 4:16] = False
    assert all(np.array_equal(frame[still], shown[0][still]) for frame in shown)
    assert (shown[2, 4:8, 8:12] == (255, 0, 0)).all()


@pytest.mark.parametrize("shape", [(1, 1), (1, 300), (300, 1), (255, 257)])
def test_sizes(shape):
    frames = np.random.default_rng(2).integers(0, 2, (2, *shape, 1), dtype=np.uint8) * np.uint8([[[[255, 0, 128]]]])
    assert np.array_equal(decode(encode(frames))[0], frames)


def test_delays_do_not_drift():
    frames = np.arange(32, dtype=np.uint8)[:, None, None, None].repeat(4, 1).repeat(4, 2).repeat(3, 3)
    delays = decode(encode(frames, Fraction(16)))[1]
    assert set(delays) == {60, 70}
    assert sum(delays) == 2000


@given(st.fractions(min_value="1/100", max_value=50), st.integers(1, 200))
def test_every_rate_ends_on_time(fps, num_frames):
    delays = [gif_delay(index, fps) for index in range(num_frames)]
    assert abs(sum(delays) - num_frames * 100 / fps) <= Fraction(1, 2)
    # Below 2 players fall back to 10.
    assert min(delays) >= 2 - (100 / fps < 2)


def test_long_comments_come_back_whole():
    text = "0123456789" * 100
    with Image.open(encode(np.zeros((1, 4, 4, 3), np.uint8), comment=text)) as image:
        assert image.info["comment"] == text.encode()
