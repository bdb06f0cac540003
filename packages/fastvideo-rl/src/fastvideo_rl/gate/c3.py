"""C3: whether two ways to make samples draw from one distribution, by the energy distance and a permutation test.

The two sets have seeds of their own, so that nothing but the distributions is compared. The statistic is

    E = 2 mean|x - y| - mean|x - x'| - mean|y - y'|

over Euclidean distances of whole samples. Under equal distributions it does not matter which sample is in which set:
the share of permutations with a statistic at least as large is the p-value.

Source: Székely and Rizzo 2013, "Energy statistics: a class of statistics based on distances".

Shape letters: N samples; D numbers of a sample.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fastvideo_core.errors import ParameterError, ParityError
from fastvideo_rl.rollout.roller import GroupPlan, Roller

__all__ = ["DistributionReport", "check_profiles", "compare_distributions", "energy_distance"]


@dataclass(frozen=True, slots=True)
class DistributionReport:
    """What was found.

    Attributes:
        statistic: The energy distance.
        p_value: Share of permutations, the given split included, with one at least as large.
        threshold: p-value below which the distributions count as different.
        num_samples: Samples of each set.
        num_permutations: Permutations that were tried.
    """

    statistic: float
    p_value: float
    threshold: float
    num_samples: tuple[int, int]
    num_permutations: int

    @property
    def is_same(self) -> bool:
        """Whether nothing speaks against one distribution."""
        return self.p_value >= self.threshold

    def __str__(self) -> str:
        verdict = "one distribution" if self.is_same else "different distributions"
        return (
            f"C3: {verdict}: energy distance {self.statistic:.4g}, p = {self.p_value:.3f} (threshold "
            f"{self.threshold:g}), {self.num_samples[0]} and {self.num_samples[1]} samples, "
            f"{self.num_permutations} permutations"
        )


def check_profiles(
    roller: Roller, prompt: str, parameters: Mapping[str, Any], *, num_samples: int, threshold: float = 0.01
) -> DistributionReport:
    """Compare the rollouts of one batch with requests that are served one after the other.

    Args:
        roller: Rolls out; the same engine serves.
        prompt: What all samples show.
        parameters: Of all of them, but for the seeds, of which each sample has its own.
        num_samples: Samples of each set.
        threshold: See `compare_distributions`.

    Raises:
        ParityError: A sample could not be made.
    """
    (group,) = roller.run([GroupPlan(prompt, tuple(range(num_samples)), parameters)])
    if group.reason is not None:
        raise ParityError(f"the rollouts of the check failed: {group.reason}")
    served = []
    for seed in range(num_samples, 2 * num_samples):
        request = roller.engine.make_request(
            prompt, task=roller.program.task, outputs=("latents",), parameters={**parameters, "seed": seed}
        )
        served.append(torch.from_numpy(roller.engine.submit(request).result().latents.latents).unsqueeze(0))
    return compare_distributions([one.latents_1CTHW for one in group.records], served, threshold=threshold)


def energy_distance(distances_NN: Tensor, is_first_N: Tensor) -> float:
    """Return the statistic of a split of samples whose distances from each other are known."""
    first, second = is_first_N.nonzero().flatten(), (~is_first_N).nonzero().flatten()
    between = distances_NN[first][:, second].mean()
    within = distances_NN[first][:, first].mean() + distances_NN[second][:, second].mean()
    return float(2 * between - within)


def compare_distributions(
    one: Sequence[Tensor],
    other: Sequence[Tensor],
    *,
    threshold: float = 0.01,
    num_permutations: int = 199,
    seed: int = 0,
) -> DistributionReport:
    """Test whether two sets of samples are of one distribution.

    Args:
        one: Samples of one shape, at least two.
        other: The same of the other set.
        threshold: p-value below which they count as different; `1 / (num_permutations + 1)` is the least there is.
        num_permutations: How many are tried.
        seed: Seed of the permutations.

    Raises:
        ParameterError: Too few samples, or a threshold that no p-value could reach.
    """
    if min(len(one), len(other)) < 2:
        raise ParameterError("too few samples", field="samples", value=(len(one), len(other)), allowed="2 or more each")
    if threshold < 1 / (num_permutations + 1):
        raise ParameterError(
            "no p-value is that small",
            field="threshold",
            value=threshold,
            allowed=f"{1 / (num_permutations + 1)} or more",
        )
    rows_ND = torch.stack([sample.detach().cpu().double().flatten() for sample in (*one, *other)])
    distances_NN = torch.cdist(rows_ND, rows_ND)
    is_first_N = torch.arange(len(rows_ND)) < len(one)
    found = energy_distance(distances_NN, is_first_N)
    generator = torch.Generator().manual_seed(seed)
    tried = [
        energy_distance(distances_NN, is_first_N[torch.randperm(len(rows_ND), generator=generator)])
        for _ in range(num_permutations)
    ]
    at_least = 1 + sum(one >= found - 1e-12 for one in tried)
    counts = (len(one), len(other))
    return DistributionReport(found, at_least / (num_permutations + 1), threshold, counts, num_permutations)
