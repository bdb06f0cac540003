"""Conditioning tensors: padded text, image masks and latents, and timesteps by token.

Shape letters: B batch, C channels, T latent frames, F pixel frames, H W latent height and width, Y X pixel height and
width, L text tokens, D text width, S video tokens.

All sizes come from the request's own frame count and frame size; nothing here assumes a length.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fastvideo_core.errors import ParameterError

__all__ = [
    "blend_known_frames",
    "concat_condition",
    "image_condition_video",
    "image_mask",
    "known_frames_mask",
    "num_latent_frames",
    "pad_text",
    "token_timesteps",
]


def num_latent_frames(num_frames: int, temporal_factor: int) -> int:
    """Return how many latent frames a causal video VAE makes of `num_frames`.

    Raises:
        ParameterError: `num_frames` is not `k * temporal_factor + 1`.
    """
    if num_frames < 1 or (num_frames - 1) % temporal_factor:
        nearest = max(round((num_frames - 1) / temporal_factor), 0) * temporal_factor + 1
        raise ParameterError(
            "off the frame grid",
            field="num_frames",
            value=num_frames,
            allowed=f"{temporal_factor}k + 1",
            nearest=nearest,
        )
    return (num_frames - 1) // temporal_factor + 1


def pad_text(embeddings_BLD: Tensor, num_tokens: Sequence[int], length: int) -> Tensor:
    """Set everything behind each prompt to zero and bring it to the card's length.

    The model attends to the padding, so its length is a part of the weights' contract.

    Args:
        embeddings_BLD: Text encoder output.
        num_tokens: Tokens of each prompt, without padding.
        length: Tokens that the card gives to the model.

    Returns:
        Shape (B, length, D), same type; a new tensor.

    Raises:
        ParameterError: A prompt has more tokens than `length`.
    """
    batch, _, width = embeddings_BLD.shape
    padded = embeddings_BLD.new_zeros(batch, length, width)
    for row, count in enumerate(num_tokens):
        if count > length:
            raise ParameterError(
                "the prompt is too long", field="num_tokens", value=count, allowed=f"at most {length}", nearest=length
            )
        padded[row, :count] = embeddings_BLD[row, :count]
    return padded


def image_condition_video(first_BCYX: Tensor, num_frames: int, last_BCYX: Tensor | None = None) -> Tensor:
    """Return the video that an image-to-video model sees encoded: known frames, and zeros between and after.

    Args:
        first_BCYX: First frame, in [-1, 1].
        num_frames: Frames of the request, at least 1; at least 2 with a last frame.
        last_BCYX: Last frame, if it is known.

    Returns:
        Shape (B, C, F, Y, X).

    Raises:
        ParameterError: There are more known frames than frames.
    """
    known = [first_BCYX] if last_BCYX is None else [first_BCYX, last_BCYX]
    if num_frames < len(known):
        raise ParameterError(
            "too few frames", field="num_frames", value=num_frames, allowed=f"at least {len(known)}", nearest=len(known)
        )
    batch, channels, height, width = first_BCYX.shape
    video_BCFYX = first_BCYX.new_zeros(batch, channels, num_frames, height, width)
    video_BCFYX[:, :, 0] = first_BCYX
    if last_BCYX is not None:
        video_BCFYX[:, :, -1] = last_BCYX
    return video_BCFYX


def image_mask(
    num_frames: int,
    *,
    height: int,
    width: int,
    temporal_factor: int = 4,
    has_last_frame: bool = False,
    device: torch.device | str | None = None,
) -> Tensor:
    """Return Wan's mask of known frames: one at known pixel frames, folded into channels of the latent grid.

    A causal VAE makes the first latent frame of one pixel frame and every other of `temporal_factor`; the first frame's
    mask is therefore repeated until all latent frames have the same number of mask channels.

    Args:
        num_frames: Pixel frames of the request.
        height: Latent height.
        width: Latent width.
        temporal_factor: Pixel frames a latent frame.
        has_last_frame: Whether the last frame is known as well.
        device: Where the mask is made.

    Returns:
        Float32, shape (1, temporal_factor, T, height, width).

    Raises:
        ParameterError: `num_frames` is off the VAE's grid.
    """
    latent_frames = num_latent_frames(num_frames, temporal_factor)
    is_known_F = torch.zeros(num_frames, device=device)
    is_known_F[0] = 1
    if has_last_frame:
        is_known_F[-1] = 1
    folded_TC = torch.cat([is_known_F[:1].expand(temporal_factor), is_known_F[1:]]).view(latent_frames, temporal_factor)
    return folded_TC.T.reshape(1, temporal_factor, latent_frames, 1, 1).repeat(1, 1, 1, height, width)


def concat_condition(mask_BCTHW: Tensor, condition_BCTHW: Tensor) -> Tensor:
    """Return mask and encoded condition as one block of channels, which follows the latents' channels in the input.

    Args:
        mask_BCTHW: What `image_mask` gave; one row serves a whole batch.
        condition_BCTHW: Normalized latents of the condition video.
    """
    batch = condition_BCTHW.shape[0]
    mask = mask_BCTHW.to(device=condition_BCTHW.device, dtype=condition_BCTHW.dtype).expand(batch, -1, -1, -1, -1)
    return torch.cat([mask, condition_BCTHW], dim=1)


def known_frames_mask(
    latent_frames: int, *, height: int, width: int, num_known: int = 1, device: torch.device | str | None = None
) -> Tensor:
    """Return the mask of models that get known frames in place of noise: zero where a latent frame is known.

    Args:
        latent_frames: Latent frames of the request.
        height: Latent height.
        width: Latent width.
        num_known: Known latent frames at the start; 0 for text-to-video.
        device: Where the mask is made.

    Returns:
        Float32, shape (1, 1, T, height, width).
    """
    mask = torch.ones(1, 1, latent_frames, height, width, device=device)
    mask[:, :, :num_known] = 0
    return mask


def blend_known_frames(mask_BCTHW: Tensor, condition_BCTHW: Tensor, latents_BCTHW: Tensor) -> Tensor:
    """Return `(1 - mask) condition + mask latents`: the model's input at each step, and the result after the last.

    Args:
        mask_BCTHW: What `known_frames_mask` gave.
        condition_BCTHW: Normalized latents of the known frames; one frame broadcasts over all.
        latents_BCTHW: The latents being denoised.
    """
    return (1 - mask_BCTHW) * condition_BCTHW + mask_BCTHW * latents_BCTHW


def token_timesteps(mask_BCTHW: Tensor, timestep: Tensor | float, patch: tuple[int, int, int] = (1, 2, 2)) -> Tensor:
    """Return the timestep of each video token: zero for known frames.

    Args:
        mask_BCTHW: What `known_frames_mask` gave, shape (1, 1, T, H, W).
        timestep: The step's timestep.
        patch: Latent frames, rows and columns that make one token.

    Returns:
        Shape (1, S), tokens in the order frames, rows, columns.
    """
    mask_thw = mask_BCTHW[0, 0, :: patch[0], :: patch[1], :: patch[2]]
    return (mask_thw * timestep).flatten().unsqueeze(0)
