"""Which chunks of a video a chunk attends to. Imports no torch.

A video is a row of chunks of latent frames. A chunk attends to itself, to the sink (chunks at the video's start that
are always kept), and to as many chunks before it as the window holds.
"""

from __future__ import annotations

from dataclasses import dataclass

from fastvideo_core.errors import ParameterError

_FAR = 1 << 20
"""A chunk so late that its window is full."""


@dataclass(frozen=True, slots=True)
class ChunkRule:
    """Lengths of chunks, window and sink, in latent frames.

    Attributes:
        chunk_frames: Frames of a chunk.
        window_frames: Frames that a chunk attends to at most, its own and the sink's among them; whole chunks besides
            the sink.
        sink_frames: Frames at the start that stay in the window; whole chunks.
        first_frames: Frames of the first chunk; None if it is like the others.
    """

    chunk_frames: int
    window_frames: int
    sink_frames: int = 0
    first_frames: int | None = None

    def __post_init__(self) -> None:
        opening = self.num_frames(0)
        for name in ("chunk_frames", "window_frames"):
            if getattr(self, name) < 1:
                raise ParameterError("too few", field=name, value=getattr(self, name), allowed="1 or more")
        if opening < 1:
            raise ParameterError("too few", field="first_frames", value=opening, allowed="1 or more, or none")
        if self.sink_frames and (self.sink_frames < opening or (self.sink_frames - opening) % self.chunk_frames):
            raise ParameterError(
                "the sink is no whole number of chunks",
                field="sink_frames",
                value=self.sink_frames,
                allowed=f"0, or {opening} and multiples of {self.chunk_frames} more",
                nearest=opening + max(0, self.sink_frames - opening) // self.chunk_frames * self.chunk_frames,
            )
        if (self.window_frames - self.sink_frames) % self.chunk_frames:
            raise ParameterError(
                "the window holds a part of a chunk",
                field="window_frames",
                value=self.window_frames,
                allowed=f"{self.sink_frames} and multiples of {self.chunk_frames} more",
                nearest=self.window_frames - (self.window_frames - self.sink_frames) % self.chunk_frames,
            )
        least = self.sink_frames + max(self.chunk_frames, opening)
        if self.window_frames < least:
            raise ParameterError(
                "the window does not hold the sink and a chunk",
                field="window_frames",
                value=self.window_frames,
                allowed=f"{least} or more",
                nearest=least,
            )

    def num_frames(self, chunk: int) -> int:
        """Return the frames of a chunk, counted from 0."""
        return self.chunk_frames if chunk or self.first_frames is None else self.first_frames

    def start(self, chunk: int) -> int:
        """Return the position of a chunk's first frame."""
        return 0 if chunk == 0 else self.num_frames(0) + (chunk - 1) * self.chunk_frames

    @property
    def num_sink_chunks(self) -> int:
        """Chunks of the sink."""
        return 0 if not self.sink_frames else 1 + (self.sink_frames - self.num_frames(0)) // self.chunk_frames

    def past(self, chunk: int) -> tuple[int, ...]:
        """Return the earlier chunks that a chunk attends to, ascending."""
        num_sink = min(self.num_sink_chunks, chunk)
        sink = tuple(range(num_sink))
        room = self.window_frames - self.num_frames(chunk) - sum(self.num_frames(index) for index in sink)
        recent: list[int] = []
        for index in range(chunk - 1, num_sink - 1, -1):
            room -= self.num_frames(index)
            if room < 0:
                break
            recent.insert(0, index)
        return sink + tuple(recent)

    def reread(self, chunk: int) -> range:
        """Return the chunks whose keys and values are made anew when the prompt changes before a chunk.

        They are as many as the window holds. If there are more, the sink stays as it is, and so does its room.
        """
        if self.start(chunk) <= self.window_frames:
            return range(chunk)
        first, left = chunk, self.window_frames - self.sink_frames
        while first > self.num_sink_chunks and self.num_frames(first - 1) <= left:
            first -= 1
            left -= self.num_frames(first)
        return range(first, chunk)

    def kept_sink(self, reread: range) -> range:
        """Return the chunks of the sink that chunks that are read anew attend to besides each other."""
        return range(self.num_sink_chunks if reread.start else 0)

    def slabs_per_stream(self, *, has_reread: bool) -> int:
        """Return the most chunks whose keys and values one stream holds in one expert and branch.

        That is its window, the chunk in progress, and what the copy of its state at the chunk's start holds besides.

        Args:
            has_reread: Whether a new prompt puts others in place of the window's.
        """
        past = len(self.past(_FAR))
        return past + 2 + (past - self.num_sink_chunks if has_reread else 0)

    def frame_sizes(self, num_chunks: int) -> list[int]:
        """Return the frames of each of the first chunks."""
        return [self.num_frames(chunk) for chunk in range(num_chunks)]
