"""Health, figures, keys, drain: what those who run the server rely on."""

from __future__ import annotations

import hashlib
import threading
import time

import pytest

QUICK = {"prompt": "x", "num_inference_steps": 1, "num_frames": 1}
LONG = {**QUICK, "num_inference_steps": 1000, "height": 64, "width": 64}


def key(name, secret, **fields):
    return {"name": name, "sha256": hashlib.sha256(secret.encode()).hexdigest(), **fields}


def problems(client):
    response = client.get("/health/ready")
    found = response.json()["problems"]
    assert response.status_code == (503 if found else 200)
    return found


def test_a_server_that_works_is_ready(client):
    assert problems(client) == []


def test_a_full_disk_is_told_and_takes_no_jobs(serve):
    with serve(min_free=1 << 62) as server, server.client() as client:
        (problem,) = problems(client)
        assert "the disk is full" in problem
        response = client.post("/v1/videos", json=QUICK)
        assert (response.status_code, response.json()["error"]["code"]) == (503, "disk_full")
        assert response.headers["Retry-After"]
        assert client.get("/health/live").status_code == 200


def test_a_dead_worker_is_told(serve, monkeypatch):
    with serve() as server, server.client() as client:
        plane = server.parts.service.engine._control._device
        with monkeypatch.context() as patch:
            patch.setattr(plane._workers[0], "thread", threading.Thread())
            (problem,) = problems(client)
        assert "a worker is gone" in problem
        assert problems(client) == []


def test_a_stuck_pump_is_told(serve):
    with serve() as server, server.client() as client:
        pump = server.parts.service.pump
        pump._main.get_loop().call_soon_threadsafe(pump._main.cancel)
        while not pump._main.done():
            time.sleep(0.01)
        assert problems(client) == ["the queue is not worked on"]


def test_an_engine_that_does_not_respond_is_told(serve):
    entered, go_on = threading.Event(), threading.Event()

    def hold():
        entered.set()
        assert go_on.wait(30)

    with serve() as server, server.client() as client:
        engine = server.parts.service.engine
        thread = threading.Thread(target=engine._control.call, args=(hold,))
        thread.start()
        assert entered.wait(10)
        assert problems(client) == ["the engine does not respond"]
        go_on.set()
        thread.join(10)
        assert problems(client) == []


def test_a_step_that_does_not_end_is_told(serve):
    with serve(stall_s=0.2) as server, server.client() as client:
        watch = server.parts.health._watch
        watch.decided("batch", time.monotonic() - 1.0, [0, []])
        (problem,) = problems(client)
        assert problem == "a step has been running for 1 s"
        watch.ended("finished", time.monotonic(), 0, 0.0)
        assert problems(client) == []


def test_a_table_that_cannot_be_written_is_told(serve):
    with serve() as server, server.client() as client:
        server.parts.service.shelf.database._connection.execute("PRAGMA query_only = ON")
        (problem,) = problems(client)
        server.parts.service.shelf.database._connection.execute("PRAGMA query_only = OFF")
        assert "the table of jobs cannot be written" in problem


def test_figures(client):
    client.post("/v1/images/generations", json={"prompt": "x", "num_inference_steps": 2})
    text = client.get("/metrics").text
    for name in ("jobs_now", "call_steps_count", "call_seconds_count", "prediction_error_count", "first_chunk_seconds",
                 "cancel_seconds", "cache_hits_total", "memory_bytes", "http_seconds_count", "jobs_total"):  # fmt: skip
        assert f"fastvideo_{name}" in text
    values = {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line[0] != "#"}
    assert values['fastvideo_memory_bytes{class="weights"}'] > 1000
    assert values["fastvideo_call_steps_count"] >= 4
    assert values['fastvideo_jobs_total{status="completed"}'] >= 1


def test_keys_let_in_who_has_one(serve):
    with serve(keys=[key("ann", "secret-a"), key("bob", "secret-b")]) as server:
        with server.client() as nobody:
            for path in ("/v1/videos", "/v1/models", "/metrics", "/v1/queue"):
                response = nobody.get(path)
                assert (response.status_code, response.json()["error"]["type"]) == (401, "authentication_error")
                assert response.headers["WWW-Authenticate"] == "Bearer"
            for wrong in ("Bearer", "Bearer secret-A", "Basic secret-a", "secret-a"):
                assert nobody.get("/v1/videos", headers={"Authorization": wrong}).status_code == 401
            assert nobody.post("/v1/videos", json=QUICK).status_code == 401
            assert nobody.get("/health/ready").status_code == 200
            assert nobody.get("/v1/videos?api_key=secret-a").status_code == 400
        with server.client("secret-a") as ann, server.client("secret-b") as bob:
            video_id = ann.post("/v1/videos", json=QUICK).json()["id"]
            assert [one["id"] for one in ann.get("/v1/videos").json()["data"]] == [video_id]
            assert bob.get("/v1/videos").json()["data"] == []
            for path in ("", "/content", "/events"):
                assert bob.get(f"/v1/videos/{video_id}{path}").status_code == 404
            assert bob.delete(f"/v1/videos/{video_id}").status_code == 404
            assert ann.get(f"/v1/videos/{video_id}").status_code == 200


