"""Analytic costs of Wan's steps: floating-point operations and bytes, from shapes alone; the VAE has its own file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastvideo_core.loop.work import StepCost, WorkPlan
from fastvideo_wan.models.config import WanTransformerConfig

__all__ = [
    "IMAGE_TOKENS",
    "context_bytes",
    "context_cost",
    "denoise_cost",
    "denoise_peak_bytes",
    "num_video_tokens",
    "plan_cost",
    "text_cost",
    "text_peak_bytes",
    "vision_cost",
    "vision_peak_bytes",
]

IMAGE_TOKENS = 257
"""Tokens of one image from the vision encoder of Wan 2.1."""

_PIECE_BYTES = 1 << 20
"""Largest piece that the fast form of an activation works on."""

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
    tokens, width = num_video_tokens(config, shape), config.inner_dim
    linear = config.num_layers * (6 * width * width + 2 * width * config.ffn_dim)
    attention = config.num_layers * 4 * width * (tokens * tokens + tokens * text_tokens)
    activations = config.num_layers * (tokens * (12 * width + 2 * config.ffn_dim) + 2 * text_tokens * width)
    return StepCost(
        flops=num_rows * (2.0 * linear * tokens + attention),
        weight_bytes=_BYTES * (linear + 6 * width * width),
        activation_bytes=_BYTES * num_rows * activations,
    )


def num_video_tokens(config: WanTransformerConfig, shape: Mapping[str, int]) -> int:
    """Return the tokens of latents with `frames`, `rows` and `columns`."""
    frames, rows, columns = config.patch_size
    return (shape["frames"] // frames) * (shape["rows"] // rows) * (shape["columns"] // columns)


def denoise_peak_bytes(config: WanTransformerConfig, shape: Mapping[str, int], num_rows: int, *, is_exact: bool) -> int:
    """Return the most bytes that one step, alone in its call, holds at a time.

    That is in a block: the stream and what the feed-forward net or the attention makes of it. Exact steps run a row
    at a time, with the start of the step kept, and without writing in place.
    """
    width, ffn = config.inner_dim, config.ffn_dim
    tokens = num_video_tokens(config, shape)
    if is_exact:
        return int(_BYTES * tokens * (2 * width + max(4 * width + 2 * ffn, 9 * width)))
    hidden = _BYTES * tokens * num_rows * ffn
    return int(_BYTES * tokens * num_rows * max(6 * width, 8 * width - ffn) + hidden + min(_PIECE_BYTES, hidden))


def context_cost(config: WanTransformerConfig, text_tokens: int, num_rows: int) -> StepCost:
    """Return the cost of the cross-attention keys and values of some prompts."""
    width = config.inner_dim
    weights = 2 * config.num_layers * width * width + config.text_dim * width + width * width
    return StepCost(
        flops=2.0 * weights * text_tokens * num_rows,
        weight_bytes=_BYTES * weights,
        activation_bytes=float(context_bytes(config, text_tokens, num_rows)),
    )


def context_bytes(config: WanTransformerConfig, text_tokens: int, num_rows: int, *, has_outputs: bool = True) -> int:
    """Return the most bytes of the keys and values of some prompts, and of the outputs that may stand beside them."""
    image_tokens = IMAGE_TOKENS if config.is_image_conditioned else 0
    values = 2 * (text_tokens + image_tokens) * config.inner_dim
    outputs = config.num_attention_heads * text_tokens * config.inner_dim
    is_small = 2 * config.num_attention_heads * text_tokens <= config.inner_dim
    return int(_BYTES * config.num_layers * num_rows * (values + (outputs if has_outputs and is_small else 0)))


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


def text_peak_bytes(config: Any, num_tokens: int) -> int:
    """Return the most bytes that encoding some tokens with a T5 encoder holds at a time."""
    scores = 4 * config.num_heads * num_tokens * num_tokens
    return int(_BYTES * (num_tokens * (6 * config.d_model + 3 * config.d_ff) + scores))


def vision_peak_bytes(config: Any) -> int:
    """Return the most bytes that encoding an image with a CLIP vision encoder, all hidden states kept, holds."""
    tokens = (config.image_size // config.patch_size) ** 2 + 1
    hidden = (config.num_hidden_layers + 6) * config.hidden_size + 2 * config.intermediate_size
    return int(_BYTES * (tokens * hidden + 2 * config.num_attention_heads * tokens * tokens))
