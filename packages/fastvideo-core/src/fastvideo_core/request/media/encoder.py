"""H.264 with AAC in `.mp4`, VP9 with Opus in `.webm`: one encoder for files, and for streams where a sink is given.

Colours are BT.709 with limited range, and the file says so in the codec's headers and in the container. Rates are
exact: the time base is one frame.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from fractions import Fraction
from typing import IO, TYPE_CHECKING

import av
import numpy as np
from av.audio.stream import AudioStream
from av.video.stream import VideoStream

from fastvideo_core.errors import ExecutionError, OutputError
from fastvideo_core.request.media.sound import AudioTrack, Samples

if TYPE_CHECKING:
    from av.container.output import OutputContainer

    from fastvideo_core.request.media.pixels import Frames

__all__ = ["CONTAINERS", "ContainerEncoder", "ContainerSpec", "check_sample_rate"]

_COLOUR_TAGS = {"color_primaries": "bt709", "color_trc": "bt709", "colorspace": "bt709", "color_range": "tv"}
_AUDIO_BITS_PER_S = 192_000


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """How one kind of file is encoded.

    Attributes:
        container: FFmpeg's name of the container.
        video_codec: FFmpeg's name of the video encoder.
        video_options: Its options.
        audio_codec: FFmpeg's name of the audio encoder.
        audio_rates: Sample rates that the audio encoder takes; others are refused.
        resample_rate: Rate to which sound of every rate is converted instead; None for no conversion.
        options: Options of the container.
    """

    container: str
    video_codec: str
    video_options: Mapping[str, str]
    audio_codec: str
    audio_rates: tuple[int, ...] = ()
    resample_rate: int | None = None
    options: Mapping[str, str] = field(default_factory=dict)


CONTAINERS = {
    # The index goes to the front, so that players start before the whole file is there. Frames that look ahead (B)
    # would start the track with an offset, which readers that skip edit lists take for an additional frame.
    ".mp4": ContainerSpec(
        container="mp4",
        video_codec="libx264",
        video_options={"crf": "17", "preset": "medium", "bf": "0"},
        audio_codec="aac",
        audio_rates=(96000, 88200, 64000, 48000, 44100, 32000, 24000, 22050, 16000, 12000, 11025, 8000, 7350),
        options={"movflags": "+faststart"},
    ),
    # Opus always runs at 48 kHz inside.
    ".webm": ContainerSpec(
        container="webm",
        video_codec="libvpx-vp9",
        video_options={"crf": "22", "b": "0", "deadline": "good", "cpu-used": "4", "row-mt": "1"},
        audio_codec="libopus",
        resample_rate=48000,
    ),
}


class ContainerEncoder:
    """Encodes frames, and sound beside them, as they come.

    Sound that is shorter than the video is padded with silence to the video's length; longer sound is kept whole.

    Args:
        sink: A path, or a file object opened for writing (seekable, unless the container's options allow a pipe).
        spec: Container and codecs.
        height: Pixels.
        width: Pixels.
        fps: Frames a second.
        audio: Sound that goes along from the first frame on.
        metadata: Tags of the container, for instance `title` and `comment`.

    Raises:
        OutputError: The codec does not take this size or this sample rate.
    """

    def __init__(
        self,
        sink: str | IO[bytes],
        spec: ContainerSpec,
        *,
        height: int,
        width: int,
        fps: Fraction,
        audio: AudioTrack | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        if audio is not None:
            check_sample_rate(spec, audio.sample_rate)
        self._fps = fps
        self._num_frames = 0
        self._container = av.open(sink, "w", format=spec.container, options=dict(spec.options))
        self._container.metadata.update(metadata or {})
        try:
            self._stream = _add_video(self._container, spec, height=height, width=width, fps=fps)
            self._sound = _Sound(self._container, spec, audio) if audio is not None else None
            self._container.start_encoding()
        except BaseException as error:
            self.abort()
            if isinstance(error, av.FFmpegError) and not isinstance(error, OSError):
                raise OutputError(
                    f"{spec.video_codec} does not take {width}x{height} at {fps} frames a second"
                ) from error
            raise

    def write(self, frame_HWC: Frames) -> None:
        """Append one uint8 frame (H, W, 3), with the sound up to its end.

        Raises:
            OSError: The sink cannot take the bytes.
            ExecutionError: The codec failed.
        """
        frame = av.VideoFrame.from_ndarray(frame_HWC, format="rgb24").reformat(
            format="yuv420p", dst_colorspace="ITU709", dst_color_range="MPEG"
        )
        frame.pts = self._num_frames
        frame.time_base = 1 / self._fps
        self._num_frames += 1
        with _codec_errors():
            self._mux(frame)
            if self._sound is not None:
                self._sound.send_until(self._num_frames / self._fps)

    def finish(self) -> None:
        """Write what the codecs still hold, and the index, and close the file.

        Raises:
            OSError: The sink cannot take the bytes.
            ExecutionError: A codec failed.
        """
        with _codec_errors():
            if self._sound is not None:
                self._sound.finish(self._num_frames / self._fps)
            self._mux(None)
            self._container.close()

    def abort(self) -> None:
        """Close the file, whatever it holds by now."""
        # It is thrown away; the error that led here is the one to report.
        with suppress(av.FFmpegError, OSError):
            self._container.close()

    def _mux(self, frame: av.VideoFrame | None) -> None:
        for packet in self._stream.encode(frame):
            # Without it the last frame has no length, and a file of one frame has none at all.
            packet.duration = packet.duration or 1
            self._container.mux(packet)


class _Sound:
    """The sound of a file that is being written."""

    def __init__(self, container: OutputContainer, spec: ContainerSpec, track: AudioTrack) -> None:
        rate = spec.resample_rate or track.sample_rate
        stream = container.add_stream(spec.audio_codec, rate=rate)
        assert isinstance(stream, AudioStream)
        context = stream.codec_context
        context.layout = track.layout
        context.bit_rate = _AUDIO_BITS_PER_S
        context.time_base = Fraction(1, rate)
        self._container = container
        self._stream = stream
        self._track = track
        self._resampler = av.AudioResampler(format=context.format.name, layout=track.layout, rate=rate)
        self._num_sent = 0

    def send_until(self, time_s: Fraction) -> None:
        """Send the samples that lie before a time; there may be fewer."""
        self._send(self._track.samples[:, self._num_sent : self._count(time_s)])

    def finish(self, time_s: Fraction) -> None:
        """Send the rest, silence up to a time, and what the codec holds."""
        self._send(self._track.samples[:, self._num_sent :])
        num_silent = max(self._count(time_s) - self._num_sent, 0)
        self._send(np.zeros((len(self._track.samples), num_silent), np.float32))
        self._encode(self._resampler.resample(None))
        self._encode([None])

    def _count(self, time_s: Fraction) -> int:
        return math.ceil(time_s * self._track.sample_rate)

    def _send(self, samples: Samples) -> None:
        if samples.shape[1] == 0:
            return
        planar = np.ascontiguousarray(np.clip(samples, -1, 1))
        frame = av.AudioFrame.from_ndarray(planar, format="fltp", layout=self._track.layout)
        frame.sample_rate = self._track.sample_rate
        frame.pts = self._num_sent
        frame.time_base = Fraction(1, self._track.sample_rate)
        self._num_sent += samples.shape[1]
        self._encode(self._resampler.resample(frame))

    def _encode(self, frames: Sequence[av.AudioFrame | None]) -> None:
        for frame in frames:
            self._container.mux(self._stream.encode(frame))


def check_sample_rate(spec: ContainerSpec, sample_rate: int) -> None:
    """Check that a container's sound can have such a rate.

    Raises:
        OutputError: It cannot.
    """
    if spec.resample_rate is None and sample_rate not in spec.audio_rates:
        raise OutputError(
            f"{spec.audio_codec} does not take this sample rate",
            field="sample_rate",
            value=sample_rate,
            allowed=", ".join(map(str, spec.audio_rates)),
            nearest=min(spec.audio_rates, key=lambda rate: abs(rate - sample_rate)),
        )


def _add_video(
    container: OutputContainer, spec: ContainerSpec, *, height: int, width: int, fps: Fraction
) -> VideoStream:
    stream = container.add_stream(spec.video_codec, rate=fps, options={**spec.video_options, **_COLOUR_TAGS})
    assert isinstance(stream, VideoStream)
    stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
    stream.codec_context.time_base = 1 / fps
    return stream


@contextmanager
def _codec_errors() -> Iterator[None]:
    try:
        yield
    except OSError:
        raise
    except av.FFmpegError as error:
        raise ExecutionError(f"the encoder failed: {error.strerror}") from error
