"""Muon for matrices and convolution kernels, AdamW for everything else, behind one optimiser.

Source: Jordan et al. 2024, "Muon: an optimizer for hidden layers in neural networks"; the learning rate is scaled so
that an update has the size of an AdamW update (Liu et al. 2025, arXiv:2502.16982), and one rate serves both halves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from fastvideo_wan.shapes.train.workers import Worker

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
UPDATE_RMS = 0.2  # the usual root mean square of an AdamW update


def orthogonalise(matrix: Tensor, *, num_iterations: int = 5) -> Tensor:
    """Return a matrix of the same shape whose singular values are all near one (0.7 to 1.2).

    Args:
        matrix: Shape (rows, columns), or (batch, rows, columns).
        num_iterations: Newton-Schulz steps.
    """
    a, b, c = NEWTON_SCHULZ
    is_tall = matrix.shape[-2] > matrix.shape[-1]
    x = matrix.mT if is_tall else matrix
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(num_iterations):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if is_tall else x


class MuonAdamW(torch.optim.Optimizer):
    """One optimiser with two kinds of groups: `kind="muon"` and `kind="adamw"`.

    Args:
        groups: Parameter groups, each with `params` and `kind`.
        lr: Learning rate of both kinds, in AdamW's units.
        weight_decay: Decoupled decay, applied to the Muon groups only.
        worker: Processes that hold the same parameters and gradients; each orthogonalises its share.
    """

    def __init__(
        self,
        groups: Iterable[dict[str, Any]],
        *,
        lr: float,
        weight_decay: float = 0.0,
        worker: Worker | None = None,
    ) -> None:
        self.worker = worker or Worker()
        defaults = {"lr": lr, "weight_decay": weight_decay, "momentum": 0.95, "betas": (0.9, 0.99), "eps": 1e-8}
        super().__init__(groups, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update all parameters that have a gradient; `closure` is not supported."""
        if closure is not None:
            raise ValueError("closure: not supported")
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if group["kind"] == "muon":
                self._step_muon(params, group)
            else:
                self._step_adamw(params, group)

    def _step_muon(self, params: list[nn.Parameter], group: dict[str, Any]) -> None:
        for same_shape in _by_matrix_shape(params).values():
            updates = []
            for param in same_shape:
                assert param.grad is not None
                state = self.state[param]
                if not state:
                    state["momentum"] = torch.zeros_like(param)
                state["momentum"].lerp_(param.grad, 1 - group["momentum"])
                nesterov = param.grad.lerp(state["momentum"], group["momentum"])
                updates.append(nesterov.reshape(param.shape[0], -1))
            stacked = self._orthogonalise_shared(torch.stack(updates))
            scale = group["lr"] * UPDATE_RMS * max(stacked.shape[-2:]) ** 0.5
            for param, update in zip(same_shape, stacked, strict=True):
                param.mul_(1 - group["lr"] * group["weight_decay"])
                param.sub_(update.reshape(param.shape), alpha=scale)

    def _orthogonalise_shared(self, matrices: Tensor) -> Tensor:
        rank, num_workers = self.worker.rank, self.worker.num_workers
        if num_workers == 1 or len(matrices) < num_workers:
            return orthogonalise(matrices)
        results = torch.zeros_like(matrices)
        results[rank::num_workers] = orthogonalise(matrices[rank::num_workers])
        return self.worker.sum(results)

    def _step_adamw(self, params: list[nn.Parameter], group: dict[str, Any]) -> None:
        beta1, beta2 = group["betas"]
        for param in params:
            assert param.grad is not None
            state = self.state[param]
            if not state:
                state.update(num_steps=0, mean=torch.zeros_like(param), square=torch.zeros_like(param))
            state["num_steps"] += 1
            state["mean"].lerp_(param.grad, 1 - beta1)
            state["square"].mul_(beta2).addcmul_(param.grad, param.grad, value=1 - beta2)
            mean = state["mean"] / (1 - beta1 ** state["num_steps"])
            square = state["square"] / (1 - beta2 ** state["num_steps"])
            param.addcdiv_(mean, square.sqrt().add_(group["eps"]), value=-group["lr"])


def _by_matrix_shape(params: list[nn.Parameter]) -> dict[tuple[int, int], list[nn.Parameter]]:
    groups: dict[tuple[int, int], list[nn.Parameter]] = {}
    for param in params:
        groups.setdefault((param.shape[0], param[0].numel()), []).append(param)
    return groups


def split_parameters(*modules: nn.Module, adamw_names: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """Sort parameters into a Muon group (two dimensions or more) and an AdamW group (the rest).

    Args:
        modules: Whose parameters to train.
        adamw_names: Parts of names of parameters that go to AdamW in any case: embeddings, first and last layers.
    """
    named = [item for module in modules for item in module.named_parameters()]
    is_muon = [
        p.ndim >= 2 and min(p.shape[0], p[0].numel()) > 1 and not any(part in name for part in adamw_names)
        for name, p in named
    ]
    return [
        {"kind": "muon", "params": [p for (_, p), muon in zip(named, is_muon, strict=True) if muon]},
        {"kind": "adamw", "params": [p for (_, p), muon in zip(named, is_muon, strict=True) if not muon]},
    ]
