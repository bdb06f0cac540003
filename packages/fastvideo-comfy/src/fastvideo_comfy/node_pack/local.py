"""Models on an engine in this process."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import TimeoutError as FutureTimeout
from fractions import Fraction
from typing import Any

import numpy as np

from fastvideo_comfy.node_pack.made import Made
from fastvideo_comfy.node_pack.models import BUFFER_S, Model, Stream, TaskForm, Work
from fastvideo_core import Engine
from fastvideo_core.card import ModelCard
from fastvideo_core.errors import CancelledError, LoopMismatchError
from fastvideo_core.request.artifacts import VideoArtifact
from fastvideo_core.runtime.sessions import SessionOptions
from fastvideo_core.runtime.sessions.host import stream_task

__all__ = ["LocalModel"]


class LocalModel(Model):
    """A resident model; its engine is closed once nothing refers to it any more.

    Args:
        engine: The engine.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.name = engine.card.model_id
        self.close = weakref.finalize(self, engine.close)

    def tasks(self) -> Sequence[TaskForm]:
        """Return the card's tasks."""
        capabilities = self.engine.card.capabilities
        names = dict.fromkeys((capabilities.default_task, *capabilities.tasks))
        return [_form(self.engine.card, name) for name in names]

    def stream_task(self, *, has_image: bool) -> TaskForm | None:
        """Return the task of the card's streams."""
        try:
            return _form(self.engine.card, stream_task(self.engine.card, has_image=has_image))
        except LoopMismatchError:
            return None

    def begin(self, prompt: str, task: str, image: Any, parameters: Mapping[str, Any]) -> Work:
        """Hand a request to the engine."""
        request = self.engine.make_request(prompt, task=task, image=image, parameters=parameters)
        return _LocalWork(self.engine, request)

    def begin_stream(
        self, prompt: str, task: str, image: Any, parameters: Mapping[str, Any], *, num_chunks: int, is_steered: bool
    ) -> Stream:
        """Begin a session."""
        options = SessionOptions(num_chunks=num_chunks, buffer_s=0.0 if is_steered else BUFFER_S)
        return _LocalStream(self.engine.session(prompt, task=task, image=image, options=options, **parameters))


class _LocalWork(Work):
    def __init__(self, engine: Engine, request: Any) -> None:
        self._fraction = 0.0
        self._handle = engine.submit(request, on_event=self._note)

    @property
    def fraction(self) -> float:
        return self._fraction

    def wait(self, seconds: float) -> Made | None:
        try:
            return Made(self._handle.result(seconds).video)
        except (TimeoutError, FutureTimeout):
            return None

    def cancel(self) -> None:
        self._handle.cancel("interrupted in ComfyUI")

    def _note(self, event: Any) -> None:
        if event.type == "request.progress":
            self._fraction = event.fraction


class _LocalStream(Stream):
    def __init__(self, session: Any) -> None:
        self._session = session
        self._frames: list[Any] = []
        self._fps = Fraction(1)
        self._end_s = 0.0

    def wait(self, seconds: float) -> int | None:
        self._session.viewed(self._end_s)
        try:
            event = next(self._session.events(seconds), None)
        except TimeoutError:
            return None
        if event is None:
            if self._session.error is not None:
                raise self._session.error
            return -1
        if event.type == "media.init":
            self._fps = Fraction(event.fps).limit_denominator(1001)
        if event.type != "media.chunk" or event.is_preview:
            return None
        self._frames.append(np.asarray(event.data))
        self._end_s = event.end_s
        return int(event.index)

    def push_text(self, text: str) -> None:
        self._session.push_text(text)

    def close(self) -> None:
        self._session.close()

    def made(self) -> Made:
        if not self._frames:
            raise CancelledError("the stream ended before its first chunk")
        return Made(VideoArtifact(np.concatenate(self._frames), self._fps))


def _form(card: ModelCard, name: str) -> TaskForm:
    task = card.task(name)
    return TaskForm(name, frozenset(task.inputs), frozenset(task.parameters))
