"""The plugin of the rewards that need nothing but a local folder. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence

from fastvideo_core.extend import RewardSpec, hookimpl

HOOK_VERSIONS = ">=1.0,<2"

_CLIP = "fastvideo_rl.rewards.clip"


@hookimpl
def rewards() -> Sequence[RewardSpec]:
    """Return CLIP score and PickScore."""
    return [
        RewardSpec(
            name="clip",
            implementation=f"{_CLIP}:ClipScore",
            summary="cosine of the CLIP embeddings of prompt and frames",
            options=f"{_CLIP}:ClipOptions",
            minimum=-1.0,
        ),
        RewardSpec(
            name="pickscore",
            implementation=f"{_CLIP}:PickScore",
            summary="PickScore of prompt and frames, about 20 to 26 for the published model",
            options=f"{_CLIP}:ClipOptions",
            minimum=None,
            maximum=None,
        ),
    ]
