"""Sessions over a WebSocket, on the tiny family's streams."""

from __future__ import annotations

import hashlib
import io
import json
import re
import time
from contextlib import contextmanager
from itertools import count, pairwise
from pathlib import Path

import av
import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from fastvideo_core.request.events import parse_event
from fastvideo_core.request.media.fragments import FragmentEncoder
from fastvideo_core.runtime.sessions import SessionOptions

SIZE = {"size": "32x32", "num_inference_steps": 2, "seed": 7}


class Peer:
    """A client that writes down what it hears."""

    def __init__(self, socket):
        self.socket = socket
        self.media = b""
        self.events = []
        self.numbers = []
        self.sizes = []
        self.replies = []
        self.mime = None
        self.ids = count()

    def say(self, kind, **fields):
        self.socket.send(json.dumps({"type": f"session.{kind}", **fields}))

    def hear(self, timeout_s=30):
        """Take one message; return it, with its bytes."""
        message = json.loads(self.socket.recv(timeout_s))
        if message["type"] in ("reply", "error"):
            self.replies.append(message)
            return message
        number, num_bytes = message.pop("number"), message.pop("num_bytes")
        self.numbers.append(number)
        if num_bytes:
            data = self.socket.recv(timeout_s)
            assert isinstance(data, bytes)
            assert len(data) == num_bytes
            self.media += data
            self.sizes.append(len(data))
            self.mime = message.pop("mime", self.mime)
        event = parse_event(json.dumps(message))
        self.events.append(event)
        return event

    def until(self, wanted, *, acknowledges=True):
        """Take messages until one is wanted, and say of each that it has arrived."""
        while True:
            before = len(self.numbers)
            message = self.hear()
            if acknowledges and len(self.numbers) > before:
                self.say("ack", received=self.numbers[-1])
            if wanted(message):
                return message

    def answer(self, kind, **fields):
        """Say something, and return its reply."""
        message_id = fields.pop("id", f"my-{kind}-{next(self.ids)}")
        self.say(kind, id=message_id, **fields)
        return self.until(lambda one: isinstance(one, dict) and one["id"] == message_id)

    def to_the_end(self):
        self.until(lambda one: is_type(one, "session.ended", "session.failed"))
        return self.events[-1]

    def chunks(self):
        return [event for event in self.events if event.type == "media.chunk"]


def is_type(message, *names):
    return not isinstance(message, dict) and message.type in names


@contextmanager
def connected(server, **options):
    with connect(f"{server.url.replace('http', 'ws', 1)}/v1/sessions", max_size=None, **options) as socket:
        yield Peer(socket)


@contextmanager
def begun(server, *, options=None, **fields):
    with connected(server) as peer:
        reply = peer.answer("create", prompt="a red circle", options=options or {"num_chunks": 3}, **SIZE, **fields)
        assert reply["type"] == "reply", reply
        peer.session_id = reply["session_id"]
        yield peer


def frames_of(data):
    with av.open(io.BytesIO(data)) as container:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])


def engine_chunks(server, *, num_chunks=3):
    """Return what the engine itself makes, the frames of each chunk."""
    options = SessionOptions(num_chunks=num_chunks, buffer_s=60)
    engine = server.parts.service.engine
    with engine.session("a red circle", options=options, width=32, height=32, num_inference_steps=2, seed=7) as session:
        return [chunk.data.numpy() for chunk in session.chunks()]


def as_media(chunks):
    encoder = FragmentEncoder(height=32, width=32, fps=8)
    fragments = [encoder.encode(frames) for frames in chunks]
    return b"".join([encoder.init, *fragments])


@pytest.fixture(scope="module")
def streaming(causal_card, tmp_path_factory, running):
    with running(causal_card, tmp_path_factory.mktemp("streaming"), session_reconnect_s=30) as server:
        yield server


def test_a_stream_is_fragmented_mp4_with_typed_descriptions(streaming):
    with begun(streaming) as peer:
        end = peer.to_the_end()
    assert (end.type, end.reason, end.num_chunks) == ("session.ended", "horizon", 3)
    assert peer.numbers == list(range(len(peer.numbers)))
    kinds = [event.type for event in peer.events]
    assert kinds[0] == "session.created"
    assert kinds.index("media.init") < kinds.index("media.chunk")
    assert kinds.count("media.init") == 1
    chunks = peer.chunks()
    assert [one.index for one in chunks] == [0, 1, 2]
    assert all(one.end_s == two.start_s for one, two in pairwise(chunks))
    assert peer.media[4:8] == b"ftyp"
    assert peer.media.count(b"moof") == 3
    assert peer.mime.startswith('video/mp4; codecs="avc1.')
    wanted = engine_chunks(streaming)
    assert peer.media == as_media(wanted)
    assert len(frames_of(peer.media)) == sum(map(len, wanted))


