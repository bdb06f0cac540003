"""What the steps of all loops cost and need, from shapes alone."""

from __future__ import annotations

from typing import Any

from fastvideo_core.loop.work import StepCost, WorkPlan
from fastvideo_cosmos3.models.config import TransformerConfig
from fastvideo_cosmos3.models.sound import SoundConfig
from fastvideo_cosmos3.models.vae_config import VideoVAEConfig

__all__ = [
    "FLOAT_BYTES",
    "denoise_cost",
    "denoise_peak_bytes",
    "frame_cost",
    "frame_peak_bytes",
    "plan_cost",
    "sound_cost",
    "text_cost",
    "text_kv_bytes",
    "text_peak_bytes",
    "vision_cost",
]

FLOAT_BYTES = 4
"""Bytes of a number at the widest format that a card runs in."""


def plan_cost(plan: WorkPlan[Any]) -> StepCost:
    """Return what a plan says that it costs."""
    return plan.resources.cost


def _layer_weights(config: TransformerConfig) -> int:
    """Return the numbers of one pathway's weights in a layer."""
    heads = config.num_attention_heads + config.num_key_value_heads
    return config.hidden_size * (2 * heads * config.head_dim + 3 * config.intermediate_size)


def _pathway_flops(config: TransformerConfig, tokens: int, keys: int) -> float:
    """Return the operations of one pathway on `tokens` tokens that see `keys` keys each."""
    attention = 4.0 * tokens * keys * config.num_attention_heads * config.head_dim
    return config.num_hidden_layers * (2.0 * tokens * _layer_weights(config) + attention)


def text_cost(config: TransformerConfig, tokens: int, past: int, *, num_logits: int = 0) -> StepCost:
    """Return the cost of text through the causal pathway.

    Args:
        config: The transformer.
        tokens: New tokens.
        past: Tokens before them.
        num_logits: Tokens whose successor is chosen.
    """
    head = config.hidden_size * config.vocab_size
    weights = config.num_hidden_layers * _layer_weights(config) + (head if num_logits else 0)
    return StepCost(
        _pathway_flops(config, tokens, past + tokens) + 2.0 * num_logits * head,
        FLOAT_BYTES * weights,
        FLOAT_BYTES * ((past + tokens) * config.kv_token_numbers + 8.0 * tokens * config.hidden_size),
    )


def text_kv_bytes(config: TransformerConfig, tokens: int) -> int:
    """Return the bytes of the keys and values of a text."""
    return FLOAT_BYTES * tokens * config.kv_token_numbers


def text_peak_bytes(config: TransformerConfig, tokens: int, past: int) -> int:
    """Return the most bytes that text through the causal pathway takes: past and own keys, one layer's activations."""
    rows = 4 * config.intermediate_size + 8 * config.hidden_size
    gathered = 2 * text_kv_bytes(config, past + tokens)
    return gathered + FLOAT_BYTES * (tokens * rows + config.vocab_size) + tokens * (past + tokens)


def denoise_cost(config: TransformerConfig, tokens: int, text: int, num_branches: int) -> StepCost:
    """Return the cost of a sampler step of `tokens` packed tokens that see `text` tokens of text."""
    flops = num_branches * _pathway_flops(config, tokens, tokens + text)
    activations = num_branches * (tokens * config.hidden_size * 12 + text * config.kv_token_numbers)
    return StepCost(flops, FLOAT_BYTES * config.num_hidden_layers * _layer_weights(config), FLOAT_BYTES * activations)


def denoise_peak_bytes(config: TransformerConfig, tokens: int, text: int, num_branches: int) -> int:
    """Return the most bytes of a sampler step: one layer's activations, keys of text and tokens, what comes out."""
    widths = 4 * config.intermediate_size + 12 * config.hidden_size
    keys = 4 * (tokens + text) * config.num_key_value_heads * config.head_dim
    text_rows = text * config.kv_token_numbers
    return FLOAT_BYTES * num_branches * (tokens * widths + keys + text_rows + 8 * tokens * config.patch_latent_dim)


def _vae_weights(config: VideoVAEConfig, base: int) -> int:
    """Return roughly how many weights a coder has: its levels' residual blocks of two 3x3x3 convolutions."""
    return sum(2 * 27 * (base * factor) ** 2 * (config.num_res_blocks + 1) for factor in config.dim_mult)


def frame_cost(config: VideoVAEConfig, rows: int, columns: int, num_frames: int, *, encodes: bool = False) -> StepCost:
    """Return the cost of one latent frame in the video autoencoder.

    Args:
        config: The autoencoder.
        rows: Latent rows.
        columns: Latent columns.
        num_frames: Frames of pixels of it.
        encodes: Whether it is made of pixels; else pixels are made of it.
    """
    base = config.base_dim if encodes else config.decoder_base_dim or config.base_dim
    flops = 0.0
    for level, factor in enumerate(config.dim_mult[::-1]):
        pixels = rows * columns * 4**level * min(num_frames, 2**level)
        flops += 2.0 * pixels * 2 * 27 * (base * factor) ** 2 * (config.num_res_blocks + 1)
    return StepCost(
        flops, FLOAT_BYTES * _vae_weights(config, base), frame_peak_bytes(config, rows, columns, num_frames)
    )


def frame_peak_bytes(config: VideoVAEConfig, rows: int, columns: int, num_frames: int) -> int:
    """Return the most bytes that one latent frame takes in the video autoencoder, its memory of the past included."""
    base = max(config.base_dim, config.decoder_base_dim or 0)
    pixels = rows * columns * config.spatial_factor**2 // config.patch_edge**2
    return FLOAT_BYTES * pixels * (num_frames + 2) * base * 8


def sound_cost(config: SoundConfig, frames: int) -> StepCost:
    """Return the cost of decoding sound."""
    flops, samples, weights = 0.0, frames, 0
    dims = [config.dec_dim * factor for factor in (1, *config.dec_c_mults)][::-1]
    for in_dim, out_dim, stride in zip(dims, dims[1:], config.dec_strides[::-1], strict=False):
        samples *= stride
        size = 2 * in_dim * out_dim + 3 * 8 * out_dim**2
        flops, weights = flops + 2.0 * samples * size, weights + size
    return StepCost(flops, FLOAT_BYTES * weights, FLOAT_BYTES * 8.0 * samples * config.dec_dim)


def vision_cost(config: Any, patches: int) -> StepCost:
    """Return the cost of the vision encoder on some patches."""
    weights = config.depth * (4 * config.hidden_size**2 + 2 * config.hidden_size * config.intermediate_size)
    attention = 4.0 * config.depth * patches * patches * config.hidden_size
    return StepCost(2.0 * patches * weights + attention, FLOAT_BYTES * weights, 8.0 * FLOAT_BYTES * patches)
