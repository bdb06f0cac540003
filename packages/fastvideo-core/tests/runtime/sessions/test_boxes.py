from __future__ import annotations

import threading

import pytest
import torch

from fastvideo_core.errors import SessionError
from fastvideo_core.loop.chunks import PushImage, PushText
from fastvideo_core.request.events import MediaChunk
from fastvideo_core.runtime.sessions.base import Cut, LoggedPush
from fastvideo_core.runtime.sessions.boxes import MAX_PUSHES, Inbox, Outbox


def chunk(index, start_s, end_s, *, is_preview=False):
    return MediaChunk(
        request_id="s", sequence=index, time_s=0.0, stream="video", index=index, start_s=start_s, end_s=end_s,
        is_preview=is_preview,
    )  # fmt: skip


def test_pushes_come_out_in_order_and_those_of_a_log_at_their_step():
    inbox = Inbox((LoggedPush(3, PushText("three")), LoggedPush(5, PushText("five"))))
    images = [PushImage(torch.zeros(2, 2, 3, dtype=torch.uint8)) for _ in range(2)]
    inbox.put(images[0], Cut())
    inbox.put(images[1])
    assert inbox.take(0) == [images[0], Cut(), images[1]]
    assert inbox.take(2) == []
    assert inbox.take(4) == [PushText("three")]
    assert [one.step for one in inbox.waiting()] == [5]
    assert inbox.take(9) == [PushText("five")]
    assert inbox.is_empty


def test_pushes_that_belong_together_are_taken_together_or_not_at_all():
    inbox = Inbox()
    for _ in range(MAX_PUSHES - 1):
        inbox.put(Cut())
    with pytest.raises(SessionError, match="63 pushes wait; allowed: 64"):
        inbox.put(PushText("a"), Cut())
    inbox.put(Cut())
    assert len(inbox.take(0)) == MAX_PUSHES


def test_reading_media_moves_the_viewer_and_previews_do_not():
    told = []
    outbox = Outbox(lambda: told.append(1))
    outbox.put(chunk(0, 0.0, 0.5, is_preview=True))
    outbox.put(chunk(0, 0.0, 0.5))
    outbox.put("an event")
    outbox.get(1)
    assert (outbox.viewer_s(0.0), told) == (0.0, [])
    outbox.get(1)
    assert (outbox.viewer_s(0.0), told) == (0.5, [1])
    outbox.viewed(0.25)
    assert (outbox.viewer_s(0.0), told) == (0.25, [1, 1])
    outbox.viewed(99.0)  # nobody has seen what has not been read
    assert outbox.viewer_s(0.0) == 0.5


def test_a_frozen_box_gives_nothing_out_and_loses_nothing():
    outbox = Outbox(lambda: None)
    outbox.put(chunk(0, 0.0, 0.5))
    outbox.put("an event")
    outbox.freeze()
    assert outbox.take() == (False, None)
    with pytest.raises(TimeoutError):
        outbox.get(0.01)
    assert [event.index for event in outbox.pending()] == [0]
    outbox.drop_media()
    outbox.thaw()
    assert outbox.get(1) == "an event"


def test_the_end_is_told_to_everybody_who_waits():
    outbox, got = Outbox(lambda: None), []
    threads = [threading.Thread(target=lambda: got.append(outbox.get(30))) for _ in range(2)]
    for thread in threads:
        thread.start()
    outbox.end()
    for thread in threads:
        thread.join(30)
    assert got == [None, None]
    assert outbox.take() == (True, None)
