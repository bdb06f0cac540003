"""A stage's checkpoint: one safetensors file with weights, averaged weights, optimiser state and the step."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from fastvideo_wan.shapes.train.muon import MuonAdamW


class Average:
    """Exponential average of a module's weights, with a shorter memory at the start.

    Args:
        module: Whose weights to follow.
        decay: Decay a step once the start is over.
    """

    def __init__(self, module: nn.Module, decay: float) -> None:
        self.decay = decay
        self.weights = {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}

    @torch.no_grad()
    def update(self, module: nn.Module, step: int) -> None:
        """Move towards the module's weights after `step` (from 0)."""
        decay = min(self.decay, (1 + step) / (10 + step))
        for name, tensor in module.state_dict().items():
            self.weights[name].lerp_(tensor, 1 - decay)


def save_checkpoint(path: Path, step: int, module: nn.Module, average: Average, optimizer: MuonAdamW) -> None:
    """Write all that `load_checkpoint` needs, under another name first."""
    tensors = {f"weights.{name}": tensor for name, tensor in module.state_dict().items()}
    tensors |= {f"average.{name}": tensor for name, tensor in average.weights.items()}
    tensors |= {f"optimizer.{name}": tensor for name, tensor in _optimizer_tensors(optimizer).items()}
    partial = path.with_suffix(".partial")
    path.parent.mkdir(parents=True, exist_ok=True)
    # Copies, because tied embeddings appear under two names and the format refuses shared memory.
    save_file({name: tensor.detach().clone() for name, tensor in tensors.items()}, partial, {"step": str(step)})
    partial.replace(path)


def load_checkpoint(path: Path, module: nn.Module, average: Average, optimizer: MuonAdamW) -> int:
    """Restore what `save_checkpoint` wrote; returns the number of steps done."""
    with safe_open(path, framework="pt") as file:
        step = int(file.metadata()["step"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}
    module.load_state_dict(_part(tensors, "weights."))
    average.weights = _part(tensors, "average.")
    _restore_optimizer(optimizer, _part(tensors, "optimizer."))
    return step


def load_average(path: Path) -> dict[str, Tensor]:
    """Return the averaged weights of a checkpoint."""
    with safe_open(path, framework="pt") as file:
        names = [name for name in file.keys() if name.startswith("average.")]
        return {name.removeprefix("average."): file.get_tensor(name) for name in names}


def _part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _parameters(optimizer: MuonAdamW) -> list[nn.Parameter]:
    return [param for group in optimizer.param_groups for param in group["params"]]


def _optimizer_tensors(optimizer: MuonAdamW) -> dict[str, Tensor]:
    return {
        f"{index}.{key}": torch.as_tensor(value)
        for index, param in enumerate(_parameters(optimizer))
        for key, value in optimizer.state.get(param, {}).items()
    }


def _restore_optimizer(optimizer: MuonAdamW, tensors: dict[str, Tensor]) -> None:
    params = _parameters(optimizer)
    for name, tensor in tensors.items():
        index, key = name.split(".")
        optimizer.state[params[int(index)]][key] = int(tensor) if key == "num_steps" else tensor
