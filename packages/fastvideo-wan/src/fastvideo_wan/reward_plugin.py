"""The plugin of the judge of coloured shapes as rewards. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence

from fastvideo_core.extend import RewardSpec, hookimpl

HOOK_VERSIONS = ">=1.0,<2"

_HERE = "fastvideo_wan.shapes.reward"


@hookimpl
def rewards() -> Sequence[RewardSpec]:
    """Return what the judge can say of a sample in one number."""
    return [
        RewardSpec(
            name="shapes",
            implementation=f"{_HERE}:PromptReward",
            summary="share of colour, shape and direction that are as the prompt says, by image processing",
            options=f"{_HERE}:PromptOptions",
        ),
        RewardSpec(
            name="shapes-speed",
            implementation=f"{_HERE}:SpeedReward",
            summary="how far the object moves for one that is to move, and that it does not for one that is to stand",
            options=f"{_HERE}:SpeedOptions",
        ),
        RewardSpec(
            name="shapes-centre",
            implementation=f"{_HERE}:CentreReward",
            summary="how near the middle of the object's way is to the middle of the frame",
        ),
    ]
