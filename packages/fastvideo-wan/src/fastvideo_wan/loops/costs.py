"""Analytic costs of Wan's steps: floating-point operations and bytes, from shapes alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastvideo_core.loop.work import StepCost, WorkPlan
from fastvideo_wan.models.config import WanTransformerConfig

__all__ = ["context_cost", "denoise_cost", "plan_cost", "text_cost", "vae_cost", "vision_cost"]

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
        flops=num_rows * (2.0 * linear * tokens + attention),
        weight_bytes=_BYTES * linear,
        activation_bytes=_BYTES * num_rows * activations,
    )


def context_cost(config: WanTransformerConfig, text_tokens: int, num_rows: int) -> StepCost:
    """Return the cost of the cross-attention keys and values of some prompts."""
    width = config.inner_dim
    weights = 2 * config.num_layers * width * width + config.text_dim * width + width * width
    return StepCost(flops=2.0 * weights * text_tokens * num_rows, weight_bytes=_BYTES * weights)


def text_cost(config: Any, num_tokens: int) -> StepCost:
    """Return the cost of encoding some tokens with a T5 encoder of this transformers config."""
    attention = 4 * config.d_model * config.num_heads * config.d_kv
    feed_forward = 3 * config.d_model * config.d_ff
    weights = config.num_layers * (attention + feed_forward)
    scores = config.num_layers * 4 * num_tokens * num_tokens * config.num_heads * config.d_kv
    return StepCost(flops=2.0 * weights * num_tokens + scores, weight_bytes=_BYTES * weights)


def vision_cost(config: Any) -> StepCost:
    """Return the cost of one image with a CLIP vision encoder of this transformers config."""
    tokens = (config.image_size // config.patch_size) ** 2 + 1
    weights = config.num_hidden_layers * (4 * config.hidden_size**2 + 2 * config.hidden_size * config.intermediate_size)
    scores = config.num_hidden_layers * 4 * tokens * tokens * config.hidden_size
    return StepCost(flops=2.0 * weights * tokens + scores, weight_bytes=_BYTES * weights)


def vae_cost(config: Any, shape: Mapping[str, int]) -> StepCost:
    """Return the cost of a pass through half a VAE: its convolutions at full width and full resolution, from above.

    Args:
        config: The VAE's configuration.
        shape: Pixel `frames`, `rows` and `columns`.
    """
    voxels = shape["frames"] * shape["rows"] * shape["columns"] / config.patch_edge**2
    kernels = 27.0 * config.base_dim**2 * 2 * (config.num_res_blocks + 1) * len(config.dim_mult)
    return StepCost(flops=2.0 * kernels * voxels, activation_bytes=_BYTES * voxels * config.base_dim * 8)
