"""Names of the samplers that this package brings; free of torch."""

from __future__ import annotations

from collections.abc import Mapping

from fastvideo_comfy.sigmas import SCHEDULERS

__all__ = ["DROPS", "MEMORYLESS", "PREFIX", "SAMPLERS", "sampler_name", "split_sampler_name"]

PREFIX = "comfy"

SAMPLERS: Mapping[str, str] = {
    "euler": "Euler",
    "ddim": "Euler, as ComfyUI runs it",
    "lcm": "consistency sampling",
    "dpmpp_2m": "DPM-Solver++ 2M in -ln sigma",
    "res_multistep": "RES, second order",
    "uni_pc": "UniPC bh1 in -ln sigma, up to third order",
    "uni_pc_bh2": "UniPC bh2 in -ln sigma, up to third order",
}
"""Samplers by ComfyUI's names, in words."""

DROPS = ("uni_pc", "uni_pc_bh2")
"""Samplers for which KSampler lays out a step more and leaves the level before 0 out; custom samplers do not."""

MEMORYLESS = ("euler", "ddim", "lcm")
"""Samplers that remember nothing of earlier steps, so that a split of the schedule changes nothing."""

_CUSTOM = "-custom"


def sampler_name(sampler: str, scheduler: str, *, is_custom: bool = False) -> str:
    """Return the name of a sampler with a schedule, for instance `comfy.uni_pc.simple`.

    Args:
        sampler: Key of `SAMPLERS`.
        scheduler: Key of `SCHEDULERS`.
        is_custom: Whether it is run by SamplerCustom or SamplerCustomAdvanced.
    """
    kind = f"{sampler}{_CUSTOM}" if is_custom and sampler in DROPS else sampler
    return f"{PREFIX}.{kind}.{scheduler}"


def split_sampler_name(name: str) -> tuple[str, str, bool]:
    """Return sampler, scheduler, and whether the level before 0 is left out, of a name that this package made."""
    _, kind, scheduler = name.split(".")
    sampler = kind.removesuffix(_CUSTOM)
    assert sampler in SAMPLERS, name
    assert scheduler in SCHEDULERS, name
    return sampler, scheduler, sampler in DROPS and not kind.endswith(_CUSTOM)
