"""What the steps of a stream cost, from shapes alone."""

from __future__ import annotations

from fastvideo_core.loop.work import StepCost
from fastvideo_wan.loops.costs import denoise_cost, denoise_peak_bytes, num_video_tokens
from fastvideo_wan.models.config import WanTransformerConfig

__all__ = ["chunk_cost", "chunk_peak_bytes"]

_BYTES = 4


def chunk_cost(
    config: WanTransformerConfig, size: tuple[int, int, int], *, past_frames: int, text_tokens: int, num_rows: int
) -> StepCost:
    """Return the cost of one pass of a chunk.

    Args:
        config: The transformer.
        size: Latent frames, rows and columns of the chunk.
        past_frames: Latent frames that it attends to besides its own.
        text_tokens: Text tokens that cross-attention sees.
        num_rows: Rows of the call: branches times streams.
    """
    frames, rows, columns = size
    shape = {"frames": frames, "rows": rows, "columns": columns}
    cost, width = denoise_cost(config, shape, text_tokens, num_rows), config.inner_dim
    own = num_video_tokens(config, shape)
    past = num_video_tokens(config, {**shape, "frames": past_frames})
    return StepCost(
        flops=cost.flops + num_rows * config.num_layers * 4.0 * width * own * past,
        weight_bytes=cost.weight_bytes,
        activation_bytes=cost.activation_bytes + _BYTES * num_rows * config.num_layers * 4.0 * width * past,
    )


def chunk_peak_bytes(
    config: WanTransformerConfig, size: tuple[int, int, int], *, past_frames: int, num_rows: int, is_exact: bool
) -> int:
    """Return the most bytes that one pass of a chunk holds at a time: a block, one layer's window, and what is kept."""
    frames, rows, columns = size
    shape = {"frames": frames, "rows": rows, "columns": columns}
    own = num_video_tokens(config, shape)
    seen = own + num_video_tokens(config, {**shape, "frames": past_frames})
    window = 2 * _BYTES * num_rows * seen * config.inner_dim
    fresh = 2 * _BYTES * num_rows * config.num_layers * own * config.inner_dim
    return denoise_peak_bytes(config, shape, num_rows, is_exact=is_exact) + window + fresh
