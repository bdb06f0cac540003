"""The plugin: ComfyUI's samplers with its schedules, for cards that let requests choose. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence

from fastvideo_comfy.names import SAMPLERS, sampler_name
from fastvideo_comfy.sigmas import SCHEDULERS
from fastvideo_core.extend import hookimpl
from fastvideo_core.extend.base import SamplerSpec

HOOK_VERSIONS = ">=1.0,<2"


@hookimpl
def samplers() -> Sequence[SamplerSpec]:
    """Return a sampler for each of ComfyUI's samplers with each of its schedules."""
    found: dict[str, SamplerSpec] = {}
    for sampler, summary in SAMPLERS.items():
        for scheduler in SCHEDULERS:
            for is_custom in (False, True):
                name = sampler_name(sampler, scheduler, is_custom=is_custom)
                ref = f"fastvideo_comfy.samplers:{name.replace('.', '__').replace('-', '_of_').upper()}"
                found[name] = SamplerSpec(name, ref, f"{summary}; {scheduler} schedule")
    return tuple(found.values())
