"""A session in coroutines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from typing import Any, Literal, Self, TypeVar

from fastvideo_core.request.events import MediaChunk
from fastvideo_core.runtime.sessions.base import SessionOptions, SessionState
from fastvideo_core.runtime.sessions.session import Session

__all__ = ["AsyncSession"]

_T = TypeVar("_T")


class AsyncSession:
    """The same as `Session`, for coroutines: what waits is awaited, and no event loop is held up.

    Args:
        session: The session.

    Attributes:
        session: The session.
    """

    def __init__(self, session: Session) -> None:
        self.session = session

    @classmethod
    async def open(cls, make: Callable[[], Session]) -> Self:
        """Make a session on another thread: `await AsyncSession.open(lambda: engine.session("a red circle"))`."""
        return cls(await asyncio.to_thread(make))

    @property
    def state(self) -> SessionState:
        """Where it is."""
        return self.session.state

    async def push_text(self, text: str, *, now: bool = False) -> None:
        """See `Session.push_text`."""
        await self._run(lambda: self.session.push_text(text, now=now))

    async def push_image(self, image: Any, *, now: bool = False) -> None:
        """See `Session.push_image`."""
        await self._run(lambda: self.session.push_image(image, now=now))

    async def push_action(self, values: Sequence[Sequence[float]], *, now: bool = False) -> None:
        """See `Session.push_action`."""
        await self._run(lambda: self.session.push_action(values, now=now))

    async def pause(self) -> None:
        """See `Session.pause`."""
        await self._run(self.session.pause)

    async def resume(self) -> None:
        """See `Session.resume`."""
        await self._run(self.session.resume)

    async def suspend(self) -> None:
        """See `Session.suspend`."""
        await self._run(self.session.suspend)

    async def fork(self, chunk: int | None = None, *, options: SessionOptions | None = None) -> AsyncSession:
        """See `Session.fork`."""
        return AsyncSession(await self._run(lambda: self.session.fork(chunk, options=options)))

    async def close(self, *, at: Literal["step", "chunk"] = "step") -> None:
        """See `Session.close`."""
        await self._run(lambda: self.session.close(at=at))

    async def events(self) -> AsyncIterator[Any]:
        """Yield the events in order, the last one included; each is given out once."""
        loop, arrived = asyncio.get_running_loop(), asyncio.Event()

        def tell() -> None:
            with suppress(RuntimeError):  # the loop is closed, so nobody waits
                loop.call_soon_threadsafe(arrived.set)

        end = self.session.outbox.listen(tell)
        try:
            while True:
                arrived.clear()
                is_there, event = self.session.outbox.take()
                if not is_there:
                    await arrived.wait()
                elif event is None:
                    return
                else:
                    yield event
        finally:
            end()

    async def chunks(self) -> AsyncIterator[MediaChunk]:
        """Yield the media alone, and end with the session.

        Raises:
            FastVideoError: What has ended the session.
        """
        async for event in self.events():
            if isinstance(event, MediaChunk):
                yield event
        if self.session.error is not None:
            raise self.session.error

    def __aiter__(self) -> AsyncIterator[Any]:
        return self.events()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _run(self, function: Callable[[], _T]) -> _T:
        return await asyncio.to_thread(function)
