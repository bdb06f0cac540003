"""Sessions as their callers see them: streams that are steered, held, suspended, forked and ended."""

from __future__ import annotations

import asyncio
import time

import pytest
import torch

from fastvideo_core import Engine
from fastvideo_core.errors import (
    CacheFullError,
    ChunkGoneError,
    InputError,
    LoopMismatchError,
    ParameterError,
    PromptError,
    ResourceError,
    SessionEndedError,
    SessionError,
    SessionLimitError,
    StateError,
)
from fastvideo_core.loop.chunks import PushAction, PushText
from fastvideo_core.runtime.engine import RuntimeOptions
from fastvideo_core.runtime.sessions import AsyncSession, SessionLimits, SessionOptions
from fastvideo_core.runtime.sessions.base import Cut, LoggedPush
from fastvideo_core.runtime.sessions.boxes import MAX_PUSHES
from fastvideo_core.runtime.sessions.parked import read_parked, write_parked
from fastvideo_testing.streams import TIMEOUT_S, Reader, same_chunks, wait_until
from fastvideo_testing.tiny import tiny_card, tiny_causal_card

PARAMETERS = {"seed": 5, "num_inference_steps": 2, "height": 16, "width": 16}


def test_a_stream_has_the_frames_of_the_same_request(engine, begin):
    whole = engine.generate("a red circle", exact=True, num_chunks=4, **PARAMETERS).video.frames
    chunks = Reader(begin(num_chunks=4)).read()
    assert [len(frames) for frames in chunks.values()] == [5, 8, 8, 8]
    assert torch.equal(torch.cat(list(chunks.values())), torch.as_tensor(whole))


def test_events_tell_of_the_whole_session(begin):
    session = begin(num_chunks=2)
    told = list(session.events(TIMEOUT_S))
    assert [event.sequence for event in told] == list(range(len(told)))
    assert [event.type for event in told] == [
        "session.created", "media.init", "media.chunk", "session.chunk", "media.chunk", "session.chunk",
        "media.complete", "session.ended",
    ]  # fmt: skip
    assert (told[-1].reason, told[-1].num_chunks) == ("horizon", 2)
    assert (told[2].start_s, told[2].end_s, told[4].start_s) == (0.0, 0.625, 0.625)
    assert session.state == "terminate"


def test_a_prompt_takes_effect_with_the_next_chunk_and_a_replay_gives_the_same_bits(begin, alone):
    session = begin()
    reader = Reader(session)
    chunks = reader.read(2)
    session.push_text("a blue square")
    pushed = reader.until("session.pushed")
    while len(chunks) < 8:
        reader.read(len(chunks) + 1)
    session.close()
    boundary = pushed.chunk + 1
    before = {number: frames for number, frames in chunks.items() if number < boundary}
    assert same_chunks(before, {number: alone[number] for number in before})
    assert not torch.equal(chunks[boundary + 1], alone[boundary + 1])
    assert [one.push for one in session.log] == [PushText("a blue square")]
    again = Reader(begin(replay=session.log, num_chunks=8)).read()
    assert same_chunks({number: chunks[number] for number in range(8)}, again)


def test_a_chunk_that_is_cut_short_begins_anew_and_leaves_no_slab(begin, alone):
    # After one of the two denoising steps of the second chunk: five steps make the first one.
    cut = begin(num_chunks=4, replay=(LoggedPush(5, Cut()),))
    assert same_chunks(Reader(cut).read(), {number: alone[number] for number in range(4)})
    steered = begin(num_chunks=4, replay=(LoggedPush(5, PushText("a blue square")), LoggedPush(5, Cut())))
    chunks = Reader(steered).read()
    assert torch.equal(chunks[0], alone[0])
    assert not torch.equal(chunks[1], alone[1])  # it did not wait for the next chunk
    plain = Reader(begin(num_chunks=4, replay=(LoggedPush(4, PushText("a blue square")),))).read()
    assert same_chunks(chunks, plain)


def test_an_action_changes_what_comes_and_others_are_refused_in_an_event(begin, alone):
    session = begin(num_chunks=3, buffer_s=0.0)  # it waits for its reader, so that it has not ended yet
    session.push_action([[0.5]])
    assert not same_chunks(Reader(session).read(), {number: alone[number] for number in range(3)})
    assert isinstance(session.log[0].push, PushAction)
    wrong = begin(num_chunks=3, buffer_s=0.0)
    wrong.push_action([[0.5, 0.5]])
    refused = Reader(wrong).until("session.refused")
    assert (refused.kind, refused.error) == ("action", "InputError")
    assert "rows of one number" in refused.message
    assert Reader(wrong).read()  # and the stream goes on


