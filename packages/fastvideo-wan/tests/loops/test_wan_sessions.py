"""Sessions of causal Wan on the engine: the same bits however they are interleaved, suspended, forked or cut."""

from __future__ import annotations

import pytest
import torch

from fastvideo_core.errors import ParameterError
from fastvideo_core.loop.chunks import PushText
from fastvideo_core.runtime.engine import Engine, RuntimeOptions
from fastvideo_core.runtime.scheduler.base import SchedulerConfig
from fastvideo_core.runtime.sessions import SessionOptions
from fastvideo_core.runtime.sessions.base import Cut, LoggedPush
from fastvideo_testing.streams import Reader, same_chunks

NUM_CHUNKS = 6
FIRST, SECOND = "a red circle moving right", "a blue square"


@pytest.fixture(scope="module")
def engine(causal_instance):
    with Engine(causal_instance("sink")) as opened:
        yield opened
        for session in opened.sessions:
            session.close()
        pool = opened.caches.slabs["chunk_kv"]
        assert pool.num_free == pool.num_slabs, "slabs leaked"


@pytest.fixture
def begin(engine):
    def make(prompt=FIRST, *, exact=True, parked=None, seed=5, **given):
        options = SessionOptions(**{"buffer_s": 1000.0, "num_chunks": NUM_CHUNKS, **given})
        return engine.session(prompt, exact=exact, options=options, parked=parked, seed=seed)

    return make


@pytest.fixture(scope="module")
def steered(engine):
    """A stream that gets a new prompt after its second chunk, and its log."""
    options = SessionOptions(buffer_s=1000.0, num_chunks=NUM_CHUNKS)
    session = engine.session(FIRST, exact=True, options=options, seed=5)
    reader = Reader(session)
    reader.read(3)
    session.push_text(SECOND)
    chunks = reader.read()
    return chunks, session.log


def test_a_session_has_the_frames_of_the_same_request(engine, begin):
    whole = engine.generate(FIRST, exact=True, num_frames=13, seed=5).video.frames
    chunks = Reader(begin(num_chunks=2)).read()
    assert torch.equal(torch.cat(list(chunks.values())), torch.as_tensor(whole))
    told = Reader(begin(num_chunks=1))
    assert told.until("media.chunk").start_s == 0.0


def test_a_new_prompt_changes_what_comes_after_it_and_a_replay_gives_the_same_bits(begin, steered):
    chunks, log = steered
    plain = Reader(begin()).read()
    assert chunks.keys() == plain.keys()
    different = [number for number in chunks if not torch.equal(chunks[number], plain[number])]
    assert different and min(different) >= 2
    assert same_chunks(Reader(begin(replay=log)).read(), chunks)


def test_a_suspended_session_goes_on_with_the_same_bits(begin, steered, tmp_path):
    chunks, log = steered
    for place in ({}, {"offload": "disk", "folder": tmp_path}):
        session = begin(replay=log, **place)
        reader = Reader(session)
        reader.read(2)
        session.suspend()
        assert session.state in ("suspend", "terminate")
        if session.state == "suspend":
            session.resume()
        assert same_chunks(reader.read(), chunks)


def test_a_fork_has_the_same_past_and_goes_its_own_way(begin):
    session = begin(history_chunks=NUM_CHUNKS, num_chunks=None, buffer_s=0.0)
    reader = Reader(session)
    reader.read(5)  # exact decoding gives a piece for each latent frame, two a chunk
    options = SessionOptions(num_chunks=NUM_CHUNKS, buffer_s=1000.0)
    straight = Reader(session.fork(2, options=options)).read()
    other = session.fork(2, options=options)
    other.push_text(SECOND)
    steered = Reader(other).read()
    session.close()
    plain = Reader(begin()).read()
    later = {number: frames for number, frames in plain.items() if number in straight}
    assert same_chunks(straight, later)
    assert not same_chunks(straight, steered)


def test_a_chunk_that_is_cut_short_is_made_anew_with_the_same_bits(begin):
    plain = Reader(begin(num_chunks=3)).read()
    # Seven steps make the first chunk: the prompt, four levels, decoding and the commit pass; the piece is out by then.
    cut = Reader(begin(num_chunks=3, replay=(LoggedPush(9, Cut()),))).read()
    assert same_chunks(plain, cut)
    pushed = (LoggedPush(9, PushText(SECOND)), LoggedPush(9, Cut()))
    assert not same_chunks(plain, Reader(begin(num_chunks=3, replay=pushed)).read())


def test_interleaved_sessions_have_the_bits_that_they_have_alone(causal_instance, begin):
    prompts = (FIRST, SECOND, "x")
    alone = [Reader(begin(prompt, seed=number)).read() for number, prompt in enumerate(prompts)]
    options = RuntimeOptions(SchedulerConfig(max_running=3, max_batch=1))
    with Engine(causal_instance("sink"), options=options) as engine:
        given = SessionOptions(num_chunks=NUM_CHUNKS, buffer_s=1000.0)
        crowd = [engine.session(p, exact=True, options=given, seed=n) for n, p in enumerate(prompts)]
        readers = [Reader(session).read() for session in crowd]
    assert all(same_chunks(one, other) for one, other in zip(alone, readers, strict=True))


def test_sessions_that_share_calls_differ_by_rounding_alone(begin):
    sessions = [begin(exact=False, seed=number) for number in range(3)]
    together = [Reader(session).read() for session in sessions]
    for number, chunks in enumerate(together):
        alone = Reader(begin(exact=False, seed=number)).read()
        assert chunks.keys() == alone.keys()
        for index, frames in chunks.items():
            assert (frames.int() - alone[index].int()).abs().max() <= 1


def test_frames_larger_than_the_slabs_are_refused(engine):
    with pytest.raises(ParameterError, match="width") as caught:
        engine.session(FIRST, height=48, width=32)
    assert caught.value.nearest == 16
