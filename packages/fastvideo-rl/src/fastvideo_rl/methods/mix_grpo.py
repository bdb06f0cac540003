"""MixGRPO: a window of steps is stochastic and trained on, the others follow the flow.

The window's start is drawn from seed and step, or goes through the schedule.

Source: Li et al. 2025, arXiv:2507.21802.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from fastvideo_rl.methods.grpo import FlowGRPO, GRPOOptions

__all__ = ["MixGRPO", "MixGRPOOptions"]


class MixGRPOOptions(GRPOOptions):
    """Options, besides those of Flow-GRPO.

    Attributes:
        window: How many steps are stochastic.
        num_starts: From how many steps, from the first on, the window may start.
        order: Whether its start is drawn, or moves on by `stride` each `shift_every` outer steps.
        shift_every: See `order`.
        stride: See `order`.
    """

    window: int = Field(default=2, ge=1)
    num_starts: int = Field(default=4, ge=1)
    order: Literal["random", "progressive"] = "progressive"
    shift_every: int = Field(default=25, ge=1)
    stride: int = Field(default=1, ge=1)


class MixGRPO(FlowGRPO):
    """Policy gradients on a window of steps."""

    def __init__(self, options: MixGRPOOptions) -> None:
        super().__init__(options)
        self._window = options

    def rollout_parameters(self, step: int, seed: int, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the stochastic sampler with this step's window."""
        window = {"sde_first_step": self.first_of(step, seed), "sde_num_steps": self._window.window}
        return {**super().rollout_parameters(step, seed, given), **window}

    def first_of(self, step: int, seed: int) -> int:
        """Return the first step of the window in an outer step."""
        options = self._window
        if options.order == "random":
            return random.Random(seed + step).randrange(options.num_starts)
        return (step // options.shift_every * options.stride) % options.num_starts