def test_bad_pushes_are_refused_where_they_are_made(begin):
    session = begin()
    with pytest.raises(PromptError, match="the text is empty"):
        session.push_text("  ")
    with pytest.raises(PromptError, match="tokens"):
        session.push_text("word " * 200)
    with pytest.raises(InputError, match="takes none; allowed: text, action"):
        session.push_image(torch.zeros(8, 8, 3, dtype=torch.uint8).numpy())
    session.close()
    for late in (
        lambda: session.push_text("a blue square"),
        session.pause,
        session.resume,
        session.suspend,
        session.cut,
    ):
        with pytest.raises(SessionEndedError, match="has ended"):
            late()
    session.close()  # again, it does nothing


def test_a_push_beyond_the_horizon_is_refused(begin):
    session = begin(num_chunks=2)
    Reader(session).read()
    with pytest.raises(SessionEndedError):
        session.push_text("a blue square")


def test_paused_no_chunk_is_begun(begin, alone):
    session = begin(num_chunks=6)
    reader = Reader(session)
    chunks = reader.read(1)
    session.pause()
    held = reader.until("session.held")
    assert held.reason == "caller"
    time.sleep(0.05)
    num_made = session.chunk
    time.sleep(0.05)
    assert session.chunk == num_made == len(chunks)
    session.resume()
    reader.read()
    assert same_chunks(chunks, {number: alone[number] for number in range(6)})


def test_nothing_is_made_further_ahead_than_the_buffer_whoever_does_not_read(begin):
    session = begin(buffer_s=2.0)  # at 8 frames a second: 0.625 s, then 1 s a chunk
    wait_until(lambda: session.chunk == 2)
    time.sleep(0.2)
    assert session.chunk == 2
    assert sum(event.end_s - event.start_s for event in session.outbox.pending()) <= 2.0
    Reader(session).read(1)  # there is room for another one
    wait_until(lambda: session.chunk == 3)
    time.sleep(0.2)
    assert session.chunk == 3
    session.close()


def test_a_viewer_that_says_where_it_is_is_believed(begin):
    session = begin(buffer_s=1.0)
    session.viewed(0.0)
    reader = Reader(session)
    chunks = reader.read(1)
    time.sleep(0.2)
    assert session.chunk == 1  # it was read, and not seen yet
    session.viewed(0.625)
    reader.read(len(chunks) + 1)
    assert sorted(chunks) == [0, 1]
    session.close()


def test_a_paced_viewer_gets_no_more_than_time_allows(begin):
    session = begin(buffer_s=1.0, is_paced=True)
    began = time.monotonic()
    Reader(session).read(3)  # 2.625 s of video, of which 1 s may be ahead
    assert time.monotonic() - began >= 0.6
    session.close()


@pytest.mark.parametrize("offload", ["host", "disk"])
def test_a_suspended_session_holds_nothing_and_comes_back_with_the_same_bits(engine, begin, alone, tmp_path, offload):
    pool = engine.caches.slabs["chunk_kv"]
    session = begin(num_chunks=8, offload=offload, folder=tmp_path)
    reader = Reader(session)
    chunks = reader.read(3)
    session.suspend()
    assert session.state == "suspend"
    assert pool.num_free == pool.num_slabs
    assert bool(list(tmp_path.iterdir())) == (offload == "disk")
    told = reader.until("session.suspended")
    assert told.chunk == session.chunk == len(chunks)
    assert told.num_bytes > 0
    session.resume()
    assert session.state == "execution"
    reader.read()
    assert same_chunks(chunks, alone)
    assert list(tmp_path.iterdir()) == []


def test_an_idle_session_is_suspended_and_woken_by_its_viewer(begin, alone):
    session = begin(num_chunks=8, buffer_s=1.0, suspend_after_s=0.05)
    wait_until(lambda: session.state == "suspend")
    assert same_chunks(Reader(session).read(), alone)


