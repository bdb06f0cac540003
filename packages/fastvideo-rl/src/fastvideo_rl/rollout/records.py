"""Behaviour records: how one sample came about, complete enough to train on it and to make it again.

Shape letters: 1 one row; C channels; T, H, W latent frames, rows, columns; F, Y, X pixel frames, rows, columns; 3 RGB.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fastvideo_core.loop.behavior import StepBehavior
from fastvideo_core.loop.samplers import Schedule

__all__ = ["BehaviorRecord", "Group", "RunFacts"]


@dataclass(frozen=True, slots=True)
class RunFacts:
    """Under what a sample was made, as far as it is the engine's.

    Attributes:
        model_id: The card.
        precision: Number format.
        parallel_plan: Parallel plan; "" where there is one device.
        attention_backend: What computed attention.
        interceptors: What altered steps or answered them, by name: the caches that the record assumes.
        is_deterministic: Whether torch was told to use deterministic algorithms only.
        device: The device.
        num_threads: Threads of an operation, which float sums depend on.
    """

    model_id: str
    precision: str
    parallel_plan: str
    attention_backend: str
    interceptors: tuple[str, ...]
    is_deterministic: bool
    device: str
    num_threads: int


@dataclass(slots=True)
class BehaviorRecord:
    """One sample.

    Attributes:
        prompt: What it shows.
        seed: Seed of its noise.
        parameters: All resolved parameters.
        inputs: What the generating loop was given, by port; those of a group are the same objects.
        schedule: Noise levels and timesteps.
        steps: Its steps, as they happened; empty once the method has no use for them.
        latents_1CTHW: The clean sample, float32.
        weights_version: The weights that made all of it.
        facts: What else it was made under.
        frames_FYX3: Decoded frames, bytes; None if no reward asked for them.
        fps: Frames a second.
        rewards: Rewards by name, once they are there.
        reward: Their weighted sum.
    """

    prompt: str
    seed: int
    parameters: Mapping[str, Any]
    inputs: Mapping[str, Any]
    schedule: Schedule
    steps: tuple[StepBehavior, ...]
    latents_1CTHW: torch.Tensor
    weights_version: str
    facts: RunFacts
    frames_FYX3: npt.NDArray[np.uint8] | None = None
    fps: float = 0.0
    rewards: dict[str, float] = field(default_factory=dict)
    reward: float = 0.0

    @property
    def log_probs(self) -> dict[int, float]:
        """Logarithms of the densities of those steps that drew noise, by step index."""
        return {step.step_index: step.log_prob for step in self.steps if step.log_prob is not None}

    @property
    def guidance_scale(self) -> float | None:
        """Weight of the prompt; None where the conditional branch ran alone."""
        scales = {step.guidance_scale for step in self.steps if len(step.branches) > 1}
        return next(iter(scales), None)


@dataclass(slots=True)
class Group:
    """The samples of one prompt.

    Attributes:
        prompt: What they show.
        records: The samples; empty if the group has ended.
        reason: Why it has ended before its time; None if it has not.
    """

    prompt: str
    records: list[BehaviorRecord]
    reason: str | None = None

    def end(self, reason: str) -> None:
        """End it: none of its samples is trained on."""
        self.records, self.reason = [], reason


def versions_of(steps: Iterable[StepBehavior]) -> set[str]:
    """Return the versions of the weights that made some steps."""
    return {step.weights_version for step in steps}
