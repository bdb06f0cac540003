"""A session on the server: what of it has not arrived at its client yet, and who is connected to it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from fastvideo_core.errors import describe_failure
from fastvideo_core.request.session_events import SessionFailed
from fastvideo_core.runtime.sessions import AsyncSession
from fastvideo_server.errors import ApiError
from fastvideo_server.jobs.quotas import Caller
from fastvideo_server.sessions.segments import Segment, SegmentWriter

__all__ = ["Attachment", "LiveSession"]

_LOG = logging.getLogger(__name__)

_MAX_KEPT = 1024
"""Messages that may wait for their client to say that they have arrived. Media stop long before, by the buffer."""
_MAX_IDS = 256
"""Messages of a client that are known again when they are repeated."""


@dataclass(slots=True, eq=False)
class Attachment:
    """A connection to a session.

    Attributes:
        taken: Set when another connection takes its place.
    """

    taken: asyncio.Event = field(default_factory=asyncio.Event)


class LiveSession:
    """A session, used on the server's event loop alone.

    What it tells is numbered and kept until its client says that it has arrived, so that a connection that breaks off
    loses nothing. Of the stream no more is made than `buffer_s` beyond that.

    Args:
        session: The engine's session.
        caller: Whose it is.
        on_segment: Told of everything that it tells.

    Attributes:
        session: The engine's session.
        caller: Whose it is.
        is_over: Whether nothing follows.
        attachment: The connection to it; None while there is none.
        begun_at_s: When it was made, monotonic seconds.
        told_all: Set when all of it has been sent.
        has_begun: Whether its first frames are there.
    """

    def __init__(
        self, session: AsyncSession, caller: Caller, *, on_segment: Callable[[LiveSession, Segment], None]
    ) -> None:
        self.session = session
        self.caller = caller
        self.is_over = False
        self.attachment: Attachment | None = None
        self.begun_at_s = time.monotonic()
        self.has_begun = False
        self.told_all = asyncio.Event()
        self._on_segment = on_segment
        self._kept: deque[tuple[int, Segment]] = deque()
        self._next_number = 0
        self._known: OrderedDict[str, None] = OrderedDict()
        self._changed = asyncio.Event()
        # From here on only what its client has said to have arrived counts as seen.
        outbox = session.session.outbox
        outbox.viewed(outbox.viewer_s(time.monotonic()))

    @property
    def session_id(self) -> str:
        """Its id."""
        return self.session.session.session_id

    @property
    def newest(self) -> int:
        """Number of its newest message; -1 before the first."""
        return self._next_number - 1

    async def run(self) -> None:
        """Take what the session tells, to its end."""
        try:
            await self._take()
        except Exception as error:  # noqa: BLE001 - whatever it was, its client is told, and others go on
            _LOG.exception("session %s could not be sent", self.session_id)
            self._put(Segment(self._failed(error)))
            await self.session.close()
        finally:
            self.is_over = True
            self._wake()

    def attach(self, received: int) -> Attachment:
        """Take the place of whatever connection there is, and say what has arrived over it.

        Args:
            received: Number of the last message that arrived; -1 for none.

        Raises:
            ApiError: 400, there has been no such message; 410, what follows it is kept no longer.
        """
        self._check(received)
        oldest = self._kept[0][0] if self._kept else self._next_number
        if received + 1 < oldest:
            raise ApiError(
                410, f"what follows message {received} has been acknowledged and is gone", code="messages_gone",
                param="received", allowed=f"{oldest - 1} to {self.newest}", nearest=oldest - 1,
            )  # fmt: skip
        if self.attachment is not None:
            self.attachment.taken.set()
        self.attachment = Attachment()
        if received >= 0:
            self.arrived(received)
        return self.attachment

    def detach(self, attachment: Attachment) -> bool:
        """Note that a connection is closed; say whether there is none now."""
        if self.attachment is attachment:
            self.attachment = None
        return self.attachment is None

    def arrived(self, number: int, viewed_s: float | None = None) -> None:
        """Forget what has arrived, and let the stream go on as far beyond as it may.

        Args:
            number: Number of the last message that has.
            viewed_s: Where in the stream its viewer is; None for the end of what has arrived.

        Raises:
            ApiError: 400, there has been no such message.
        """
        self._check(number)
        while self._kept and self._kept[0][0] <= number:
            _, segment = self._kept.popleft()
            if segment.end_s is not None and viewed_s is None:
                self.session.session.viewed(segment.end_s)
        if viewed_s is not None:
            self.session.session.viewed(viewed_s)
        self._wake()

    async def follow(self, after: int) -> AsyncIterator[tuple[int, Segment]]:
        """Yield what is beyond a number and has not been acknowledged, as it comes, to the end of the session."""
        while True:
            change = self._changed
            waiting = [one for one in self._kept if one[0] > after]
            for number, segment in waiting:
                yield number, segment
                after = number
            if not waiting:
                if self.is_over:
                    self.told_all.set()
                    return
                await change.wait()

    def is_repeated(self, message_id: str | None) -> bool:
        """Tell whether a client's message has been taken before, over this connection or an earlier one."""
        return message_id is not None and message_id in self._known

    def took(self, message_id: str | None) -> None:
        """Note that a client's message has been taken."""
        if message_id is None:
            return
        self._known[message_id] = None
        while len(self._known) > _MAX_IDS:
            self._known.popitem(last=False)

    async def _take(self) -> None:
        writer = SegmentWriter()
        async for event in self.session.events():
            for segment in await asyncio.to_thread(writer.segments, event):
                self._put(segment)
            while len(self._kept) >= _MAX_KEPT:
                await self._changed.wait()

    def _failed(self, error: Exception) -> dict[str, Any]:
        event = SessionFailed(
            request_id=self.session_id,
            sequence=0,
            time_s=time.time(),
            error=type(error).__name__,
            message=describe_failure(error),
        )
        return event.model_dump(mode="json")

    def _check(self, number: int) -> None:
        if number > self.newest:
            raise ApiError(
                400, f"there has been no message {number}", code="invalid_value", param="received",
                allowed=f"up to {self.newest}", nearest=self.newest,
            )  # fmt: skip

    def _put(self, segment: Segment) -> None:
        self._kept.append((self._next_number, segment))
        self._next_number += 1
        self._on_segment(self, segment)
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
