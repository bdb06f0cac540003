"""A closed connection cancels synchronous calls, and those only."""

from __future__ import annotations

import json
import socket
import time

STEPS = 1000


def send(server, path, fields):
    """Send a request and return the open connection."""
    host, port = server.url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=10)
    body = json.dumps(fields).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body)
    return connection


def until(condition, *, within_s=10.0):
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_client_that_goes_away_ends_its_call_at_the_next_step(serve):
    with serve() as server:
        service = server.parts.service
        slow = {"prompt": "x", "num_inference_steps": STEPS, "height": 64, "width": 64}
        connections = [send(server, "/v1/images/generations", slow) for _ in range(6)]
        until(lambda: service.pump.sizes == (2, 4))
        jobs = service.pump.running
        for connection in connections:
            connection.close()
        until(lambda: service.num_unfinished == 0)
        assert service.pump.sizes == (0, 0)
        for job in jobs:
            last = job.handle.stream.read()[-1]
            assert last.type == "request.cancelled"
        with server.client() as client:
            answer = client.post("/v1/images/generations", json={"prompt": "y", "num_inference_steps": 1})
            assert answer.status_code == 200


def test_a_job_that_was_accepted_goes_on_without_its_client(serve):
    with serve() as server:
        connection = send(server, "/v1/videos", {"prompt": "x", "num_inference_steps": 50, "num_frames": 1})
        answer = b""
        while not answer.endswith(b"}"):
            part = connection.recv(65536)
            assert part, answer
            answer += part
        video_id = json.loads(answer.partition(b"\r\n\r\n")[2])["id"]
        connection.close()
        with server.client() as client:
            until(lambda: client.get(f"/v1/videos/{video_id}").json()["status"] == "completed")


def test_synchronous_calls_leave_nothing_on_the_disk(serve, tmp_path):
    with serve() as server, server.client() as client:
        assert client.post("/v1/images/generations", json={"prompt": "x"}).status_code == 200
        assert client.get("/v1/videos").json()["data"] == []
    assert list((tmp_path / "server/state/jobs").iterdir()) == []
    assert list((tmp_path / "server/artifacts").iterdir()) == []
