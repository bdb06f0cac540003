"""TLS, and readers and writers that do not keep up."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import socket
import ssl
import time
from contextlib import suppress

import httpx2
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from pydantic import ValidationError
from websockets.sync.client import connect

from fastvideo_server.config import ServerConfig
from fastvideo_server.protocol import TimedWebSocket

QUICK = {"prompt": "x", "num_inference_steps": 1, "num_frames": 1}
LARGE = 64 << 20


@pytest.fixture
def certificate(tmp_path):
    """A certificate of localhost that signs itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    paths = tmp_path / "certificate.pem", tmp_path / "key.pem"
    paths[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return paths


def test_tls_from_files(causal_card, running, certificate, tmp_path):
    path, key = certificate
    trusted = ssl.create_default_context(cafile=path)
    with running(causal_card, tmp_path / "server", tls_certificate=path, tls_key=key) as server:
        port = server.url.rpartition(":")[2]
        assert server.url.startswith("https://")
        with httpx2.Client(base_url=f"https://localhost:{port}", verify=trusted) as client:
            assert client.get("/health/live").status_code == 200
        with pytest.raises(httpx2.ConnectError), httpx2.Client(base_url=f"https://localhost:{port}") as stranger:
            stranger.get("/health/live")
        with pytest.raises(httpx2.TransportError), httpx2.Client(base_url=f"http://localhost:{port}") as plain:
            plain.get("/health/live")
        with connect(f"wss://localhost:{port}/v1/sessions", ssl=trusted) as session:
            session.send(json.dumps({"type": "session.create", "prompt": "x", "size": "32x32"}))
            assert json.loads(session.recv(30))["type"] == "reply"


def test_a_certificate_without_its_key_is_refused(certificate):
    with pytest.raises(ValidationError, match="go together"):
        ServerConfig(tls_certificate=certificate[0])


def open_slowly(server, path, headers=""):
    """Ask for something over a connection whose buffer is small, and read nothing of it."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(30)
    host, port = server.url.removeprefix("http://").split(":")
    connection.connect((host, int(port)))
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\n{headers}\r\n".encode())
    return connection


def until(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def large_video(server, folder):
    """Return the id of a job whose file is too large for all buffers on the way."""
    with server.client() as client:
        video_id = client.post("/v1/videos", json=QUICK).json()["id"]
        until(lambda: client.get(f"/v1/videos/{video_id}").json()["status"] == "completed")
    with (folder / "artifacts" / video_id / "video.mp4").open("wb") as file:
        file.truncate(LARGE)
    return video_id


def test_a_reader_that_takes_nothing_is_left(serve, tmp_path):
    with serve(write_timeout_s=0.3) as server:
        video_id = large_video(server, tmp_path / "server")
        with open_slowly(server, f"/v1/videos/{video_id}/content") as connection:
            state = server.server.server_state
            until(lambda: state.connections)
            until(lambda: not state.connections)
            count = 0
            with suppress(ConnectionResetError):
                while part := connection.recv(1 << 20):
                    count += len(part)
    assert count < LARGE // 2


def test_a_reader_that_is_slow_gets_all_of_it(serve, tmp_path):
    with serve(write_timeout_s=2.0) as server:
        video_id = large_video(server, tmp_path / "server")
        with server.client() as client, client.stream("GET", f"/v1/videos/{video_id}/content") as response:
            digest, count = hashlib.sha256(), 0
            for number, part in enumerate(response.iter_raw(8 << 20)):
                time.sleep(0.3 if number < 4 else 0)
                digest.update(part)
                count += len(part)
    assert count == LARGE
    assert digest.digest() == hashlib.sha256(bytes(LARGE)).digest()


def test_a_head_that_does_not_arrive_is_not_waited_for(serve):
    with serve(read_timeout_s=0.3) as server:
        host, port = server.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=30) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\nHost:")
            assert connection.recv(1024) == b""


def test_a_websocket_whose_reader_takes_nothing_is_left(causal_card, running, tmp_path):
    with running(causal_card, tmp_path / "server", write_timeout_s=0.3) as server:
        url = f"{server.url.replace('http', 'ws', 1)}/v1/sessions"
        with connect(url) as reader:
            reader.send(json.dumps({"type": "session.create", "prompt": "x", "size": "32x32"}))
            assert json.loads(reader.recv(30))["type"] == "reply"
            (protocol,) = [one for one in server.server.server_state.connections if isinstance(one, TimedWebSocket)]
            # What a full buffer does; to fill one takes minutes of video.
            protocol.loop.call_soon_threadsafe(protocol.pause_writing)
            until(lambda: protocol not in server.server.server_state.connections)
            (session,) = server.parts.service.engine.sessions
            assert session.state != "terminate", "it can be gone on with"
