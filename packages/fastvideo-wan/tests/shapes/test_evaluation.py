"""Intervals, scores and sheets of evaluations."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import pytest
import torch

from fastvideo_wan.shapes.captions import is_held_out
from fastvideo_wan.shapes.evaluation import (
    ATTRIBUTES,
    case_noise,
    held_out_cases,
    judge_clips,
    summarise,
    wilson_interval,
)
from fastvideo_wan.shapes.render import render_clip, to_uint8_frames
from fastvideo_wan.shapes.sheets import encode_png, from_frames, write_sheet


def read_png(path: Path) -> tuple[int, int, bytes]:
    data = path.read_bytes()[8:]
    chunks = {}
    while data:
        size, name = struct.unpack(">I4s", data[:8])
        chunks[name] = data[8 : 8 + size]
        assert struct.unpack(">I", data[8 + size : 12 + size])[0] == zlib.crc32(data[4 : 8 + size])
        data = data[12 + size :]
    width, height = struct.unpack(">II", chunks[b"IHDR"][:8])
    return width, height, zlib.decompress(chunks[b"IDAT"])


@pytest.mark.parametrize(
    ("num_right", "num_cases", "low", "high"),
    # From the closed form, computed by hand with z = 1.96.
    [(90, 100, 0.8256, 0.9448), (100, 100, 0.9630, 1.0), (0, 10, 0.0, 0.2775)],
)
def test_wilson_intervals(num_right: int, num_cases: int, low: float, high: float) -> None:
    assert wilson_interval(num_right, num_cases) == pytest.approx((low, high), abs=1e-3)


def test_drawn_clips_score_fully_and_others_do_not() -> None:
    cases = held_out_cases(6, seed=1)
    clips = torch.stack([render_clip(case.scene, num_frames=5) for case in cases]) * 2 - 1
    table = summarise(judge_clips(clips, cases))
    assert all(table[name]["part"] == 1 for name in ATTRIBUTES)
    swapped = summarise(judge_clips(clips.roll(1, 0), cases))
    assert swapped["all"]["right"] == 0


@pytest.mark.parametrize(("num_frames", "height", "width"), [(1, 48, 96), (33, 96, 64), (81, 48, 48)])
def test_drawn_clips_score_fully_at_other_lengths_and_sizes(num_frames: int, height: int, width: int) -> None:
    cases = held_out_cases(6, seed=3)
    scenes = [case.scene for case in cases]
    clips = torch.stack([render_clip(s, num_frames=num_frames, height=height, width=width) for s in scenes]) * 2 - 1
    table = summarise(judge_clips(clips, cases))
    assert all(table[name]["part"] == 1 for name in ATTRIBUTES)


def test_cases_are_held_out_and_their_noise_is_their_seeds() -> None:
    cases = held_out_cases(5, seed=2)
    assert all(is_held_out(case.prompt) for case in cases)
    assert cases == held_out_cases(5, seed=2)
    noise = case_noise(cases, (2, 3))
    assert torch.equal(noise[3], torch.randn(2, 3, generator=torch.Generator().manual_seed(cases[3].seed)))


def test_a_picture_holds_its_bytes(tmp_path: Path) -> None:
    image = torch.arange(2 * 5 * 3, dtype=torch.uint8).view(3, 2, 5)
    (tmp_path / "a.png").write_bytes(encode_png(image))
    width, height, rows = read_png(tmp_path / "a.png")
    assert (width, height) == (5, 2)
    assert rows == b"".join(b"\0" + image[:, row].T.contiguous().numpy().tobytes() for row in range(2))


def test_a_sheet_has_a_strip_for_every_clip(tmp_path: Path) -> None:
    write_sheet(tmp_path / "sheet.png", torch.zeros(4, 3, 17, 16, 16))
    width, height, _ = read_png(tmp_path / "sheet.png")
    assert (width, height) == (3 * (5 * 16 + 6), 2 * (16 + 2))


def test_a_sheet_of_pictures_has_one_frame_a_clip(tmp_path: Path) -> None:
    write_sheet(tmp_path / "deep" / "sheet.png", torch.zeros(3, 3, 1, 16, 32))
    assert read_png(tmp_path / "deep" / "sheet.png")[:2] == (3 * (32 + 6), 16 + 2)


def test_bytes_come_back_from_values() -> None:
    frames = torch.arange(2 * 3 * 4 * 3, dtype=torch.uint8).view(2, 3, 4, 3)
    assert torch.equal(to_uint8_frames(from_frames(frames.numpy()) / 2 + 0.5), frames)