def test_a_stream_can_be_steered_paused_and_closed(streaming):
    with begun(streaming, options={"buffer_s": 0.0}) as peer:
        peer.until(lambda one: is_type(one, "media.chunk"))
        assert peer.answer("push_text", text="a blue square")["type"] == "reply"
        assert peer.answer("push_action", values=[[0.5]])["type"] == "reply"
        pushed = [event.kind for event in peer.events if event.type == "session.pushed"]
        while len(pushed) < 2:
            peer.until(lambda one: is_type(one, "session.pushed"))
            pushed = [event.kind for event in peer.events if event.type == "session.pushed"]
        assert pushed == ["text", "action"]
        peer.answer("pause")
        if not any(event.type == "session.held" and event.reason == "caller" for event in peer.events):
            peer.until(lambda one: is_type(one, "session.held") and one.reason == "caller")
        before = len(peer.chunks())
        with pytest.raises(TimeoutError):
            peer.hear(0.3)
        peer.answer("resume")
        peer.until(lambda _: len(peer.chunks()) > before)
        peer.answer("close")
        if peer.events[-1].type != "session.ended":
            peer.to_the_end()
        assert peer.events[-1].reason == "closed"
    assert streaming.parts.service.engine.sessions == ()


@pytest.mark.parametrize("cut_after", [0, 1, 3, 5])
def test_a_connection_that_breaks_loses_nothing(cut_after, streaming):
    with begun(streaming, options={"num_chunks": 4, "buffer_s": 0.0}) as peer:
        while len(peer.numbers) < cut_after + 1:
            peer.hear()
            if len(peer.numbers) > 2:
                peer.say("ack", received=peer.numbers[-2])  # the last one has arrived, and that is not known
        peer.socket.socket.close()
    with connected(streaming) as again:
        reply = again.answer("attach", session_id=peer.session_id, received=peer.numbers[-1])
        assert reply["type"] == "reply", reply
        again.to_the_end()
    numbers = peer.numbers + again.numbers
    assert numbers == list(range(len(numbers)))
    chunks = [one.index for one in peer.chunks() + again.chunks()]
    assert chunks == [0, 1, 2, 3]
    assert peer.media + again.media == as_media(engine_chunks(streaming, num_chunks=4))


def test_what_did_not_arrive_comes_again_to_the_bit(streaming):
    with begun(streaming, options={"num_chunks": 2, "buffer_s": 60}) as peer:
        peer.until(lambda one: is_type(one, "session.ended"), acknowledges=False)
    with connected(streaming) as again:
        again.answer("attach", session_id=peer.session_id)
        if not any(is_type(one, "session.ended") for one in again.events):
            again.to_the_end()
    assert again.media == peer.media
    assert [event.model_dump() for event in again.events] == [event.model_dump() for event in peer.events]


def test_the_stream_waits_for_a_client_that_acknowledges_nothing(streaming):
    with begun(streaming, options={"buffer_s": 0.0}) as peer:
        peer.until(lambda one: is_type(one, "session.held"), acknowledges=False)
        assert peer.events[-1].reason == "viewer"
        before = len(peer.chunks())
        with pytest.raises(TimeoutError):
            peer.hear(0.5)
        peer.say("ack", received=peer.numbers[-1])
        peer.until(lambda _: len(peer.chunks()) > before)
        peer.answer("close")


def test_a_viewer_that_lags_holds_the_stream_although_all_has_arrived(streaming):
    with begun(streaming, options={"buffer_s": 0.0}) as peer:
        while not (peer.events and peer.events[-1].type == "session.held"):
            peer.hear()
            if peer.numbers:
                peer.say("ack", received=peer.numbers[-1], viewed_s=0.0)
        assert len(peer.chunks()) == 1
        peer.say("ack", received=peer.numbers[-1], viewed_s=peer.chunks()[0].end_s)
        peer.until(lambda _: len(peer.chunks()) == 2)
        peer.answer("close")


