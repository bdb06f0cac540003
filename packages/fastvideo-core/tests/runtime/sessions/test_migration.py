"""Sessions that move between two engines of one process: refused, damaged, lost on their way, or arrived."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from fastvideo_core import Engine
from fastvideo_core.errors import PeerLostError, SessionEndedError, SessionError, SessionLimitError, StateError
from fastvideo_core.loop.chunks import PushAction
from fastvideo_core.runtime.engine import RuntimeOptions
from fastvideo_core.runtime.sessions import SessionLimits, SessionOptions
from fastvideo_core.runtime.sessions.migration import receive_session, recover, save_session, send_session
from fastvideo_core.runtime.sessions.vault import SessionVault
from fastvideo_core.transport import LocalTransport, Message
from fastvideo_testing.streams import TIMEOUT_S, Reader, same_chunks

PARAMETERS = {"seed": 5, "num_inference_steps": 2, "height": 16, "width": 16}


@pytest.fixture
def vault(tmp_path):
    with SessionVault(tmp_path / "vault") as opened:
        yield opened


@pytest.fixture
def other(causal_card):
    """The engine that sessions move to."""
    with Engine.open(causal_card) as opened:
        yield opened


@pytest.fixture
def channels():
    transport = LocalTransport()
    listener = transport.listen()
    here = transport.connect(listener.address, timeout_s=1)
    return here, listener.accept(timeout_s=1)


def move(session, other, vault, channels):
    with ThreadPoolExecutor(1) as pool:
        arriving = pool.submit(receive_session, other, channels[1], vault, owner="b", timeout_s=TIMEOUT_S)
        send_session(session, channels[0], vault, owner="a", to="b", timeout_s=TIMEOUT_S)
        return arriving.result(TIMEOUT_S)


def test_a_session_moves_with_what_nobody_has_read(begin, other, vault, channels, alone):
    session = begin(num_chunks=8, buffer_s=2.0)
    save_session(session, vault, owner="a")
    before = Reader(session).read(2)
    moved = move(session, other, vault, channels)
    assert vault.owner_of(session.session_id) == "b"
    assert (session.state, moved.session_id) == ("terminate", session.session_id)
    rest = list(session.events(TIMEOUT_S))
    assert rest[-1].reason == "moved"
    assert not any(event.type == "media.chunk" for event in rest)
    after = Reader(moved).read()
    assert not before.keys() & after.keys()
    assert same_chunks({**before, **after}, alone)
    with pytest.raises(SessionEndedError):
        session.push_text("too late")


def test_pushes_and_pauses_move_along(begin, other, vault, channels):
    session = begin(num_chunks=8, buffer_s=2.0)
    save_session(session, vault, owner="a")
    Reader(session).read(2)
    session.pause()
    session.push_action([[0.25]])
    moved = move(session, other, vault, channels)
    reader = Reader(moved)
    assert reader.until("session.held").reason == "caller"
    moved.resume()
    reader.read()
    assert [one.push for one in moved.log] == [PushAction(((0.25,),))]


def test_where_it_is_refused_it_goes_on_where_it_was(begin, causal_card, vault, channels, alone):
    session = begin(num_chunks=8, buffer_s=2.0)
    save_session(session, vault, owner="a")
    reader = Reader(session)
    reader.read(2)
    full = RuntimeOptions(sessions=SessionLimits(max_total=0))
    with Engine.open(causal_card, options=full) as other, ThreadPoolExecutor(1) as pool:
        arriving = pool.submit(receive_session, other, channels[1], vault, owner="b", timeout_s=TIMEOUT_S)
        with pytest.raises(SessionError, match="is refused where it was sent: 0 sessions are there; allowed: 0"):
            send_session(session, channels[0], vault, owner="a", to="b", timeout_s=TIMEOUT_S)
        with pytest.raises(SessionLimitError, match="allowed: 0"):
            arriving.result(TIMEOUT_S)
    assert vault.owner_of(session.session_id) == "a"
    assert same_chunks(reader.read(), alone)


def test_a_state_that_arrives_changed_is_not_handed_over(begin, vault, channels, alone):
    session = begin(num_chunks=8, buffer_s=2.0)
    save_session(session, vault, owner="a")
    reader = Reader(session)
    reader.read(2)

    def answer():
        channels[1].receive(timeout_s=TIMEOUT_S)
        channels[1].send(Message({"digest": "something else"}), timeout_s=TIMEOUT_S)

    thread = threading.Thread(target=answer)
    thread.start()
    with pytest.raises(StateError, match="has arrived changed"):
        send_session(session, channels[0], vault, owner="a", to="b", timeout_s=TIMEOUT_S)
    thread.join()
    assert vault.owner_of(session.session_id) == "a"
    assert same_chunks(reader.read(), alone)


def test_a_session_that_cannot_be_saved_is_withdrawn_from_where_it_is_installed(
    begin, other, vault, channels, alone, monkeypatch
):
    session = begin(num_chunks=8, buffer_s=2.0)
    save_session(session, vault, owner="a")
    reader = Reader(session)
    reader.read(2)

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(vault, "save", full)
    with ThreadPoolExecutor(1) as pool:
        arriving = pool.submit(receive_session, other, channels[1], vault, owner="b", timeout_s=TIMEOUT_S)
        with pytest.raises(OSError, match="No space left"):
            send_session(session, channels[0], vault, owner="a", to="b", timeout_s=TIMEOUT_S)
        with pytest.raises(SessionError, match="stays where it was: .*No space left"):
            arriving.result(TIMEOUT_S)
    assert other.sessions == ()
    assert vault.owner_of(session.session_id) == "a"
    assert same_chunks(reader.read(), alone)
    monkeypatch.undo()
    channels[0].send(Message({"still": "of use"}), timeout_s=TIMEOUT_S)
    assert channels[1].receive(timeout_s=TIMEOUT_S).header == {"still": "of use"}


def test_while_it_moves_it_takes_nothing_and_nobody_else_moves_it(begin, vault, channels):
    session = begin(num_chunks=8, buffer_s=2.0)
    save_session(session, vault, owner="a")

    def look(point):
        if point == "sent":
            for late in (lambda: session.push_text("a blue square"), session.suspend, session.resume, session.freeze):
                with pytest.raises(SessionError, match="is being moved"):
                    late()
            channels[1].close()

    with pytest.raises(PeerLostError):
        send_session(session, channels[0], vault, owner="a", to="b", timeout_s=TIMEOUT_S, at=look)
    session.push_text("a blue square")
    assert Reader(session).read()


def test_a_session_that_is_another_s_cannot_be_saved_or_sent(begin, vault, channels):
    session = begin()
    save_session(session, vault, owner="b")
    with pytest.raises(SessionEndedError, match="is b"):
        save_session(session, vault, owner="a")
    with pytest.raises(SessionEndedError):
        send_session(session, channels[0], vault, owner="a", to="c", timeout_s=1)
    Reader(session).read(3)  # and goes on
    session.close()


def test_what_was_saved_before_the_first_chunk_begins_anew(begin, other, vault, alone):
    session = begin(num_chunks=8, buffer_s=0.0)
    save_session(session, vault, owner="a")
    session.close()
    (again,) = recover(other, vault, owner="a", seen={session.session_id: 3})
    assert same_chunks(Reader(again).read(), {number: alone[number] for number in range(3, 8)})
    vault.remove(again.session_id, owner="a")
    assert vault.owned_by("a") == ()
    with pytest.raises(StateError, match="no session"):
        vault.load(again.session_id)


def test_a_session_of_another_card_is_refused(begin, vault, causal_folder):
    from fastvideo_testing.tiny import tiny_causal_card

    session = begin()
    save_session(session, vault, owner="a")
    session.close()
    with Engine.open(tiny_causal_card(causal_folder, model_id="other")) as other:
        with pytest.raises(StateError, match="is of card tiny-causal; other is loaded here"):
            recover(other, vault, owner="a")
        assert other.sessions == ()


def test_a_suspended_session_moves_from_the_disk(begin, other, vault, channels, alone, tmp_path):
    session = begin(options=SessionOptions(num_chunks=8, buffer_s=2.0, offload="disk", folder=tmp_path / "d"))
    save_session(session, vault, owner="a")
    before = Reader(session).read(2)
    session.suspend()
    moved = move(session, other, vault, channels)
    assert same_chunks({**before, **Reader(moved).read()}, alone)
    assert list((tmp_path / "d").iterdir()) == []
