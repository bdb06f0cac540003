"""Places in a stream: the beginnings of chunks, from which a session can be forked and to which a chunk is cut back."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from fastvideo_core.errors import ChunkGoneError

__all__ = ["Mark", "Marks", "Place"]


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a stream a state is.

    Attributes:
        chunk: The chunk that comes next.
        num_steps: Steps that have been committed.
        media_s: Seconds of video that have come out.
        num_media: Pieces of media that have come out.
    """

    chunk: int = 0
    num_steps: int = 0
    media_s: float = 0.0
    num_media: int = 0


@dataclass(frozen=True, slots=True)
class Mark:
    """The beginning of a chunk.

    Attributes:
        place: Where it is.
        state: The loop's state, a copy that nobody changes.
    """

    place: Place
    state: Any


@dataclass(slots=True)
class Marks:
    """The beginnings of the chunk in progress and of some before it.

    Attributes:
        num_past: How many before it are kept.
    """

    num_past: int
    kept: deque[Mark] = field(default_factory=deque)

    @property
    def chunks(self) -> tuple[int, ...]:
        """The chunks that are kept."""
        return tuple(mark.place.chunk for mark in self.kept)

    @property
    def newest(self) -> Mark | None:
        """The beginning of the chunk in progress; None before the first."""
        return self.kept[-1] if self.kept else None

    def add(self, mark: Mark) -> None:
        """Take the beginning of another chunk; one that is there already is replaced."""
        if self.kept and self.kept[-1].place.chunk == mark.place.chunk:
            self.kept.pop()
        self.kept.append(mark)
        while len(self.kept) > self.num_past + 1:
            self.kept.popleft()

    def find(self, chunk: int | None) -> Mark:
        """Return the beginning of a chunk; None asks for the newest.

        Raises:
            ChunkGoneError: It is kept no longer, or not there yet.
        """
        # No name here may go on referring to a mark: the error keeps this frame.
        found = next((mark for mark in reversed(self.kept) if chunk is None or mark.place.chunk == chunk), None)
        if found is not None:
            return found
        kept = ", ".join(map(str, self.chunks)) or "none"
        what = "the chunk in progress" if chunk is None else f"chunk {chunk}"
        raise ChunkGoneError(f"the beginning of {what} is not kept; kept: {kept}", kept=self.chunks)

    def clear(self) -> None:
        """Keep none."""
        self.kept.clear()