def test_a_fork_goes_on_by_itself(streaming):
    with begun(streaming, options={"buffer_s": 0.0, "history_chunks": 3}) as peer:
        peer.until(lambda _: len(peer.chunks()) == 3)
        reply = peer.answer("fork", chunk=1)
        assert reply["type"] == "reply", reply
        with connected(streaming) as other:
            other.answer("attach", session_id=reply["session_id"])
            other.until(lambda _: len(other.chunks()) == 3)
            other.answer("close")
        created = other.events[0]
        assert (created.parent, created.chunk) == (peer.session_id, 1)
        gone = peer.answer("fork", chunk=99)
        assert (gone["type"], gone["status"], gone["error"]["param"]) == ("error", 410, "chunk")
        peer.answer("close")
    assert other.media.startswith(as_media(engine_chunks(streaming, num_chunks=4)[1:]))


def test_a_repeated_push_is_made_once(streaming):
    with begun(streaming, options={"buffer_s": 0.0}) as peer:
        peer.answer("push_text", text="a blue square", id="once")
        assert peer.answer("push_text", text="a blue square", id="once")["is_repeated"]
        peer.until(lambda _: len(peer.chunks()) > 2)
        assert [event.type for event in peer.events].count("session.pushed") == 1
        peer.answer("close")


def test_a_newer_connection_takes_over(streaming):
    with begun(streaming, options={"buffer_s": 0.0}) as peer:
        peer.until(lambda one: is_type(one, "media.chunk"), acknowledges=False)
        with connected(streaming) as other:
            assert other.answer("attach", session_id=peer.session_id)["type"] == "reply"
            with pytest.raises(ConnectionClosed) as closed:
                while True:
                    peer.hear()
            assert closed.value.rcvd.code == 4001
            other.answer("close")


def test_a_session_ends_when_nobody_comes_back(causal_card, tmp_path, running):
    with running(causal_card, tmp_path / "server", session_reconnect_s=0.2) as server:
        with begun(server, options={"buffer_s": 0.0}) as peer:
            peer.until(lambda one: is_type(one, "media.chunk"))
        deadline = time.monotonic() + 30
        while server.parts.service.engine.sessions:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        with connected(server) as late:
            reply = late.answer("attach", session_id=peer.session_id)
            assert (reply["type"], reply["status"]) == ("error", 404)
            with pytest.raises(ConnectionClosed):
                late.hear()
        with server.client() as client:
            metrics = client.get("/metrics").text
        assert "fastvideo_sessions_now 0.0" in metrics
        assert "fastvideo_session_chunk_seconds_count 0.0" not in metrics


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ("not JSON", None),
        ('{"type": "session.dance"}', "type"),
        ('{"type": "session.push_text", "text": "x"}', "type"),
        ('{"type": "session.create"}', "prompt"),
        ('{"type": "session.create", "prompt": "x", "numframes": 3}', "numframes"),
        ('{"type": "session.create", "prompt": "x", "size": "33x32"}', "width"),
        ('{"type": "session.create", "prompt": "x", "options": {"buffer_s": -1}}', "options.buffer_s"),
        ('{"type": "session.create", "prompt": "x", "options": {"folder": "/etc"}}', "options.folder"),
        ('{"type": "session.attach", "session_id": "../../etc/passwd"}', "session_id"),
        ('{"type": "session.attach"}', "session_id"),
        ('{"type": "session.create", "type": "session.create", "prompt": "x"}', None),
    ],
)
def test_a_first_message_that_is_wrong_ends_the_connection(message, param, streaming):
    with connected(streaming) as peer:
        peer.socket.send(message)
        refused = peer.hear()
        assert (refused["type"], refused["error"]["param"]) == ("error", param)
        assert refused["error"]["type"] == "invalid_request_error"
        with pytest.raises(ConnectionClosed) as closed:
            peer.hear()
        assert closed.value.rcvd.code == 1008


