"""Events and progress of one request."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from fastvideo_core.loop.work import StreamChunk
from fastvideo_core.program.base import ModelLoopNode
from fastvideo_core.request import events
from fastvideo_core.runtime.prepare import PreparedRequest

__all__ = ["EventLog", "Progress", "StepReport"]

GENERATIVE_WEIGHT = 8.0
"""How much longer a generative node is taken to be than any other, before anything is measured."""

FRAMES_CODEC = "rgb24"
"""Media chunks within a process are plain frames, uint8 (T, H, W, 3)."""

StepReport = tuple[str, int, int | None, Sequence[StreamChunk]]
"""What is to be told of a committed step: the arguments of `Progress.committed`."""


class EventLog:
    """Numbers the events of a request and hands them on, not yet built: who looks at none does not pay for them.

    Args:
        prepared: The request.
        on_event: Given what builds the next event: its class and its fields.
    """

    def __init__(self, prepared: PreparedRequest, on_event: Callable[[partial[Any]], None]) -> None:
        self._prepared = prepared
        self._request_id = prepared.request.request_id
        self._on_event = on_event
        self._sequence = 0

    def emit(self, event_type: Callable[..., Any], /, **fields: Any) -> None:
        """Hand the next event on."""
        number = self._sequence
        self._sequence += 1
        self._on_event(partial(event_type, request_id=self._request_id, sequence=number, time_s=time.time(), **fields))

    def accepted(self) -> None:
        """The request is valid."""
        prepared = self._prepared
        self.emit(
            events.RequestAccepted,
            card=prepared.card.model_id,
            task=prepared.request.task,
            parameters=prepared.parameters.to_json(),
        )

    def warning(self, message: str) -> None:
        """Something will not give what was asked for."""
        self.emit(events.RequestWarning, message=message)

    def artifact(self, name: str, kind: str) -> None:
        """An artifact is ready."""
        self.emit(events.ArtifactCreated, name=name, kind=kind)

    def completed(self, artifacts: tuple[str, ...], duration_s: float) -> None:
        """All artifacts are there."""
        self.emit(events.RequestCompleted, artifacts=artifacts, duration_s=duration_s)

    def failed(self, error: Exception) -> None:
        """The request ended with an error."""
        self.emit(events.RequestFailed, error=type(error).__name__, message=" ".join(str(error).split()))

    def cancelled(self, reason: str) -> None:
        """The request was cancelled."""
        self.emit(events.RequestCancelled, reason=reason)


class Progress:
    """Turns committed steps into progress events with the time that is left, and their chunks into media events.

    The share of a node in the whole is an estimate until it has run: a generative node counts `GENERATIVE_WEIGHT`
    times as much as any other. The time left follows from the time taken so far.
    """

    def __init__(self, prepared: PreparedRequest, log: EventLog) -> None:
        card = prepared.card
        nodes = [node for node in prepared.nodes if isinstance(node, ModelLoopNode)]
        weights = {n.node_id: GENERATIVE_WEIGHT if card.loops[n.loop].is_generative else 1.0 for n in nodes}
        total = sum(weights.values())
        self._shares = {node_id: weight / total for node_id, weight in weights.items()}
        self._done = dict.fromkeys(weights, 0.0)
        self._fraction = 0.0
        self._num_chunks: dict[str, int] = {}
        self._prepared = prepared
        self._log = log
        self._started_at: float | None = None

    @property
    def num_chunks(self) -> dict[str, int]:
        """How many chunks have come out, by stream."""
        return dict(self._num_chunks)

    def started(self) -> None:
        """Note the first step."""
        if self._started_at is None:
            self._started_at = time.monotonic()
            self._log.emit(events.RequestStarted)

    def finished(self, node_id: str) -> None:
        """Note that a node has nothing left to do, however many steps it took."""
        self._note(node_id, 1.0)

    def committed(self, node_id: str, step: int, num_steps: int | None, chunks: Sequence[StreamChunk]) -> None:
        """Report a committed step and stream its chunks.

        Args:
            node_id: Its node.
            step: Its number, from 1.
            num_steps: How many the node will take, where it knows.
            chunks: What it has put into its sinks.
        """
        if num_steps:
            self._note(node_id, step / num_steps)
        elapsed_s = 0.0 if self._started_at is None else time.monotonic() - self._started_at
        remaining_s = elapsed_s * (1 - self._fraction) / self._fraction if self._fraction > 0 else None
        self._log.emit(
            events.RequestProgress,
            node=node_id,
            step=step,
            num_steps=num_steps,
            fraction=self._fraction,
            remaining_s=remaining_s,
        )
        for chunk in chunks:
            if chunk.kind in ("media", "preview"):
                self._stream(node_id, chunk)
            elif chunk.kind == "text":
                self._log.emit(
                    events.TextDelta,
                    stream=chunk.stream,
                    index=chunk.index,
                    text=chunk.data,
                    is_final=chunk.is_final,
                )

    def _note(self, node_id: str, done: float) -> None:
        more = done - self._done[node_id]
        if more > 0:
            self._done[node_id] = done
            self._fraction = min(1.0, self._fraction + self._shares[node_id] * more)

    def _stream(self, node_id: str, chunk: StreamChunk) -> None:
        """Emit a chunk of frames; the first is announced, the last is followed by the end of the stream."""
        num_before = self._num_chunks.get(chunk.stream, 0)
        if num_before == 0:
            _, height, width, _ = chunk.data.shape
            fps = self._prepared.parameters_of(node_id)["fps"]
            self._log.emit(
                events.MediaInit, stream=chunk.stream, codec=FRAMES_CODEC, width=width, height=height, fps=fps
            )
        self._num_chunks[chunk.stream] = num_before + 1
        self._log.emit(
            events.MediaChunk,
            stream=chunk.stream,
            index=chunk.index,
            start_s=chunk.start_s,
            end_s=chunk.end_s,
            is_preview=chunk.kind == "preview",
            data=chunk.data,
        )
        if chunk.is_final:
            self._log.emit(events.MediaComplete, stream=chunk.stream, num_chunks=num_before + 1)
