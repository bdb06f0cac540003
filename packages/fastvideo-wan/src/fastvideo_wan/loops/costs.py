"""Analytic costs of Wan's steps: floating-point operations and bytes, from shapes alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastvideo_core.loop.work import StepCost, WorkPlan
from fastvideo_wan.models.config import WanTransformerConfig

__all__ = ["context_cost", "denoise_cost", "plan_cost"]

_BYTES = 4.0


def plan_cost(plan: WorkPlan[Any]) -> StepCost:
    """Return the cost that a plan already carries; the `LoopSpec.step_cost_model` of Wan's loops."""
    return plan.resources.cost


def denoise_cost(config: WanTransformerConfig, shape: Mapping[str, int], text_tokens: int, num_rows: int) -> StepCost:
    """Return the cost of one transformer call.

    Args:
        config: The transformer.
        shape: Latent `frames`, `rows` and `columns`.
        text_tokens: Text tokens that cross-attention sees.
        num_rows: Rows of the call: branches times requests.
    """
    frames, rows, columns = config.patch_size
    tokens = (shape["frames"] // frames) * (shape["rows"] // rows) * (shape["columns"] // columns)
    width = config.inner_dim
    linear = config.num_layers * (6 * width * width + 2 * width * config.ffn_dim)
    attention = config.num_layers * 4 * width * (tokens * tokens + tokens * text_tokens)
    activations = config.num_layers * tokens * (12 * width + 2 * config.ffn_dim)
    return StepCost(
        flops=num_rows * (2.0 * linear * tokens + attention), bytes_moved=_BYTES * (linear + num_rows * activations)
    )


def context_cost(config: WanTransformerConfig, text_tokens: int, num_rows: int) -> StepCost:
    """Return the cost of the cross-attention keys and values of some prompts."""
    width = config.inner_dim
    weights = 2 * config.num_layers * width * width + config.text_dim * width + width * width
    return StepCost(flops=2.0 * weights * text_tokens * num_rows, bytes_moved=_BYTES * weights)
