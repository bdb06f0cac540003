"""Artifacts: the named, typed outputs of a request, each with where it comes from, and how each becomes a file.

Shapes: C channels, T frames, H height, W width, N samples.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fastvideo_core.errors import NonFiniteError, ParameterError
from fastvideo_core.request.media import output
from fastvideo_core.request.media.output import OutputTarget, check_format, check_output
from fastvideo_core.request.media.pixels import Frames, as_frames, iter_frames
from fastvideo_core.request.media.publish import SavedFiles, save_bytes
from fastvideo_core.request.media.rates import as_fps
from fastvideo_core.request.media.sound import AudioTrack, Samples, as_samples
from fastvideo_core.request.provenance import Provenance

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "Artifact",
    "AudioArtifact",
    "ImageArtifact",
    "LatentArtifact",
    "TensorArtifact",
    "TextArtifact",
    "VideoArtifact",
]


@dataclass(slots=True, eq=False, kw_only=True)
class Artifact:
    """What all artifacts have.

    Attributes:
        name: Name of the output in its task.
        provenance: How it was made; None for what did not come out of a request.
    """

    name: str = ""
    provenance: Provenance | None = None


@dataclass(slots=True, eq=False)
class VideoArtifact(Artifact):
    """A video on the host.

    Attributes:
        frames: uint8 (T, H, W, 3).
        fps: Frames a second, exact; numbers and text are converted by `as_fps`.
        audio: Its sound, of the same length; None if it is silent.
    """

    frames: Frames
    fps: Fraction
    name: str = field(default="video", kw_only=True)
    audio: AudioArtifact | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        """Check and convert the fields."""
        self.frames = as_frames(self.frames)
        self.fps = as_fps(self.fps)

    @classmethod
    def from_pixels(
        cls, pixels_CTHW: Tensor, fps: Fraction, *, name: str = "video", provenance: Provenance | None = None
    ) -> VideoArtifact:
        """Make a video of decoded pixels in [-1, 1]; see `pixels_to_frames`.

        Raises:
            NonFiniteError: NaN or infinity in the pixels.
        """
        frames = np.concatenate(list(iter_frames(pixels_CTHW)))
        return cls(frames, fps, name=name, provenance=provenance)

    @property
    def duration_s(self) -> Fraction:
        """Length in seconds."""
        return len(self.frames) / self.fps

    def frame(self, index: int) -> ImageArtifact:
        """Return one frame as an image, for a thumbnail; negative indices count from the end."""
        return ImageArtifact(self.frames[index], name=self.name, provenance=self.provenance)

    def save(
        self, path: str | Path | OutputTarget, *, audio: AudioArtifact | None = None, sidecar: bool = True
    ) -> SavedFiles:
        """Write `.mp4`, `.webm`, `.gif` or `.png` (frames); see `VideoWriter` for what that means.

        Args:
            path: The file, or a target that was checked before.
            audio: Sound for `.mp4` and `.webm`; None takes the video's own, which other formats cannot hold.
            sidecar: Whether `<name>.json` is written beside it.

        Raises:
            OutputError: The path cannot be written, or the format cannot hold this video.
            ResourceError: The disk is full, or an encoder is missing.
        """
        from fastvideo_core.request.media.writer import VideoWriter

        target = _target(path, output.VIDEO_FORMATS)
        own = self.audio if target.suffix in output.SOUND_FORMATS else None
        sound = own if audio is None else audio
        track = None if sound is None else sound.track
        with VideoWriter(target, fps=self.fps, provenance=self.provenance, audio=track, sidecar=sidecar) as writer:
            writer.write(self.frames)
        return writer.saved


@dataclass(slots=True, eq=False)
class AudioArtifact(Artifact):
    """Sound on the host.

    Attributes:
        samples: float32 (C, N), one or two channels, nominally in [-1, 1].
        sample_rate: Samples a second.
    """

    samples: Samples
    sample_rate: int
    name: str = field(default="audio", kw_only=True)

    def __post_init__(self) -> None:
        """Check and convert the fields."""
        self.samples = as_samples(self.samples, self.sample_rate).samples

    @property
    def track(self) -> AudioTrack:
        """The sound alone, for `VideoWriter`."""
        return AudioTrack(self.samples, self.sample_rate)

    @property
    def duration_s(self) -> Fraction:
        """Length in seconds."""
        return self.track.duration_s

    def fitted(self, duration_s: Fraction) -> AudioArtifact:
        """Return a copy of exactly that length: cut at the end, or padded with silence."""
        num_samples = round(duration_s * self.sample_rate)
        num_missing = max(num_samples - self.samples.shape[1], 0)
        samples = np.pad(self.samples[:, :num_samples], ((0, 0), (0, num_missing)))
        return AudioArtifact(samples, self.sample_rate, name=self.name, provenance=self.provenance)

    def save(self, path: str | Path | OutputTarget, *, sidecar: bool = True) -> SavedFiles:
        """Write `.wav`, 16 bit.

        Raises:
            OutputError: The path cannot be written.
            ResourceError: The disk is full.
        """
        from fastvideo_core.request.media.sound import encode_wav

        facts = {"sample_rate": self.sample_rate, "duration_s": float(self.duration_s)}
        target = _target(path, output.AUDIO_FORMATS)
        return save_bytes(target, encode_wav(self.track), provenance=_if(sidecar, self.provenance), facts=facts)


@dataclass(slots=True, eq=False)
class ImageArtifact(Artifact):
    """An image on the host.

    Attributes:
        pixels: uint8 (H, W, 3).
    """

    pixels: Frames
    name: str = field(default="image", kw_only=True)

    def __post_init__(self) -> None:
        """Check and convert the field."""
        self.pixels = as_frames(self.pixels[None], field="pixels")[0]

    def save(self, path: str | Path | OutputTarget, *, sidecar: bool = True) -> SavedFiles:
        """Write `.png`, `.jpg` or lossless `.webp`.

        Raises:
            OutputError: The path cannot be written.
            ResourceError: The disk is full.
        """
        from fastvideo_core.request.media.stills import encode_still

        target = _target(path, output.IMAGE_FORMATS)
        data = encode_still(self.pixels, target.suffix, self.provenance)
        facts = {"height": self.pixels.shape[0], "width": self.pixels.shape[1]}
        return save_bytes(target, data, provenance=_if(sidecar, self.provenance), facts=facts)


@dataclass(slots=True, eq=False)
class TextArtifact(Artifact):
    """Text that a model wrote.

    Attributes:
        token_ids: The tokens, special ones included.
        text: What they read as.
        finish: Why it ended: `eos` at its end token, `stop` at a stop string, `length` at the most tokens; "" if it is
            not known.
        num_read: Tokens that were read before it: the question, and what it shows; 0 if unknown.
    """

    token_ids: tuple[int, ...]
    text: str
    finish: str = field(default="", kw_only=True)
    num_read: int = field(default=0, kw_only=True)
    name: str = field(default="text", kw_only=True)

    def save(self, path: str | Path | OutputTarget, *, sidecar: bool = True) -> SavedFiles:
        """Write `.txt` in UTF-8; the token ids are in the sidecar.

        Raises:
            OutputError: The path cannot be written.
            ResourceError: The disk is full.
        """
        target = _target(path, output.TEXT_FORMATS)
        facts = {"token_ids": list(self.token_ids)}
        data = self.text.encode("utf-8", "replace")
        return save_bytes(target, data, provenance=_if(sidecar, self.provenance), facts=facts)


@dataclass(slots=True, eq=False)
class TensorArtifact(Artifact):
    """A tensor of any shape and type, as it is.

    Attributes:
        tensor: Array or tensor, on any device.
    """

    tensor: npt.NDArray[Any] | Tensor
    name: str = field(default="tensor", kw_only=True)

    def save(self, path: str | Path | OutputTarget, *, sidecar: bool = True) -> SavedFiles:
        """Write `.safetensors` with the tensor under the artifact's name.

        Raises:
            OutputError: The path cannot be written.
            ResourceError: The disk is full.
        """
        from fastvideo_core.request.media.tensors import encode_tensor

        target = _target(path, output.TENSOR_FORMATS)
        data = encode_tensor(self.name, self.tensor, self.provenance)
        facts = {"shape": list(self.tensor.shape), "dtype": str(self.tensor.dtype).removeprefix("torch.")}
        return save_bytes(target, data, provenance=_if(sidecar, self.provenance), facts=facts)


@dataclass(slots=True, eq=False)
class LatentArtifact(Artifact):
    """Latents as the sampler leaves them, on the host.

    Attributes:
        latents: float32 (C, T, H, W), finite.
    """

    latents: npt.NDArray[np.float32]
    name: str = field(default="latents", kw_only=True)

    def __post_init__(self) -> None:
        """Bring the latents to the host and check them."""
        found: Any = self.latents
        array = found.detach().cpu().numpy() if hasattr(found, "detach") else np.asarray(found)
        if array.dtype != np.float32 or array.ndim != 4:
            shape = f"{array.dtype}{list(array.shape)}"
            raise ParameterError("not latents", field="latents", value=shape, allowed="float32 (C, T, H, W)")
        num_bad = array.size - int(np.isfinite(array).sum())
        if num_bad:
            raise NonFiniteError(f"NaN or infinity in {num_bad} of {array.size} latent values")
        self.latents = np.ascontiguousarray(array)

    def save(self, path: str | Path | OutputTarget, *, sidecar: bool = True) -> SavedFiles:
        """Write `.safetensors` with the key `latents`.

        Raises:
            OutputError: The path cannot be written.
            ResourceError: The disk is full.
        """
        from fastvideo_core.request.media.tensors import encode_tensor

        target = _target(path, output.TENSOR_FORMATS)
        data = encode_tensor("latents", self.latents, self.provenance)
        facts = {"shape": list(self.latents.shape), "dtype": "float32"}
        return save_bytes(target, data, provenance=_if(sidecar, self.provenance), facts=facts)

    @classmethod
    def load(cls, path: str | Path) -> LatentArtifact:
        """Read what `save` wrote.

        Raises:
            MediaError: No such file, or not one with float32 latents in it.
        """
        from fastvideo_core.request.media.embedded import read_provenance
        from fastvideo_core.request.media.tensors import load_latents

        return cls(load_latents(path), provenance=read_provenance(path))


def _target(path: str | Path | OutputTarget, allowed: tuple[str, ...]) -> OutputTarget:
    target = path if isinstance(path, OutputTarget) else check_output(path, allowed=allowed)
    check_format(target.suffix, allowed=allowed, field=target.field)
    return target


def _if(sidecar: bool, provenance: Provenance | None) -> Provenance | None:
    return provenance if sidecar else None
