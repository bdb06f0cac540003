"""New weights for a resident component, in place and whole: checked beforehand, rolled back if anything fails.

In place, since captured graphs and tied parameters know the memory and not the module.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fastvideo_core.errors import CheckpointError, ParameterError

__all__ = ["NewWeights", "digest_version"]


@dataclass(frozen=True, slots=True)
class NewWeights:
    """Weights that are ready to take the place of a component's: checked, and on its device in its number formats.

    Attributes:
        component_id: The component.
        version: What the weights are called from then on.
        tensors: The new values, by name of the module's parameters and buffers.
        before: Copies of the values that they replace.
    """

    component_id: str
    version: str
    tensors: Mapping[str, Tensor]
    before: Mapping[str, Tensor]

    @classmethod
    def stage(cls, component_id: str, module: nn.Module, tensors: Mapping[str, Tensor], version: str) -> NewWeights:
        """Check new weights against a module and bring them where it is; the module stays as it is.

        Args:
            component_id: The component.
            module: Its module.
            tensors: All parameters, and any of the buffers, by name.
            version: What they are called.

        Raises:
            ParameterError: The version is empty.
            CheckpointError: A name is missing or unknown, a shape is another one, or a value is NaN or infinite.
        """
        if not version:
            raise ParameterError("weights need a version", field="version", value=version, allowed="a text")
        own = dict(module.state_dict(keep_vars=True))
        _check_names(component_id, own, tensors)
        staged, before = {}, {}
        with torch.no_grad():
            for name, tensor in tensors.items():
                target = own[name]
                if target.shape != tensor.shape:
                    shapes = f"{tuple(tensor.shape)}; allowed: {tuple(target.shape)}"
                    raise CheckpointError(f"new weights of {component_id}: {name} has shape {shapes}")
                staged[name] = tensor.detach().to(target.device, target.dtype, copy=True)
                if tensor.is_floating_point() and not torch.isfinite(staged[name]).all():
                    raise CheckpointError(f"new weights of {component_id}: {name} has NaN or infinity")
                before[name] = target.detach().clone()
        return cls(component_id, version, staged, before)

    def put(self, module: nn.Module) -> None:
        """Give the module the new values; if that fails half-way, it has its old ones again."""
        own = dict(module.state_dict(keep_vars=True))
        try:
            _copy(own, self.tensors)
        except BaseException:
            _copy(own, self.before)
            raise


def _copy(own: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
    with torch.no_grad():
        for name, tensor in values.items():
            own[name].copy_(tensor)


def _check_names(component_id: str, own: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> None:
    needed = {name for name, tensor in own.items() if isinstance(tensor, nn.Parameter)}
    wrong = {"missing": sorted(needed - set(given)), "unknown": sorted(set(given) - set(own))}
    if any(wrong.values()):
        parts = [f"{word}: {', '.join(names[:5])}" for word, names in wrong.items() if names]
        raise CheckpointError(f"new weights of {component_id} do not fit the module; {'; '.join(parts)}")


def digest_version(tensors: Mapping[str, Tensor]) -> str:
    """Return a version that follows from the values: `m1-` and 24 hexadecimal digits of a SHA-256 over all of them."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return f"m1-{digest.hexdigest()[:24]}"
