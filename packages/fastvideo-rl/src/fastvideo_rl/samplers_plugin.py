"""The plugin of the stochastic samplers, with which likelihood methods roll out. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence

from fastvideo_core.extend import SamplerSpec, hookimpl

HOOK_VERSIONS = ">=1.0,<2"

_KINDS = {
    "sde": "the flow's own stochastic equation, as Flow-GRPO samples it",
    "dance_sde": "the stochastic equation with one noise level for all steps, as DanceGRPO samples it",
    "cps": "steps that keep the coefficients of the flow, as Flow-CPS samples them",
}


@hookimpl
def samplers() -> Sequence[SamplerSpec]:
    """Return the samplers whose steps have a density."""
    return [
        SamplerSpec(
            name=name,
            implementation=f"fastvideo_rl.sde.samplers:{name.upper()}",
            summary=summary,
            parameters="fastvideo_rl.sde.parameters:PARAMETERS",
        )
        for name, summary in _KINDS.items()
    ]
