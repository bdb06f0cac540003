"""Low-rank adapters through peft: put into a module, and merged into weights of the module's own layout."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from fastvideo_core.errors import ConfigError

__all__ = ["add_lora", "merged_weights"]

_ADAPTER = "default"


def add_lora(module: nn.Module, *, rank: int, alpha: float, targets: tuple[str, ...], seed: int) -> None:
    """Put adapters beside a module's linear layers and let only them be trained; the module computes as before.

    Args:
        module: The module, changed in place.
        rank: Rank of the adapters.
        alpha: Their scale, times `rank`.
        targets: Ends of the names of the layers.
        seed: Seed of their first values.

    Raises:
        ConfigError: peft is not installed, or no layer has such a name.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise ConfigError(
            "adapters need peft, which is not installed", field="weights.kind", value="lora",
            allowed="full, or `pip install fastvideo-rl[lora]`",
        ) from error  # fmt: skip
    linear = [name for name, one in module.named_modules() if isinstance(one, nn.Linear)]
    wrong = [target for target in targets if not any(name.endswith(f".{target}") for name in linear)]
    if wrong:
        known = sorted({name.split(".", 2)[-1] for name in linear if name.startswith("blocks.")})
        raise ConfigError("no such layer", field="weights.targets", value=wrong[0], allowed=", ".join(known))
    module.requires_grad_(False)
    inject_adapter_in_model(LoraConfig(r=rank, lora_alpha=alpha, target_modules=list(targets)), module, _ADAPTER)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for layer in _layers(module).values():
            first = layer.lora_A[_ADAPTER].weight
            bound = 1 / math.sqrt(first.shape[1])
            first.copy_(torch.empty(first.shape).uniform_(-bound, bound, generator=generator))


def merged_weights(module: nn.Module) -> dict[str, Tensor]:
    """Return a module's weights in its own layout, adapters merged; new tensors where there are some."""
    layers = _layers(module)
    if not layers:
        return {name: tensor.detach() for name, tensor in module.state_dict().items()}
    merged: dict[str, Tensor] = {}
    for name, tensor in module.state_dict().items():
        if ".lora_" in name:
            continue
        owner, _, leaf = name.rpartition(".")
        place = owner.removesuffix(".base_layer")
        value = tensor.detach()
        if place in layers and leaf == "weight":
            value = value + layers[place].get_delta_weight(_ADAPTER).detach()
        merged[f"{place}.{leaf}" if place else leaf] = value
    return merged


def _layers(module: nn.Module) -> dict[str, Any]:
    return {name: one for name, one in module.named_modules() if hasattr(one, "lora_A")}
