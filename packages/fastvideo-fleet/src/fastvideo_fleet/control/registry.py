"""The policies by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches

from fastvideo_fleet.control.baselines import LoadAwareGreedy, MemoryAwareGreedy, RoundRobin
from fastvideo_fleet.control.fastvideo import FastVideo, FastVideoSettings
from fastvideo_fleet.control.turboserve import TurboServe, TurboServeSettings
from fastvideo_fleet.control.view import Policy
from fastvideo_fleet.errors import FleetError

__all__ = ["DEFAULT_POLICY", "POLICIES", "PolicyKind", "make_policy"]

DEFAULT_POLICY = "fastvideo"


@dataclass(frozen=True, slots=True)
class PolicyKind:
    """A policy that can be asked for by name.

    Attributes:
        summary: One line for help texts.
        make: Function of the latency weight and the number of GPUs at the start.
    """

    summary: str
    make: Callable[[float, int | None], Policy]


def _fastvideo(*, can_migrate: bool = True, can_scale: bool = True) -> Callable[[float, int | None], Policy]:
    return lambda weight, num_gpus: FastVideo(
        FastVideoSettings(latency_weight=weight, num_gpus=num_gpus, can_migrate=can_migrate, can_scale=can_scale)
    )


def _turboserve(*, can_migrate: bool = True, can_scale: bool = True) -> Callable[[float, int | None], Policy]:
    return lambda weight, num_gpus: TurboServe(
        TurboServeSettings(latency_weight=weight, num_gpus=num_gpus, can_migrate=can_migrate, can_scale=can_scale)
    )


POLICIES = {
    "fastvideo": PolicyKind("this project's: forecasts, batch boundaries, exact placement", _fastvideo()),
    "fastvideo-no-migration": PolicyKind("the same without migration", _fastvideo(can_migrate=False)),
    "fastvideo-no-autoscaling": PolicyKind("the same with a fixed fleet", _fastvideo(can_scale=False)),
    "turboserve": PolicyKind("the paper's: greedy min-max, hysteresis, proportional target", _turboserve()),
    "turboserve-no-migration": PolicyKind("the paper's without migration", _turboserve(can_migrate=False)),
    "turboserve-no-autoscaling": PolicyKind("the paper's with a fixed fleet", _turboserve(can_scale=False)),
    "round-robin": PolicyKind("workers in turn, a fixed fleet", lambda _, num_gpus: RoundRobin(num_gpus)),
    "load-aware": PolicyKind("the least loaded worker, a fixed fleet", lambda _, num_gpus: LoadAwareGreedy(num_gpus)),
    "memory-aware": PolicyKind(
        "the worker with the fewest bytes of states, a fixed fleet", lambda _, num_gpus: MemoryAwareGreedy(num_gpus)
    ),
}


def make_policy(name: str, *, latency_weight: float = 1.0, num_gpus: int | None = None) -> Policy:
    """Return a new policy, for one run.

    Args:
        name: One of `POLICIES`.
        latency_weight: What latency is worth against cost; fixed fleets have no use for it.
        num_gpus: Workers of each class at the start, and for good where the fleet is fixed; None is the policy's own.

    Raises:
        FleetError: No such policy, or a number out of range.
    """
    kind = POLICIES.get(name)
    if kind is None:
        near = get_close_matches(name, POLICIES, n=1, cutoff=0.3)
        raise FleetError(
            "no such policy", field="policy", value=name, allowed=", ".join(POLICIES), nearest=next(iter(near), None)
        )
    return kind.make(latency_weight, num_gpus)
