"""What all parts of the contract suite share: its error, and requests run to their ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fastvideo_core.card import ModelCard
from fastvideo_core.runtime.hooks import InstanceHooks
from fastvideo_core.runtime.instance import ModelInstance
from fastvideo_core.runtime.loading import load_instance
from fastvideo_core.runtime.prepare import PreparedRequest
from fastvideo_testing.gate import make_plan
from fastvideo_testing.gate.pool import run_alone

__all__ = ["ContractError", "guided", "latents_of", "load", "make_requests", "numbers_of", "relative_error"]


class ContractError(AssertionError):
    """A plugin breaks its contract; the message says which part, and where."""


def load(card: ModelCard, hooks: InstanceHooks | None = None) -> ModelInstance:
    """Load a card on the CPU in float32, where bits can be compared."""
    return load_instance(card, device="cpu", precision="float32", hooks=hooks)


def make_requests(card: ModelCard, parameters: Mapping[str, Any], count: int = 2) -> Sequence[PreparedRequest]:
    """Make requests of a card's default task that differ in prompt, seed, number of steps and guidance."""
    return make_plan(card, parameters=parameters, num_survivors=count, num_cancelled=0, faults=()).requests


def guided(card: ModelCard) -> dict[str, Any]:
    """Return what makes a request guided, on a card that has guidance and does not pin it."""
    task = card.task(card.capabilities.default_task)
    pinned = any("guidance_scale" in loop.pinned for loop in card.loops.values())
    return {"guidance_scale": 3.0} if "guidance_scale" in task.parameters and not pinned else {}


def latents_of(instance: ModelInstance, request: PreparedRequest) -> np.ndarray[Any, Any]:
    """Run a request and return all that it makes in numbers, as one vector.

    Raises:
        ContractError: It fails.
    """
    outcome = run_alone(instance, [request])[request.request.request_id]
    if outcome.error is not None:
        raise ContractError(f"a plain request fails: {outcome.error}") from outcome.error
    return numbers_of(outcome.artifacts)


def numbers_of(artifacts: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    """Return the numbers of all artifacts as one vector."""
    parts = [_numbers(artifacts[name]) for name in sorted(artifacts)]
    return np.concatenate([part.astype(np.float64).ravel() for part in parts])


def relative_error(one: np.ndarray[Any, Any], reference: np.ndarray[Any, Any]) -> float:
    """Return max|one - reference| / max|reference|."""
    return float(np.abs(one - reference).max() / max(float(np.abs(reference).max()), 1e-30))


def _numbers(artifact: Any) -> np.ndarray[Any, Any]:
    for name in ("latents", "frames", "samples", "pixels"):
        value = getattr(artifact, name, None)
        if value is not None:
            return np.asarray(value)
    raise ContractError(f"the suite knows no numbers of a {type(artifact).__name__}")
