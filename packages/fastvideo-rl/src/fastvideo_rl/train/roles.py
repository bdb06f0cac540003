"""Roles: the same loop with the weights of the student, of an older copy, of a teacher, of a critic.

Shape letters: B rows; C channels; T, H, W latent frames, rows, columns.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fastvideo_core.card import LoopSpec, resolve_ref
from fastvideo_core.loop.behavior import Predict, PredictQuery
from fastvideo_rl.train.lora import merged_weights

__all__ = ["Role", "Roles", "copy_role"]


@dataclass(slots=True)
class Role:
    """Weights of one role.

    Attributes:
        modules: Components by name.
        is_trained: Whether they are updated.
        spec: The loop that predicts with them; None takes the run's generating loop.
        parts: What optimizers and sharding know the modules by: the modules themselves.
    """

    modules: dict[str, nn.Module]
    is_trained: bool
    spec: LoopSpec | None = None
    parts: list[nn.Module] = field(init=False)

    def __post_init__(self) -> None:
        self.parts = list(self.modules.values())

    def named_parameters(self) -> dict[str, nn.Parameter]:
        """Return the parameters that are trained, by component and name."""
        return {
            f"{component}.{name}": parameter
            for component, module in self.modules.items()
            for name, parameter in module.named_parameters()
            if parameter.requires_grad
        }


class Roles:
    """All roles of a run, and the loop's prediction with any of them.

    A role that is not trained has parameters without gradients; it is run with gradients switched on all the same, so
    that all roles go through the same kernels.

    Args:
        spec: The generating loop of the student.
        roles: Roles by name.
        is_checkpointed: Whether the blocks' intermediate values are computed again in the backward pass.
    """

    def __init__(self, spec: LoopSpec, roles: Mapping[str, Role], *, is_checkpointed: bool = False) -> None:
        assert spec.predict is not None, "a training program has made sure of it"
        self.spec = spec
        self.roles = dict(roles)
        self._runner = _checkpointed if is_checkpointed else None

    def predict(self, role: str, queries: Sequence[PredictQuery], *, has_gradient: bool = False) -> Tensor:
        """Return the predictions of a role, (B, C, T, H, W).

        Args:
            role: Whose weights.
            queries: What to predict.
            has_gradient: Whether gradients flow to the role's weights.
        """
        modules, spec = self.roles[role].modules, self.roles[role].spec or self.spec
        predict: Predict = resolve_ref(spec.predict or "")
        with torch.enable_grad():
            if has_gradient:
                return predict(spec, modules, queries, blocks_runner=self._runner)
            with _without_gradients(modules.values()):
                return predict(spec, modules, queries).detach()

    def weights(self, role: str) -> dict[str, dict[str, Tensor]]:
        """Return a role's weights, in the layout of the card's components, adapters merged and shards gathered."""
        found = {name: merged_weights(module) for name, module in self.roles[role].modules.items()}
        return {name: {key: _whole(tensor) for key, tensor in tensors.items()} for name, tensors in found.items()}

    def blend(self, target: str, source: str, decay: float) -> None:
        """Move a role's weights towards another's: target = decay * target + (1 - decay) * source, in place."""
        with torch.no_grad():
            for component, module in self.roles[target].modules.items():
                theirs = dict(self.roles[source].modules[component].named_parameters())
                for name, parameter in module.named_parameters():
                    if parameter.data_ptr() != theirs[name].data_ptr():
                        parameter.mul_(decay).add_(theirs[name].to(parameter.dtype), alpha=1 - decay)


def copy_role(role: Role, *, is_trained: bool) -> Role:
    """Return a copy of a role; weights that are frozen in both are shared, not copied."""
    modules = {}
    for name, module in role.modules.items():
        shared: dict[int, Any] = {} if is_trained else {id(p): p for p in module.parameters() if not p.requires_grad}
        modules[name] = copy.deepcopy(module, shared).requires_grad_(False)
        if is_trained:
            for one, other in zip(module.parameters(), modules[name].parameters(), strict=True):
                other.requires_grad_(one.requires_grad)
    return Role(modules, is_trained, role.spec)


def _checkpointed(blocks: Iterable[nn.Module], hidden: Tensor, *inputs: Any) -> Tensor:
    for block in blocks:
        hidden = checkpoint(block, hidden, *inputs, use_reentrant=False)
    return hidden


class _without_gradients:  # noqa: N801 - a context manager, named as such
    """Takes the gradients off some modules' parameters while it is open."""

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self._parameters = [one for module in modules for one in module.parameters() if one.requires_grad]

    def __enter__(self) -> None:
        for parameter in self._parameters:
            parameter.requires_grad_(False)

    def __exit__(self, *_: object) -> None:
        for parameter in self._parameters:
            parameter.requires_grad_(True)


def _whole(tensor: Tensor) -> Tensor:
    """Return a sharded tensor gathered; another as it is."""
    gather: Callable[[], Tensor] | None = getattr(tensor, "full_tensor", None)
    return tensor if gather is None else gather()
