"""The samplers by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any

from fastvideo_core.errors import ParameterError, PluginError
from fastvideo_core.loop.samplers.base import Sampler
from fastvideo_core.loop.samplers.dpmpp_2m import DPMPP_2M
from fastvideo_core.loop.samplers.flow_euler import FLOW_EULER
from fastvideo_core.loop.samplers.lcm import LCM
from fastvideo_core.loop.samplers.unipc import UNIPC

__all__ = ["SAMPLERS", "extend_samplers", "get_sampler", "samplers_of"]

SAMPLERS: Mapping[str, Sampler] = MappingProxyType({s.name: s for s in (UNIPC, FLOW_EULER, DPMPP_2M, LCM)})
"""The samplers of core."""


def get_sampler(name: str, samplers: Mapping[str, Sampler] = SAMPLERS) -> Sampler:
    """Return a sampler by name.

    Raises:
        ParameterError: There is none of that name; names the nearest one.
    """
    if name in samplers:
        return samplers[name]
    near = get_close_matches(name, samplers, n=1, cutoff=0.0)
    raise ParameterError(
        "not a known sampler",
        field="sampler",
        value=name,
        allowed=", ".join(sorted(samplers)),
        nearest=next(iter(near)),
    )


def samplers_of(model: Any) -> Mapping[str, Sampler]:
    """Return the samplers that a model, or a loop's view of it, has: core's, and those of plugins that are on."""
    samplers: Mapping[str, Sampler] = getattr(model, "samplers", SAMPLERS)
    return samplers


def extend_samplers(extra: Iterable[Sampler], samplers: Mapping[str, Sampler] = SAMPLERS) -> Mapping[str, Sampler]:
    """Return a registry with more samplers, as a plugin's hook gives them; `samplers` itself stays as it is.

    Raises:
        PluginError: A name is taken.
    """
    extended = dict(samplers)
    for sampler in extra:
        if sampler.name in extended:
            raise PluginError(f"a sampler named {sampler.name!r} exists already; names in use: {', '.join(extended)}")
        extended[sampler.name] = sampler
    return MappingProxyType(extended)
