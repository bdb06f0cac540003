"""What the judge says about a model's clips: counts by attribute, intervals, and a sheet to look at.

Shape letters: N clips, C colour channels, T frames, H rows, W columns.
"""

from __future__ import annotations

import math
import random
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fastvideo_wan.shapes.captions import draw_caption
from fastvideo_wan.shapes.judge import Verdict, judge_clip
from fastvideo_wan.shapes.render import to_uint8_frames
from fastvideo_wan.shapes.scenes import Scene, SceneRanges, draw_scene

ATTRIBUTES = ("colour", "shape", "direction", "all", "background", "whole", "size", "clean")
SHEET_FRAMES = (0, 4, 8, 12, 16)
WILSON_Z = 1.959964  # 95 %, two-sided


@dataclass(frozen=True, slots=True)
class Case:
    """One held-out prompt, what it asks for, and the seed of the noise."""

    prompt: str
    scene: Scene
    seed: int


def held_out_cases(num_cases: int, seed: int) -> list[Case]:
    """Return prompts whose wording was never trained on, with scenes that say what they ask for."""
    rng = random.Random(f"evaluation/{seed}")
    scenes = [draw_scene(rng, SceneRanges()) for _ in range(num_cases)]
    return [Case(draw_caption(s, rng, is_held_out_wanted=True), s, rng.getrandbits(31)) for s in scenes]


def case_noise(cases: Sequence[Case], shape: tuple[int, ...]) -> Tensor:
    """Return each case's noise, as `torch.Generator("cpu").manual_seed(seed)` draws it, stacked."""
    return torch.stack([torch.randn(shape, generator=torch.Generator().manual_seed(case.seed)) for case in cases])


def score(verdict: Verdict, scene: Scene, *, prompt: str) -> dict[str, bool]:
    """Say which of `ATTRIBUTES` are right; a background that the prompt does not name is always right."""
    right = {
        "colour": verdict.colour == scene.colour,
        "shape": verdict.shape == scene.shape,
        "direction": verdict.direction == scene.motion,
        "whole": verdict.is_whole,
        "size": verdict.is_size_constant,
        "clean": verdict.is_clean,
    }
    names_background = any(word in prompt.lower() for word in ("black", "grey", "gray", "white", "brown"))
    right["background"] = verdict.background == scene.background or not names_background
    right["all"] = right["colour"] and right["shape"] and right["direction"]
    return right


def judge_clips(clips_NCTHW: Tensor, cases: Sequence[Case]) -> list[dict[str, bool]]:
    """Judge clips with values -1 to 1 against the cases that they were made for."""
    frames = [to_uint8_frames(clip / 2 + 0.5) for clip in clips_NCTHW]
    return [score(judge_clip(f), case.scene, prompt=case.prompt) for f, case in zip(frames, cases, strict=True)]


def wilson_interval(num_right: int, num_cases: int) -> tuple[float, float]:
    """Return the 95 % interval of a proportion.

    Source: Wilson 1927, "Probable inference, the law of succession, and statistical inference".
    """
    part, z2 = num_right / num_cases, WILSON_Z**2
    middle = (part + z2 / (2 * num_cases)) / (1 + z2 / num_cases)
    half = WILSON_Z / (1 + z2 / num_cases) * math.sqrt(part * (1 - part) / num_cases + z2 / (4 * num_cases**2))
    return max(0.0, middle - half), min(1.0, middle + half)


def summarise(scores: Sequence[dict[str, bool]]) -> dict[str, dict[str, float | int | list[float]]]:
    """Return count, part and interval of each attribute."""
    table: dict[str, dict[str, float | int | list[float]]] = {}
    for name in ATTRIBUTES:
        num_right = sum(s[name] for s in scores)
        interval = [round(bound, 4) for bound in wilson_interval(num_right, len(scores))]
        table[name] = {"right": num_right, "n": len(scores), "part": num_right / len(scores), "interval_95": interval}
    return table


def write_sheet(path: Path, clips_NCTHW: Tensor, *, num_columns: int = 3) -> None:
    """Write clips as a PNG: each a strip of five frames, three strips a row; values -1 to 1."""
    frames = [t for t in SHEET_FRAMES if t < clips_NCTHW.shape[2]]
    strips = [torch.cat([clip[:, t] for t in frames], dim=2) for clip in clips_NCTHW.cpu()]
    strips = [torch.nn.functional.pad(strip, (0, 6, 0, 2), value=-1) for strip in strips]
    strips += [torch.full_like(strips[0], -1)] * (-len(strips) % num_columns)
    rows = [torch.cat(strips[i : i + num_columns], dim=2) for i in range(0, len(strips), num_columns)]
    write_png(path, ((torch.cat(rows, dim=1) / 2 + 0.5).clamp(0, 1) * 255).round().to(torch.uint8))


def write_png(path: Path, image_CHW: Tensor) -> None:
    """Write an RGB picture of bytes.

    Source: PNG specification, third edition, sections 5 and 11.
    """
    _, height, width = image_CHW.shape
    rows_HX = image_CHW.permute(1, 2, 0).reshape(height, -1)
    filtered = torch.cat([torch.zeros(height, 1, dtype=torch.uint8), rows_HX], dim=1)  # filter type 0 before each row
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(filtered.numpy().tobytes(), 6)), (b"IEND", b"")]
    chunks = [struct.pack(">I", len(d)) + n + d + struct.pack(">I", zlib.crc32(n + d)) for n, d in parts]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunks))
