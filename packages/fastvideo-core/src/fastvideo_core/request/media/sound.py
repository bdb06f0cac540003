"""Sound as samples: checks, and the WAV file.

Shapes: C channels (one or two), N samples.
"""

from __future__ import annotations

import io
import wave
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from fastvideo_core.errors import NonFiniteError, ParameterError

__all__ = ["AudioTrack", "Samples", "as_samples", "encode_wav"]

Samples = npt.NDArray[np.float32]

_MAX_SAMPLE_RATE = 768_000


@dataclass(frozen=True, slots=True, eq=False)
class AudioTrack:
    """Sound of a known rate.

    Attributes:
        samples: float32 (C, N), nominally in [-1, 1]; files clip what is beyond.
        sample_rate: Samples a second.
    """

    samples: Samples
    sample_rate: int

    @property
    def layout(self) -> str:
        """FFmpeg's name of the channel layout."""
        return "mono" if self.samples.shape[0] == 1 else "stereo"

    @property
    def duration_s(self) -> Fraction:
        """Length in seconds."""
        return Fraction(self.samples.shape[1], self.sample_rate)


def as_samples(samples: Any, sample_rate: int) -> AudioTrack:
    """Check samples and bring them to the host.

    Args:
        samples: Floating-point array or tensor, (C, N) or (N,).
        sample_rate: Samples a second.

    Raises:
        ParameterError: Another type or shape, more than two channels, or an impossible rate.
        NonFiniteError: NaN or infinity.
    """
    array = samples.detach().cpu().float().numpy() if hasattr(samples, "detach") else np.asarray(samples)
    array = array[None] if array.ndim == 1 else array
    if array.ndim != 2 or array.shape[0] not in (1, 2) or not np.issubdtype(array.dtype, np.floating):
        raise ParameterError(
            "not sound",
            field="samples",
            value=f"{array.dtype}{list(array.shape)}",
            allowed="floating point (channels, N) in [-1, 1] with one or two channels",
        )
    if not 0 < sample_rate <= _MAX_SAMPLE_RATE:
        raise ParameterError(
            "not a sample rate", field="sample_rate", value=sample_rate, allowed=f"an integer up to {_MAX_SAMPLE_RATE}"
        )
    if not np.isfinite(array).all():
        raise NonFiniteError(f"NaN or infinity in {int((~np.isfinite(array)).sum())} of {array.size} sound samples")
    return AudioTrack(np.ascontiguousarray(array, dtype=np.float32), sample_rate)


def encode_wav(track: AudioTrack) -> bytes:
    """Return a file of 16-bit PCM. Full scale is 32767, so that +1 and -1 are equally loud."""
    pcm_NC = np.rint(np.clip(track.samples, -1, 1).T * 32767).astype("<i2")
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as writer:
        writer.setnchannels(track.samples.shape[0])
        writer.setsampwidth(2)
        writer.setframerate(track.sample_rate)
        writer.writeframes(pcm_NC.tobytes())
    return buffer.getvalue()
