"""The sessions of a server: who may have how many, and which of them are let go of because nobody comes back."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Coroutine
from typing import Any

from fastvideo_core.errors import ChunkGoneError, FastVideoError, LoopMismatchError, SessionLimitError
from fastvideo_core.request.media.fragments import FragmentEncoder
from fastvideo_core.request.session_events import SessionChunk
from fastvideo_core.runtime.sessions import AsyncSession, Session
from fastvideo_core.runtime.sessions.host import stream_task
from fastvideo_server.config import ServerConfig
from fastvideo_server.errors import ApiError, api_error
from fastvideo_server.jobs.asks import read_ask
from fastvideo_server.jobs.quotas import Caller, Keys
from fastvideo_server.jobs.service import JobService
from fastvideo_server.metrics import Metrics
from fastvideo_server.sessions.live import Attachment, LiveSession
from fastvideo_server.sessions.messages import Attach, Create, Fork, session_options
from fastvideo_server.sessions.segments import Segment

__all__ = ["SessionService"]


class SessionService:
    """Makes sessions and finds them again; on the server's event loop.

    Args:
        jobs: The server's jobs, whose engine runs sessions too.
        config: Limits.
        keys: Who may ask for how much.
        metrics: Figures.

    Attributes:
        stream_task: The card's task whose streams sessions are; None if it has none.
    """

    def __init__(self, jobs: JobService, config: ServerConfig, keys: Keys, metrics: Metrics) -> None:
        self._jobs = jobs
        self._config = config
        self._keys = keys
        self._metrics = metrics
        self._lives: dict[str, LiveSession] = {}
        self._num_coming: dict[str, int] = {}
        self._expiries: dict[str, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        try:
            self.stream_task: str | None = stream_task(jobs.card)
        except LoopMismatchError:
            self.stream_task = None
        jobs.on_drain.append(self.close_all)
        metrics.sessions.set_function(lambda: self.num_open)

    @property
    def num_open(self) -> int:
        """Sessions that have not ended."""
        return sum(not live.is_over for live in self._lives.values())

    async def create(self, message: Create, caller: Caller) -> LiveSession:
        """Begin a session.

        Raises:
            ApiError: Something asked for is not allowed, or there are too many.
        """
        card = self._jobs.card
        ask = read_ask(card, {"task": self._task(message), **message.fields}, kind="session", image=message.image)
        options = session_options(message.options, suspend_after_s=self._config.session_suspend_s)
        self._keys.spend(caller)
        session_id = f"sess_{secrets.token_urlsafe(16)}"

        def make() -> Session:
            prepared, _ = self._jobs.preparer.prepare(ask, request_id=session_id)
            FragmentEncoder(height=prepared.parameters["height"], width=prepared.parameters["width"], fps=1)
            return self._jobs.engine.session_prepared(prepared, options)

        return await self._begin(make, caller)

    async def fork(self, live: LiveSession, message: Fork) -> LiveSession:
        """Begin a session that goes on from a chunk of another; nobody is connected to it yet.

        Raises:
            ApiError: The chunk is kept no longer, or there are too many sessions.
        """
        self._keys.spend(live.caller)
        session_id = f"sess_{secrets.token_urlsafe(16)}"
        child = await self._begin(lambda: live.session.session.fork(message.chunk, session_id=session_id), live.caller)
        self._expire_later(child)
        return child

    def attach(self, message: Attach, caller: Caller) -> tuple[LiveSession, Attachment]:
        """Connect to a session of an earlier connection.

        Raises:
            ApiError: 404, the caller has no such session; 400 or 410, what it is to go on after is not there.
        """
        live = self._lives.get(message.session_id)
        if live is None or live.caller.name != caller.name:
            raise ApiError(
                404, f"there is no session {message.session_id!r}", code="not_found", param="session_id",
                allowed=f"a session whose connection was closed less than {self._config.session_reconnect_s:g} s ago",
            )  # fmt: skip
        return live, self.take(live, message.received)

    def take(self, live: LiveSession, received: int = -1) -> Attachment:
        """Connect to a session.

        Raises:
            ApiError: 400 or 410, what it is to go on after is not there.
        """
        attachment = live.attach(received)
        if (timer := self._expiries.pop(live.session_id, None)) is not None:
            timer.cancel()
        return attachment

    def leave(self, live: LiveSession, attachment: Attachment) -> None:
        """Note that a connection is closed: unless another comes in time, the session ends."""
        if live.detach(attachment):
            self._expire_later(live)

    async def close_all(self) -> None:
        """End all sessions after their chunk in progress, and let their clients have what there is."""
        lives = [live for live in self._lives.values() if not live.is_over]
        await asyncio.gather(*(live.session.close(at="chunk") for live in lives), return_exceptions=True)
        waiting = [asyncio.ensure_future(live.told_all.wait()) for live in lives if live.attachment is not None]
        if waiting:
            _, late = await asyncio.wait(waiting, timeout=_FAREWELL_S)
            for task in late:
                task.cancel()
        for timer in self._expiries.values():
            timer.cancel()
        self._expiries.clear()

    def _task(self, message: Create) -> Any:
        try:
            return stream_task(self._jobs.card, has_image=message.image is not None)
        except LoopMismatchError:
            raise ApiError(
                404, f"no task of {self._jobs.card.model_id} makes streams", code="unsupported", param="model",
                allowed="a card with a causal model",
            ) from None  # fmt: skip

    async def _begin(self, make: Callable[[], Session], caller: Caller) -> LiveSession:
        self._check_open(caller)
        self._num_coming[caller.name] = self._num_coming.get(caller.name, 0) + 1
        try:
            session = await asyncio.to_thread(make)
        except FastVideoError as error:
            raise _refusal(error) from error
        finally:
            self._num_coming[caller.name] -= 1
        live = LiveSession(AsyncSession(session), caller, on_segment=self._told)
        self._lives[live.session_id] = live
        self._spawn(live.run())
        return live

    def _check_open(self, caller: Caller) -> None:
        if self._jobs.is_draining:
            raise ApiError(503, "the server stops", code="draining", retry_after_s=5)
        own = sum(live.caller.name == caller.name and not live.is_over for live in self._lives.values())
        own += self._num_coming.get(caller.name, 0)
        if own >= caller.max_sessions:
            raise ApiError(
                429, f"key {caller.name} has {own} sessions", code="quota_exceeded", allowed=f"{caller.max_sessions}",
                retry_after_s=10,
            )  # fmt: skip

    def _expire_later(self, live: LiveSession) -> None:
        self._expiries[live.session_id] = asyncio.get_running_loop().call_later(
            self._config.session_reconnect_s, self._expire, live
        )

    def _expire(self, live: LiveSession) -> None:
        self._expiries.pop(live.session_id, None)
        self._lives.pop(live.session_id, None)
        self._spawn(live.session.close())

    def _told(self, live: LiveSession, segment: Segment) -> None:
        if segment.fields["type"] == _CHUNK:
            self._metrics.session_chunk_seconds.observe(segment.fields["latency_s"])
            self._metrics.session_lag_seconds.observe(segment.fields["lag_s"])
        elif segment.end_s is not None and not live.has_begun:
            live.has_begun = True
            self._metrics.first_chunk_seconds.observe(time.monotonic() - live.begun_at_s)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


_FAREWELL_S = 5.0
_CHUNK = SessionChunk.model_fields["type"].default


def _refusal(error: FastVideoError) -> ApiError:
    if isinstance(error, SessionLimitError):
        return ApiError(429, str(error), code="quota_exceeded", retry_after_s=10)
    if isinstance(error, ChunkGoneError):
        kept = ", ".join(map(str, error.kept))
        return ApiError(410, str(error), code="chunk_gone", param="chunk", allowed=kept or "none")
    return api_error(error)
