"""Optimizers of the trained roles, with accumulation, clipping, and a halt where a run diverges."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from fastvideo_rl.errors import DivergedError
from fastvideo_rl.train.config import OptimizerConfig
from fastvideo_rl.train.roles import Role

__all__ = ["RoleOptimizer", "shard_like"]


class RoleOptimizer:
    """AdamW over the trained parameters of a role.

    Args:
        name: The role.
        role: Its weights.
        config: Settings.
    """

    def __init__(self, name: str, role: Role, config: OptimizerConfig) -> None:
        self.name = name
        self._config = config
        self._rate = config.learning_rate if name == "student" else config.critic_learning_rate or config.learning_rate
        self.parameters: dict[str, nn.Parameter] = role.named_parameters()
        self._adam = torch.optim.AdamW(
            self.parameters.values(),
            lr=self._rate,
            betas=config.betas,
            eps=config.eps,
            weight_decay=config.weight_decay,
        )

    def update(self, step: int, last_checkpoint: str) -> float:
        """Make one update with the gradients that are there, and drop them; returns their norm before clipping.

        Raises:
            DivergedError: The norm is NaN, infinite or far too large; the weights stay as they are.
        """
        norm = _norm(nn.utils.clip_grad_norm_(self.parameters.values(), self._config.max_grad_norm))
        if not math.isfinite(norm) or norm > self._config.diverged_norm:
            self._adam.zero_grad()
            raise DivergedError(
                f"step {step}: the gradient of the {self.name} has norm {norm:.3g}; allowed: up to "
                f"{self._config.diverged_norm:g}; the last good checkpoint is {last_checkpoint}"
            )
        warm = self._config.warmup_steps
        for group in self._adam.param_groups:
            group["lr"] = self._rate * (min(1.0, (step + 1) / warm) if warm else 1.0)
        self._adam.step()
        self._adam.zero_grad()
        return norm

    def tensors(self) -> dict[str, Tensor]:
        """Return the moments and counts, by parameter and name; sharded ones as they are."""
        found = {}
        for name, parameter in self.parameters.items():
            for key, value in self._adam.state.get(parameter, {}).items():
                found[f"{name}/{key}"] = value
        return found

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over what `tensors` gave, gathered."""
        for name, parameter in self.parameters.items():
            keys = [key for key in tensors if key.rpartition("/")[0] == name]
            if keys:
                self._adam.state[parameter] = {
                    key.rpartition("/")[2]: shard_like(tensors[key], parameter) for key in keys
                }


def shard_like(whole: Tensor, like: Tensor) -> Tensor:
    """Return a gathered tensor as another one is sharded; a number, or without shards, a copy of it."""
    mesh = getattr(like, "device_mesh", None)
    if mesh is None or whole.shape != like.shape:
        return whole.clone()
    from torch.distributed.tensor import distribute_tensor

    placements = like.placements  # type: ignore[attr-defined]  # a DTensor has some
    return distribute_tensor(whole, mesh, placements)


def _norm(norm: Tensor) -> float:
    whole = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
    return float(whole)