def test_quotas_of_a_key(serve):
    keys = [key("ann", "a", max_queued=2), key("bob", "b", requests_per_minute=3)]
    with serve(keys=keys) as server, server.client("a") as ann, server.client("b") as bob:
        made = [ann.post("/v1/videos", json=LONG).json()["id"] for _ in range(2)]
        refused = ann.post("/v1/videos", json=LONG)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "quota_exceeded")
        assert int(refused.headers["Retry-After"]) >= 1
        ann.delete(f"/v1/videos/{made[0]}")
        assert ann.post("/v1/videos", json=QUICK).status_code == 200
        assert [bob.post("/v1/videos", json=QUICK).status_code for _ in range(5)] == [200] * 3 + [429] * 2
        ann.delete(f"/v1/videos/{made[1]}")


def test_the_queue_has_an_end(serve):
    with serve(max_queued=3) as server, server.client() as client:
        with server.parts.service.engine.paused():
            made = [client.post("/v1/videos", json=LONG) for _ in range(4)]
        assert [one.status_code for one in made] == [200] * 3 + [429]
        for one in made[:3]:
            client.delete(f"/v1/videos/{one.json()['id']}")
        assert client.post("/v1/videos", json=QUICK).status_code == 200


def test_an_idempotency_key_makes_one(serve, tmp_path):
    headers = {"Idempotency-Key": "once"}
    with serve() as server, server.client() as client:
        with server.client() as other:
            results = []
            threads = [
                threading.Thread(target=lambda: results.append(other.post("/v1/videos", json=QUICK, headers=headers)))
                for _ in range(8)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert len({one.json()["id"] for one in results}) == 1
        video_id = results[0].json()["id"]
        reused = client.post("/v1/videos", json={**QUICK, "prompt": "y"}, headers=headers)
        assert (reused.status_code, reused.json()["error"]["param"]) == (422, "Idempotency-Key")
        for bad in ("a b", "x" * 256, b"\xe9"):
            assert client.post("/v1/videos", json=QUICK, headers={"Idempotency-Key": bad}).status_code == 400
    with serve() as server, server.client() as client:
        assert client.post("/v1/videos", json=QUICK, headers=headers).json()["id"] == video_id, "after a restart too"
        client.delete(f"/v1/videos/{video_id}")
        gone = client.post("/v1/videos", json=QUICK, headers=headers)
        assert (gone.status_code, gone.json()["error"]["code"]) == (410, "deleted")
        assert len(client.get("/v1/videos").json()["data"]) == 0


def test_it_drains_and_goes_on_later(serve):
    with serve(drain_s=0.2) as server, server.client() as client:
        long_id = client.post("/v1/videos", json={**LONG, "seed": 1}).json()["id"]
        while client.get(f"/v1/videos/{long_id}").json()["progress"] < 1:
            time.sleep(0.01)
        server.server.stop()
        while not server.parts.service.is_draining:
            time.sleep(0.001)
        response = client.post("/v1/videos", json=QUICK)
        assert (response.status_code, response.json()["error"]["code"]) == (503, "draining")
        assert "the server stops" in problems(client)
    with serve() as server, server.client() as client:
        video = client.get(f"/v1/videos/{long_id}").json()
        assert video["status"] in ("queued", "in_progress")
        assert client.delete(f"/v1/videos/{long_id}").json()["deleted"]


def test_what_is_nearly_done_ends_before_it_stops(serve):
    with serve(drain_s=30) as server, server.client() as client:
        video_id = client.post("/v1/videos", json={**QUICK, "num_inference_steps": 100}).json()["id"]
        while client.get(f"/v1/videos/{video_id}").json()["status"] == "queued":
            time.sleep(0.005)
        server.server.stop()
    with serve() as server, server.client() as client:
        assert client.get(f"/v1/videos/{video_id}").json()["status"] == "completed"


def test_pages_of_named_origins_may_call(serve):
    with serve(cors_origins=["https://app.example"]) as server, server.client() as client:
        asks = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
        allowed = client.options("/v1/videos", headers={"Origin": "https://app.example", **asks})
        assert allowed.headers["Access-Control-Allow-Origin"] == "https://app.example"
        assert client.options("/v1/videos", headers={"Origin": "https://evil.example", **asks}).status_code == 400
        made = client.post("/v1/videos", json=QUICK, headers={"Origin": "https://app.example"})
        assert made.status_code == 200
        assert made.headers["Access-Control-Allow-Origin"] == "https://app.example"


@pytest.mark.parametrize("count", [6])
def test_owners_take_turns(count, serve):
    keys = [key("ann", "a"), key("bob", "b")]
    with serve(keys=keys) as server, server.client("a") as ann, server.client("b") as bob:
        service = server.parts.service
        order, submit = [], service.pump._submit

        async def note(job):
            order.append(job.caller.name)
            await submit(job)

        service.pump._submit = note
        service.pump._max_running = 1
        service.pump.is_held = True
        for _ in range(count):
            assert ann.post("/v1/videos", json=QUICK).status_code == 200
        for _ in range(count):
            assert bob.post("/v1/videos", json=QUICK).status_code == 200
        service.pump.is_held = False
        while service.num_unfinished:
            time.sleep(0.01)
    assert all(set(pair) == {"ann", "bob"} for pair in zip(order[::2], order[1::2], strict=True))
