from __future__ import annotations

import threading
from functools import partial
from queue import SimpleQueue

import numpy as np
import pytest

from fastvideo_core.request import events
from fastvideo_core.runtime.event_stream import EventStream


def event(sequence, event_type=events.RequestProgress, **fields):
    if event_type is events.RequestProgress:
        fields = {"node": "denoise", "step": sequence, "fraction": 0.5, **fields}
    return partial(event_type, request_id="a", sequence=sequence, time_s=float(sequence), **fields)


def chunk(sequence, *, num_bytes, is_preview=False):
    frames = np.zeros(num_bytes, np.uint8)
    return event(
        sequence,
        events.MediaChunk,
        stream="video",
        index=sequence,
        start_s=0,
        end_s=1,
        is_preview=is_preview,
        data=frames,
    )


def fill(stream, count, first=0):
    for sequence in range(first, first + count):
        stream.put(event(sequence))


def numbers(found):
    return [one.sequence for one in found]


def test_what_was_put_is_read_from_anywhere():
    stream = EventStream()
    assert (stream.newest, stream.read(), stream.is_closed) == (-1, [], False)
    fill(stream, 5)
    assert numbers(stream.read()) == [0, 1, 2, 3, 4]
    assert numbers(stream.read(after=2)) == [3, 4]
    assert stream.read(after=4) == stream.read(after=99) == []
    assert stream.newest == 4
    stream.close()
    assert stream.is_closed
    assert numbers(stream.follow(after=1)) == [2, 3, 4]


def test_an_event_is_built_when_somebody_looks():
    built = []

    class Told(events.RequestWarning):
        def __init__(self, **fields):
            built.append(fields["sequence"])
            super().__init__(**fields)

    stream = EventStream()
    stream.put(event(0, Told, message="m"))
    stream.put(event(1, Told, message="m"))
    assert built == []
    assert stream.read(after=0) == stream.read(after=0)
    assert built == [1, 1]


def test_one_that_was_built_already_is_that_one():
    stream, make = EventStream(), event(0)
    stream.put(make, given := make())
    assert stream.read()[0] is given


def test_who_follows_waits_for_what_comes():
    stream, seen = EventStream(), SimpleQueue()
    reader = threading.Thread(target=lambda: [seen.put(one) for one in stream.follow()], daemon=True)
    reader.start()
    for number in range(3):
        reader.join(0.02)  # by then it waits
        assert reader.is_alive()
        fill(stream, 1, first=number)
        assert seen.get(timeout=10).sequence == number
    stream.close()
    reader.join(10)
    assert not reader.is_alive()
    assert seen.empty()


def test_readers_at_different_paces_miss_nothing():
    stream = EventStream()
    counts = []

    def read():
        counts.append(numbers(stream.follow()))

    readers = [threading.Thread(target=read) for _ in range(8)]
    for reader in readers:
        reader.start()
    fill(stream, 2000)
    stream.close()
    for reader in readers:
        reader.join(30)
    assert counts == [list(range(2000))] * 8


def test_listeners_are_woken_until_they_stop_and_one_that_fails_harms_nobody(caplog):
    stream, calls = EventStream(), []

    def fails():
        raise ValueError("mine")

    stream.listen(fails)
    stop = stream.listen(lambda: calls.append(stream.newest))
    fill(stream, 2)
    stop()
    fill(stream, 1, first=2)
    stream.close()
    assert calls == [0, 1]
    assert numbers(stream.read()) == [0, 1, 2]
    assert "a listener of events failed" in caplog.text


def test_of_too_many_the_oldest_progress_goes_and_the_rest_stays():
    stream = EventStream(max_events=10)
    stream.put(event(0, events.RequestStarted))
    fill(stream, 40, first=1)
    stream.put(event(41, events.ArtifactCreated, name="video", kind="video"))
    kept = numbers(stream.read())
    assert len(kept) <= 10
    assert (kept[0], kept[-1]) == (0, 41)
    assert kept[1:] == list(range(kept[1], 42))
    assert numbers(stream.read(after=20)) == kept[1:]


def test_too_many_bytes_take_the_data_of_the_oldest_chunks():
    stream = EventStream(max_data_bytes=250)
    for sequence in range(4):
        stream.put(chunk(sequence, num_bytes=100))
        stream.read(after=2)
    assert [one.data is None for one in stream.read()] == [True, True, False, False]
    assert numbers(stream.read()) == [0, 1, 2, 3]


@pytest.mark.parametrize("is_read", [True, False])
def test_a_chunk_without_its_data_is_otherwise_the_same(is_read):
    stream = EventStream(max_data_bytes=50)
    stream.put(chunk(0, num_bytes=40, is_preview=True))
    before = stream.read()[0] if is_read else None
    stream.put(chunk(1, num_bytes=40))
    (after, _) = stream.read()
    assert after.data is None
    assert after.is_preview
    assert before is None or before.model_dump() == after.model_dump()