def test_a_fork_shares_its_past_and_both_go_their_own_way(engine, begin, alone):
    session = begin(history_chunks=3)
    reader = Reader(session)
    chunks = reader.read(5)
    session.pause()
    reader.until("session.held")
    kept = session.kept_chunks
    assert len(kept) == 3 or len(kept) == 4
    fork = session.fork(kept[0], options=SessionOptions(num_chunks=8, buffer_s=1000.0))
    assert fork.session_id != session.session_id
    created = Reader(fork).until("session.created")
    assert (created.parent, created.chunk) == (session.session_id, kept[0])
    mine = Reader(fork).read()
    assert same_chunks(mine, {number: alone[number] for number in range(kept[0], 8)})
    other = session.fork(kept[0], options=SessionOptions(num_chunks=8, buffer_s=1000.0))
    other.push_text("a blue square")
    changed = Reader(other).read()
    assert changed.keys() == mine.keys()
    assert not torch.equal(changed[7], mine[7])
    session.resume()
    while max(chunks) < 7:
        reader.read(len(chunks) + 1)
    assert all(torch.equal(chunks[number], alone[number]) for number in alone)
    session.close()


def test_a_fork_from_a_chunk_that_is_gone_says_which_there_are(begin):
    session = begin(history_chunks=1)
    reader = Reader(session)
    reader.read(4)
    session.pause()
    reader.until("session.held")
    with pytest.raises(ChunkGoneError, match="chunk 0 is not kept; kept: ") as caught:
        session.fork(0)
    assert caught.value.kept == session.kept_chunks
    with pytest.raises(ChunkGoneError):
        session.fork(99)
    session.close()
    with pytest.raises(SessionEndedError):
        session.fork()


def test_a_suspended_session_can_be_forked(begin, alone):
    session = begin(history_chunks=3)
    Reader(session).read(2)
    session.suspend()
    (chunk,) = session.kept_chunks
    fork = session.fork(chunk, options=SessionOptions(num_chunks=8, buffer_s=1000.0))
    assert same_chunks(Reader(fork).read(), {number: alone[number] for number in range(chunk, 8)})
    with pytest.raises(ChunkGoneError):
        session.fork(chunk - 1)
    session.close()


def test_a_snapshot_goes_on_elsewhere(begin, alone, tmp_path):
    session = begin()
    reader = Reader(session)
    reader.read(2)
    session.pause()
    reader.until("session.held")
    write_parked(session.snapshot(), tmp_path / "snapshot.json")
    session.close()
    parked = read_parked(tmp_path / "snapshot.json")
    other = begin(parked=parked, num_chunks=8)
    assert same_chunks(Reader(other).read(), {number: alone[number] for number in range(parked.place.chunk, 8)})


def test_a_state_that_was_damaged_or_is_another_loop_s_is_refused(engine, begin, tmp_path):
    session = begin()
    Reader(session).read(2)
    session.suspend()
    parked = session.snapshot()
    session.close()
    foreign = {**parked.document, "loop_id": "denoise"}
    with pytest.raises(StateError, match="in loop denoise, which card tiny-causal does not have"):
        begin(parked=type(parked)(foreign, parked.tensors))
    with pytest.raises(StateError):
        begin(parked=type(parked)(parked.document, {}))
    write_parked(parked, tmp_path / "s.json")
    (tensors,) = tmp_path.glob("*.safetensors")
    data = bytearray(tensors.read_bytes())
    data[-1] ^= 1
    tensors.write_bytes(data)
    with pytest.raises(StateError, match="corrupt"):
        read_parked(tmp_path / "s.json")
    assert engine.sessions == ()


def test_sessions_in_a_crowd_have_the_bits_that_they_have_alone(begin, alone):
    crowd = [begin(num_chunks=8) for _ in range(4)]
    for session in crowd:
        assert same_chunks(Reader(session).read(), alone)


def test_limits_are_kept(causal_card):
    limits = SessionLimits(max_live=2, max_suspended=1, max_total=3)
    quiet = SessionOptions(buffer_s=0.0)
    with Engine.open(causal_card, options=RuntimeOptions(sessions=limits)) as engine:
        one, two = (engine.session("a red circle", options=quiet, **PARAMETERS) for _ in range(2))
        with pytest.raises(SessionLimitError, match="2 sessions are in execution; allowed: 2"):
            engine.session("a red circle", options=quiet, **PARAMETERS)
        one.suspend()
        three = engine.session("a red circle", options=quiet, **PARAMETERS)
        with pytest.raises(SessionLimitError, match="3 sessions are there; allowed: 3"):
            engine.session("a red circle", options=quiet, **PARAMETERS)
        with pytest.raises(SessionLimitError, match="1 sessions are suspended"):
            two.suspend()
        with pytest.raises(SessionLimitError, match="2 sessions are in execution"):
            one.resume()
        three.close()
        one.resume()
        with pytest.raises(InputError, match="a session of this id is there"):
            engine.session("a red circle", options=quiet, session_id=one.session_id, **PARAMETERS)
        assert len(engine.sessions) == 2
    assert engine.sessions == ()


