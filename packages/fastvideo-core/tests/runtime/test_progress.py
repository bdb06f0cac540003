from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastvideo_core.loop.work import StreamChunk
from fastvideo_core.request.base import Request, TextPart
from fastvideo_core.runtime import progress
from fastvideo_core.runtime.prepare import prepare_request
from fastvideo_core.runtime.progress import EventLog, Progress
from fastvideo_testing.tiny import tiny_card

PROMPT = TextPart(name="prompt", text="x")
REQUEST = Request(task="text_to_video", inputs=(PROMPT,), node_overrides={"decode": {"fps": 4}})
PREPARED = prepare_request(tiny_card(Path("weights")), REQUEST)


class Clock:
    now_s = 0.0

    def monotonic(self):
        return self.now_s

    def time(self):
        return self.now_s


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


def begin():
    events = []
    return Progress(PREPARED, EventLog(PREPARED, lambda make: events.append(make()))), events


def chunk(index, *, is_final=False, kind="media", stream="video"):
    frames = torch.zeros(2, 16, 24, 3, dtype=torch.uint8)
    return StreamChunk(stream, kind, index, frames, index / 4, (index + 1) / 4, is_final)


def commit(tracked, node, step, num_steps, *chunks):
    tracked.committed(node, step + 1, num_steps, chunks)


def test_a_generative_node_counts_eight_times(clock):
    tracked, events = begin()
    tracked.started()
    clock.now_s = 1.0
    commit(tracked, "text", 0, 1)
    clock.now_s = 3.0
    commit(tracked, "denoise", 1, 4)
    assert [event.type for event in events] == ["request.started", "request.progress", "request.progress"]
    first, second = events[1:]
    assert (first.node, first.step, first.num_steps) == ("text", 1, 1)
    assert first.fraction == pytest.approx(1 / 10)
    assert first.remaining_s == pytest.approx(9.0)
    assert second.fraction == pytest.approx(1 / 10 + 8 / 10 / 2)
    assert second.remaining_s == pytest.approx(3.0)


def test_a_node_of_unknown_length_counts_when_it_has_ended(clock):
    tracked, events = begin()
    tracked.started()
    commit(tracked, "denoise", 5, None)
    assert (events[-1].fraction, events[-1].remaining_s) == (0.0, None)
    tracked.finished("denoise")
    commit(tracked, "decode", 0, 2)
    assert events[-1].fraction == pytest.approx(0.8 + 0.05)


def test_the_beginning_is_told_once(clock):
    tracked, events = begin()
    tracked.started()
    tracked.started()
    assert len(events) == 1


@settings(max_examples=50)
@given(st.lists(st.tuples(st.sampled_from(["text", "denoise", "decode", "end"]), st.integers(0, 4)), max_size=12))
def test_progress_never_goes_back(moves):
    tracked, events = begin()
    tracked.started()
    for node, step in moves:
        if node == "end":
            tracked.finished("denoise")
        else:
            commit(tracked, node, step, 5)
    fractions = [event.fraction for event in events[1:]]
    assert fractions == sorted(fractions)
    assert all(0 <= fraction <= 1 for fraction in fractions)
    assert all(event.remaining_s is None or event.remaining_s >= 0 for event in events[1:])
    assert [event.sequence for event in events] == list(range(len(events)))


def test_a_stream_is_announced_and_ended(clock):
    tracked, events = begin()
    commit(tracked, "decode", 0, 2, chunk(0))
    commit(tracked, "decode", 1, 2, chunk(1, is_final=True), chunk(0, kind="preview", stream="small"))
    commit(tracked, "decode", 1, 2, StreamChunk("trace", "trace", 0, torch.zeros(1)))
    told = [event for event in events if event.type != "request.progress"]
    assert [(event.type, event.stream) for event in told] == [
        ("media.init", "video"), ("media.chunk", "video"), ("media.chunk", "video"), ("media.complete", "video"),
        ("media.init", "small"), ("media.chunk", "small"),
    ]  # fmt: skip
    init, first, second, end, _, preview = told
    assert (init.codec, init.width, init.height, init.fps) == ("rgb24", 24, 16, 4.0)
    assert (first.index, first.start_s, first.end_s, first.is_preview) == (0, 0.0, 0.25, False)
    assert first.data.shape == (2, 16, 24, 3)
    assert (second.index, end.num_chunks, preview.is_preview) == (1, 2, True)


def test_events_are_numbered_and_dated(clock):
    events = []
    log = EventLog(PREPARED, lambda make: events.append(make()))
    clock.now_s = 5.0
    log.accepted()
    log.artifact("video", "video")
    log.failed(ValueError("two\nlines"))
    log.cancelled("why")
    log.completed(("video",), 2.0)
    assert [(event.sequence, event.time_s, event.request_id) for event in events] == [
        (number, 5.0, REQUEST.request_id) for number in range(5)
    ]
    accepted, _, failed, cancelled, completed = events
    assert (accepted.card, accepted.task) == ("tiny", "text_to_video")
    assert accepted.parameters["fps"] == {"value": 8.0, "source": "card"}
    assert (failed.error, failed.message, cancelled.reason) == ("ValueError", "two lines", "why")
    assert (completed.artifacts, completed.duration_s) == (("video",), 2.0)