@pytest.mark.parametrize(
    ("kind", "fields", "param"),
    [
        ("push_text", {"text": " "}, "prompt"),
        ("push_text", {}, "text"),
        ("push_action", {"values": "much"}, "values"),
        ("push_image", {"image_url": "http://localhost/x.png"}, "input_reference"),
        ("ack", {"received": 10_000_000}, "received"),
        ("fork", {"chunk": -1}, "chunk"),
        ("attach", {"session_id": "x"}, "type"),
        ("close", {"at": "noon"}, "at"),
    ],
)
def test_what_is_wrong_later_is_told_and_the_stream_goes_on(kind, fields, param, streaming):
    with begun(streaming, options={"buffer_s": 0.0}) as peer:
        peer.until(lambda one: is_type(one, "media.chunk"))
        refused = peer.answer(kind, **fields)
        assert (refused["type"], refused["error"]["param"]) == ("error", param)
        before = len(peer.chunks())
        peer.until(lambda _: len(peer.chunks()) > before)
        peer.socket.send(b"\x00\x01")
        assert peer.until(lambda one: isinstance(one, dict))["type"] == "error"
        peer.answer("close")


def test_a_card_without_streams_has_no_sessions(shared):
    with connected(shared) as peer:
        refused = peer.answer("create", prompt="x")
        assert (refused["status"], refused["error"]["code"]) == (404, "unsupported")


def test_keys_origins_and_quotas(causal_card, tmp_path, running):
    keys = [
        {"name": name, "sha256": hashlib.sha256(key.encode()).hexdigest(), "max_sessions": 1}
        for name, key in (("ann", "secret"), ("bob", "other"))
    ]
    with running(causal_card, tmp_path / "server", keys=keys) as server:
        for options in ({}, {"additional_headers": {"Authorization": "Bearer wrong"}}):
            with pytest.raises(InvalidStatus) as refused, connected(server, **options):
                pass
            assert refused.value.response.status_code == 401
            assert json.loads(refused.value.response.body)["error"]["code"] == "invalid_api_key"
        ann = {"Authorization": "Bearer secret"}
        with (
            pytest.raises(InvalidStatus) as refused,
            connected(server, additional_headers=ann, origin="http://evil.example"),
        ):
            pass
        assert refused.value.response.status_code == 403
        # base64url of "secret" and "other", as a page gives them.
        with connected(server, subprotocols=["fastvideo", "fastvideo.key.c2VjcmV0"], origin=server.url) as peer:
            assert peer.socket.subprotocol == "fastvideo"
            reply = peer.answer("create", prompt="x", **SIZE)
            with connected(server, additional_headers=ann) as second:
                refused = second.answer("create", prompt="x", **SIZE)
                assert (refused["status"], refused["error"]["code"]) == (429, "quota_exceeded")
            with connected(server, subprotocols=["fastvideo", "fastvideo.key.b3RoZXI"]) as stranger:
                refused = stranger.answer("attach", session_id=reply["session_id"])
                assert refused["status"] == 404


def test_the_end_of_the_server_ends_its_sessions(causal_card, tmp_path, running):
    with running(causal_card, tmp_path / "server") as server, begun(server, options={"buffer_s": 0.0}) as peer:
        peer.until(lambda one: is_type(one, "media.chunk"))
        server.server.stop()
        peer.to_the_end()
        assert peer.events[-1].type == "session.ended"


def test_an_idle_client_is_left(causal_card, tmp_path, running):
    with running(causal_card, tmp_path / "server", read_timeout_s=0.3) as server, connected(server) as peer:
        with pytest.raises(ConnectionClosed) as closed:
            peer.hear()
        assert closed.value.rcvd.code == 1008


def test_a_message_beyond_the_limit_is_refused(causal_card, tmp_path, running):
    with running(causal_card, tmp_path / "server", max_body=4096) as server, connected(server) as peer:
        peer.say("create", prompt="x" * 8192)
        with pytest.raises(ConnectionClosed) as closed:
            peer.hear()
        assert closed.value.rcvd.code == 1009


def test_the_guides_example_does_what_it_says(streaming, tmp_path, monkeypatch):
    guide = Path(__file__).parents[4] / "docs/guide/server.md"
    if not guide.is_file():
        pytest.skip("needs the repository")
    (code,) = [block for block in re.findall(r"```python\n(.*?)```", guide.read_text(), re.DOTALL) if "ws://" in block]
    monkeypatch.chdir(tmp_path)
    exec(code.replace("ws://127.0.0.1:8765", streaming.url.replace("http", "ws", 1)), {})
    assert len(frames_of((tmp_path / "stream.mp4").read_bytes())) > 20
