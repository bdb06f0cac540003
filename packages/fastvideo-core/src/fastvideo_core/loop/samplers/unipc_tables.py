"""The scalars of UniPC, for all steps at once.

Everything is float32 and in the reference's order of operations, because the coefficients of higher orders lose digits
by cancellation and another order would give other bits. Sums and products are rounded alike on vectors and on single
numbers; `log` and `expm1` need not be, so they are taken of single numbers, as the reference does.

Symbols: h = lambda_t - lambda_s of the transition s → t, r_i = (lambda_(s-i) - lambda_s) / h, B(h) = -h for bh1 and
expm1(-h) for bh2 (data prediction).

Source: Zhao et al. 2023, arXiv:2302.04867, sections 3 and 4; eq. 3 and 9, in data prediction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["transition_stages"]

_Stage = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class _Transitions:
    """Vectors over the transitions s → t of a schedule."""

    ratio: Tensor  # sigma_t / sigma_s
    base: Tensor  # alpha_t (e^-h - 1)
    scale: Tensor  # alpha_t B(h)
    lambdas: Tensor  # one longer than the others
    h: Tensor
    b: tuple[Tensor, ...]  # right-hand sides b_1, b_2, … of the order conditions


def _transitions(sigmas: Tensor, max_order: int, solver_type: str) -> _Transitions:
    alphas = 1 - sigmas
    lambdas = torch.stack([torch.log(a) - torch.log(s) for a, s in zip(alphas, sigmas, strict=True)])
    h = lambdas[1:] - lambdas[:-1]
    hh = -h
    phi_1 = torch.stack([torch.expm1(value) for value in hh])
    B = hh if solver_type == "bh1" else phi_1
    b, phi_k, factorial = [], phi_1 / hh - 1, 1
    for k in range(1, max_order + 1):
        b.append(phi_k * factorial / B)
        factorial *= k + 1
        phi_k = phi_k / hh - 1 / factorial
    return _Transitions(sigmas[1:] / sigmas[:-1], alphas[1:] * phi_1, alphas[1:] * B, lambdas, h, tuple(b))


def transition_stages(sigmas: Tensor, orders: Sequence[int], solver_type: str) -> tuple[list[_Stage], list[_Stage]]:
    """Return the stages of predictor and corrector for each transition.

    A stage is `(ratio, base, scale, r_1 … r_(p-1), rho_1 …)`, with p - 1 rhos for the predictor and p for the
    corrector, whose last one belongs to the new output. Order 1 has no r; its predictor has no rho.

    Args:
        sigmas: Float32, one more than there are transitions.
        orders: Order of each transition; it has at least `order - 1` transitions before it.
        solver_type: "bh1" or "bh2".

    Returns:
        Stages of the predictor, one a transition; stages of the corrector, for all but the last transition, after which
        no velocity is evaluated.
    """
    t = _transitions(sigmas, max(orders), solver_type)
    predictor: list[_Stage] = [()] * len(orders)
    corrector: list[_Stage] = [()] * (len(orders) - 1)
    scalars = list(zip(t.ratio.tolist(), t.base.tolist(), t.scale.tolist(), strict=True))
    for order in sorted(set(orders)):
        members = [i for i, value in enumerate(orders) if value == order]
        num_corrected = sum(i < len(corrector) for i in members)
        r, rho_p, rho_c = _solve(t, torch.tensor(members), order, num_corrected)
        for place, i in enumerate(members):
            # B(h) of bh1 is infinite at a last level of zero; order 1 does not use it.
            ratio, base, scale = scalars[i]
            predictor[i] = (ratio, base, scale, *r[place], *rho_p[place]) if order > 1 else (ratio, base, 0.0)
            if i < len(corrector):
                corrector[i] = (ratio, base, scale, *r[place], *rho_c[place])
    return predictor, corrector


def _solve(
    t: _Transitions, index: Tensor, order: int, num_corrected: int
) -> tuple[list[list[float]], list[list[float]], list[list[float]]]:
    """Return r, the predictor's rho and the corrector's rho of all transitions of one order.

    The corrector's is left out after the first `num_corrected` ones.
    """
    h, count = t.h[index], len(index)
    if order == 1:
        return [[]] * count, [[]] * count, [[0.5]] * count
    r = [(t.lambdas[index - i] - t.lambdas[index]) / h for i in range(1, order)]
    nodes = torch.stack([*r, torch.ones_like(h)], dim=1)
    R = torch.stack([torch.pow(nodes, i) for i in range(order)], dim=1)
    b = torch.stack([column[index] for column in t.b[:order]], dim=1)
    # The reference takes 1/2 for the predictor of order 2.
    rho_p = [[0.5]] * count if order == 2 else _solve_each(R[:, :-1, :-1], b[:, :-1])
    return nodes[:, :-1].tolist(), rho_p, _solve_each(R[:num_corrected], b[:num_corrected])


def _solve_each(R: Tensor, b: Tensor) -> list[list[float]]:
    """Solve one small system after the other: a batched call spends its time on waking threads."""
    return [torch.linalg.solve(A, c).tolist() for A, c in zip(R, b, strict=True)]