def test_a_pool_that_is_full_makes_sessions_wait_and_what_never_fits_is_refused(causal_folder):
    quiet = SessionOptions(num_chunks=2, buffer_s=1000.0)
    with Engine.open(tiny_causal_card(causal_folder, num_slabs=7)) as engine:
        sessions = [engine.session("a red circle", options=quiet, **PARAMETERS) for _ in range(3)]
        assert all(len(Reader(session).read()) == 2 for session in sessions)
        with pytest.raises(ResourceError, match="needs 9 blocks of cache chunk_kv; there are 7"):
            engine.session("a red circle", options=SessionOptions(history_chunks=2), **PARAMETERS)
        assert engine.sessions == ()


def test_a_pool_that_runs_full_under_way_ends_one_session_with_a_typed_error(engine, begin, alone):
    pool = engine.caches.slabs["chunk_kv"]
    session = begin()
    Reader(session).read(1)
    hogged = pool.take(pool.num_free)
    with pytest.raises(CacheFullError, match="0 of 64 are free"):
        for _ in session.chunks(TIMEOUT_S):
            pass
    assert session.state == "terminate"
    assert isinstance(session.error, CacheFullError)
    del hogged
    assert same_chunks(Reader(begin(num_chunks=8)).read(), alone)


def test_pushes_that_nobody_can_apply_are_bounded(begin):
    session = begin(buffer_s=0.0)
    Reader(session).until("session.chunk")
    for number in range(MAX_PUSHES):
        session.outbox.put(number)
        session.side.inbox.put(PushText(f"prompt {number}"))
    with pytest.raises(SessionError, match="pushes wait; allowed: 64"):
        session.push_text("one too many")
    session.close()


def test_closing_takes_effect_at_a_step_or_at_the_chunk(engine, begin):
    pool = engine.caches.slabs["chunk_kv"]
    for at in ("step", "chunk"):
        session = begin()
        Reader(session).read(1)
        session.close(at=at)
        assert session.state == "terminate"
        assert pool.num_free == pool.num_slabs
        told = list(session.events(TIMEOUT_S))
        assert [event.type for event in told[-2:]] == ["media.complete", "session.ended"]


def test_a_session_ends_with_its_engine(causal_card):
    with Engine.open(causal_card) as engine:
        live = engine.session("a red circle", options=SessionOptions(buffer_s=1000.0), **PARAMETERS)
        suspended = engine.session("a red circle", **PARAMETERS)
        suspended.suspend()
    assert [live.state, suspended.state] == ["terminate", "terminate"]
    with pytest.raises(ResourceError, match="the engine is closed"):
        engine.session("a red circle", **PARAMETERS)


def test_options_that_make_no_sense_are_refused():
    for wrong in (
        {"num_chunks": 0},
        {"history_chunks": -1},
        {"buffer_s": -1.0},
        {"offload": "cloud"},
        {"offload": "disk"},
    ):
        with pytest.raises(ParameterError):
            SessionOptions(**wrong)
    with pytest.raises(ParameterError):
        SessionLimits(max_live=-1)


def test_a_card_without_streams_says_so(causal_folder):
    with Engine.open(tiny_card(causal_folder)) as engine, pytest.raises(LoopMismatchError, match="makes streams"):
        engine.session("a red circle")


def test_requests_and_sessions_share_an_engine(engine, begin, alone):
    session = begin(num_chunks=8)
    request = engine.make_request("a red circle", exact=True, parameters={"num_chunks": 2, **PARAMETERS})
    handle = engine.submit(request)
    assert same_chunks(Reader(session).read(), alone)
    assert handle.result(TIMEOUT_S).video.frames.shape[0] == 13


def test_in_coroutines_nothing_blocks(engine, begin, alone):
    async def run():
        session = await AsyncSession.open(lambda: begin(num_chunks=8))
        ticks, chunks = 0, {}

        async def tick():
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0.001)

        ticking = asyncio.create_task(tick())
        async with session:
            async for chunk in session.chunks():
                chunks[chunk.index] = chunk.data
                if chunk.index == 2:
                    await session.suspend()
                    assert session.state == "suspend"
                    await session.resume()
        ticking.cancel()
        return chunks, ticks

    chunks, ticks = asyncio.run(run())
    assert same_chunks(chunks, alone)
    assert ticks > 0
