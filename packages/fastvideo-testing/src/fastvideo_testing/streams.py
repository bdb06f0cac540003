"""What tests of sessions need: reading a stream's chunks, waiting for an event, comparing bits."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from fastvideo_core.request.events import MediaChunk
from fastvideo_core.runtime.sessions import Session

__all__ = ["TIMEOUT_S", "Reader", "same_chunks", "wait_until"]

TIMEOUT_S = 180.0
"""After so long a test fails in place of waiting on."""


class Reader:
    """Reads a session's events, and keeps the chunks among them.

    Args:
        session: The session.

    Attributes:
        chunks: Frames, uint8, by the chunk's number.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.chunks: dict[int, torch.Tensor] = {}

    def until(self, kind: str) -> Any:
        """Read on up to the next event of a kind, and return it.

        Raises:
            AssertionError: A chunk came twice, or the session ended before.
        """
        for event in self.session.events(TIMEOUT_S):
            self._keep(event)
            if event.type == kind:
                return event
        raise AssertionError(f"no {kind} came")

    def read(self, num_chunks: int | None = None) -> dict[int, torch.Tensor]:
        """Read on until so many chunks were read in all, or to the end, and return them."""
        while num_chunks is None or len(self.chunks) < num_chunks:
            event = self.session.outbox.get(TIMEOUT_S)
            if event is None:
                break
            self._keep(event)
        return self.chunks

    def _keep(self, event: Any) -> None:
        if isinstance(event, MediaChunk):
            assert event.index not in self.chunks, f"chunk {event.index} came twice"
            self.chunks[event.index] = event.data


def same_chunks(some: Mapping[int, torch.Tensor], others: Mapping[int, torch.Tensor]) -> bool:
    """Tell whether two sets of chunks have the same numbers and bits."""
    return some.keys() == others.keys() and all(torch.equal(some[number], others[number]) for number in some)


def wait_until(is_so: Callable[[], bool]) -> None:
    """Wait for something that happens on another thread.

    Raises:
        AssertionError: It does not.
    """
    deadline = time.monotonic() + TIMEOUT_S
    while not is_so():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.005)
