"""The layers of the Wan video autoencoder. No layer keeps anything between calls: a `Tape` carries the clip's past.

Shapes: B batch rows; C channels; T, H, W frames, rows, columns.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fastvideo_wan.models.vae_cache import HISTORY_FRAMES, Tape


class RMSNorm(nn.Module):
    """The gains of a root-mean-square norm over channels; `norm` in the ops is the arithmetic.

    Args:
        dim: Channels.
        num_trailing: Axes after the channels, which checkpoints give the gains.
    """

    def __init__(self, dim: int, num_trailing: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(dim, *[1] * num_trailing))


class CausalConv3d(nn.Conv3d):
    """A 3D convolution that sees no later frame; rows and columns keep their size.

    Args:
        in_dim: Channels in.
        out_dim: Channels out.
        kernel_size: Frames, rows, columns.
        time_stride: Frames from one output to the next.
    """

    def __init__(self, in_dim: int, out_dim: int, kernel_size: tuple[int, int, int], time_stride: int = 1) -> None:
        super().__init__(in_dim, out_dim, kernel_size, stride=(time_stride, 1, 1))

    def forward(self, x_BCTHW: Tensor, tape: Tape, *, starts_clip: bool = False) -> Tensor:  # type: ignore[override]
        """Convolve a chunk that has its past in front of it.

        Args:
            x_BCTHW: The past and the chunk.
            tape: Gives the arithmetic.
            starts_clip: Whether the past is zeros.

        Returns:
            (B, out_dim, T', H, W).
        """
        return tape.ops.conv3d(x_BCTHW, *_parameters(self), self.stride[0], starts_clip)

    def causal(self, x_BCTHW: Tensor, tape: Tape, norm: RMSNorm | None = None, dropout: float = 0.0) -> Tensor:
        """Put the past in front of a chunk, remember its end, and convolve: as many frames out as in.

        Args:
            x_BCTHW: The chunk.
            tape: Holds the past, normed and activated if this chunk is.
            norm: Norm and SiLU to apply to the chunk first.
            dropout: Probability of dropping an activation.
        """
        past = tape.past()
        if norm is None:
            joined, last = tape.ops.after(past, x_BCTHW, HISTORY_FRAMES)
        else:
            joined, last = tape.ops.norm_silu_after(past, x_BCTHW, norm.gamma, HISTORY_FRAMES)
        tape.remember(last)
        hidden = F.dropout(joined, dropout) if dropout else joined
        return self(hidden, tape, starts_clip=past is None)


class ResidualBlock(nn.Module):
    """Norm, SiLU, convolution, twice, added to the input."""

    def __init__(self, in_dim: int, out_dim: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.norm1 = RMSNorm(in_dim, 3)
        self.conv1 = CausalConv3d(in_dim, out_dim, (3, 3, 3))
        self.norm2 = RMSNorm(out_dim, 3)
        self.conv2 = CausalConv3d(out_dim, out_dim, (3, 3, 3))
        self.conv_shortcut = CausalConv3d(in_dim, out_dim, (1, 1, 1)) if in_dim != out_dim else None

    def forward(self, x_BCTHW: Tensor, tape: Tape) -> Tensor:
        """Return (B, out_dim, T, H, W)."""
        shortcut = x_BCTHW if self.conv_shortcut is None else self.conv_shortcut(x_BCTHW, tape)
        hidden = self.conv1.causal(x_BCTHW, tape, self.norm1)
        hidden = self.conv2.causal(hidden, tape, self.norm2, self.dropout if self.training else 0.0)
        return tape.ops.add(hidden, shortcut)


class AttentionBlock(nn.Module):
    """Self-attention with one head among the pixels of each frame, added to the input."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm = RMSNorm(dim, 2)
        self.to_qkv = nn.Conv2d(dim, dim * 3, 1)
        self.proj = nn.Conv2d(dim, dim, 1)

    def forward(self, x_BCTHW: Tensor, tape: Tape) -> Tensor:
        """Return the same shape; frames do not see each other."""
        return tape.ops.attend(x_BCTHW, self.norm.gamma, _parameters(self.to_qkv), _parameters(self.proj))


class MidBlock(nn.Module):
    """Residual, attention, residual, at the coarsest level."""

    def __init__(self, dim: int, dropout: float) -> None:
        super().__init__()
        self.attentions = nn.ModuleList([AttentionBlock(dim)])
        self.resnets = nn.ModuleList([ResidualBlock(dim, dim, dropout) for _ in range(2)])

    def forward(self, x_BCTHW: Tensor, tape: Tape) -> Tensor:
        """Return the same shape."""
        hidden = self.attentions[0](self.resnets[0](x_BCTHW, tape), tape)
        return self.resnets[1](hidden, tape)


class Downsample(nn.Module):
    """Halves rows and columns and, if asked, time; a clip's first frame never merges with others.

    Args:
        dim: Channels in and out.
        halves_time: Whether later frames are also merged two by two.
    """

    def __init__(self, dim: int, *, halves_time: bool) -> None:
        super().__init__()
        # Checkpoints name the convolution by its place, 1, behind a padding without parameters.
        self.resample = nn.ModuleDict({"1": nn.Conv2d(dim, dim, 3, stride=2)})
        self.time_conv = CausalConv3d(dim, dim, (3, 1, 1), time_stride=2) if halves_time else None

    def forward(self, x_BCTHW: Tensor, tape: Tape) -> Tensor:
        """Return (B, C, T', H/2, W/2); T' counts the first frame once and the others in pairs."""
        hidden = tape.ops.halve_space(x_BCTHW, *_parameters(self.resample["1"]))
        return hidden if self.time_conv is None else self._merge_frames(hidden, self.time_conv, tape)

    def _merge_frames(self, x_BCTHW: Tensor, time_conv: nn.Module, tape: Tape) -> Tensor:
        if not tape.is_first:
            joined, last = tape.ops.after(tape.past(), x_BCTHW, 1)
            tape.remember(last)
            return time_conv(joined, tape)
        tape.remember(x_BCTHW[:, :, -1:])
        if x_BCTHW.shape[2] == 1:
            return x_BCTHW
        return torch.cat([x_BCTHW[:, :, :1], time_conv(x_BCTHW, tape)], dim=2)


class Upsample(nn.Module):
    """Doubles rows and columns and, if asked, every frame but a clip's first.

    Args:
        in_dim: Channels in.
        out_dim: Channels out.
        doubles_time: Whether a later frame becomes two.
    """

    def __init__(self, in_dim: int, out_dim: int, *, doubles_time: bool) -> None:
        super().__init__()
        # Checkpoints name the convolution by its place, 1, behind an interpolation without parameters.
        self.resample = nn.ModuleDict({"1": nn.Conv2d(in_dim, out_dim, 3, padding=1)})
        self.time_conv = CausalConv3d(in_dim, in_dim * 2, (3, 1, 1)) if doubles_time else None

    def forward(self, x_BCTHW: Tensor, tape: Tape) -> Tensor:
        """Return (B, out_dim, T', 2H, 2W); T' counts the first frame once and the others twice."""
        hidden = x_BCTHW if self.time_conv is None else self._double_frames(x_BCTHW, self.time_conv, tape)
        return tape.ops.double_space(hidden, *_parameters(self.resample["1"]))

    def _double_frames(self, x_BCTHW: Tensor, time_conv: CausalConv3d, tape: Tape) -> Tensor:
        if not tape.is_first:
            return tape.ops.interleave(time_conv.causal(x_BCTHW, tape))
        # The first frame goes through alone, and the frames after it do not see it: their past is zeros.
        first, later = x_BCTHW[:, :, :1], x_BCTHW[:, :, 1:]
        if later.shape[2] == 0:
            tape.remember(tape.ops.no_past(first, HISTORY_FRAMES))
            return first
        return torch.cat([first, tape.ops.interleave(time_conv.causal(later, tape))], dim=2)


def _parameters(conv: nn.Module) -> tuple[Tensor, Tensor]:
    """Return the weight and the bias of a convolution."""
    return conv.weight, conv.bias  # type: ignore[return-value]
