from __future__ import annotations

import asyncio
import hashlib
import io

import pytest
from PIL import Image

from fastvideo_core.cli.main import main
from fastvideo_core.errors import MediaError
from fastvideo_server.client import AsyncClient, Client, ServerError
from fastvideo_server.client.base import EventReader

QUICK = {"num_inference_steps": 2, "num_frames": 1}


@pytest.fixture
def api(shared):
    with Client(shared.url) as client:
        yield client


def test_from_creation_to_deletion(api, tmp_path):
    video = api.create("x", size="16x16", seed=3, **QUICK)
    kinds = [event.type for event in api.events(video["id"])]
    assert (kinds[0], kinds[-1]) == ("request.accepted", "request.completed")
    assert api.wait(video["id"])["status"] == "completed"
    path = api.save(video["id"], tmp_path / "a.webp", variant="thumbnail")
    assert Image.open(io.BytesIO(path.read_bytes())).size == (16, 16)
    assert video["id"] in [one["id"] for one in api.list(limit=1)]
    api.delete(video["id"])
    with pytest.raises(ServerError) as refused:
        api.get(video["id"])
    assert (refused.value.status, refused.value.code, refused.value.exit_code) == (404, "not_found", 2)


def test_an_image_and_an_idempotency_key(api, tmp_path):
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8)).save(buffer, format="PNG")
    (tmp_path / "a.png").write_bytes(buffer.getvalue())
    made = [api.create("x", image=tmp_path / "a.png", idempotency_key="one", **QUICK) for _ in range(2)]
    assert made[0]["id"] == made[1]["id"]
    assert made[0]["task"] == "image_to_video"
    with pytest.raises(MediaError, match="No such file"):
        api.create("x", image=tmp_path / "b.png")


def test_the_same_awaited(shared, tmp_path):
    async def use():
        async with AsyncClient(shared.url) as api:
            video = await api.create("x", **QUICK)
            kinds = [event.type async for event in api.events(video["id"])]
            assert kinds[-1] == "request.completed"
            assert (await api.wait(video["id"]))["progress"] == 100
            assert (await api.save(video["id"], tmp_path / "a.mp4")).stat().st_size > 0
            assert video["id"] in [one["id"] async for one in api.list(limit=1)]
            assert (await api.models())[0]["id"] == "tiny"
            await api.delete(video["id"])
            with pytest.raises(ServerError):
                await api.get(video["id"])

    asyncio.run(use())


def test_refusals_have_the_field_and_what_is_allowed(api):
    with pytest.raises(ServerError) as refused:
        api.create("x", num_frames=6)
    assert (refused.value.param, refused.value.status) == ("num_frames", 400)
    assert "4k + 1" in refused.value.allowed


def test_a_server_that_is_not_there():
    with Client("http://127.0.0.1:1") as client, pytest.raises(ServerError, match="cannot be reached") as error:
        client.get("video_1")
    assert error.value.exit_code == 1


def test_a_broken_stream_is_taken_up_where_it_broke_off():
    reader = EventReader()
    event = '{"type":"request.started","request_id":"a","sequence":4,"time_s":0}'
    assert reader.headers == {}
    assert [
        one.type
        for line in ("id: 1.4", f"data: {event}", "", ": still here", "", "id: 1.5")
        for one in reader.feed(line)
    ] == ["request.started"]
    assert reader.headers == {"Last-Event-ID": "1.4"}
    for _ in range(5):
        reader.broke_off(None)
    with pytest.raises(ServerError, match="again and again"):
        reader.broke_off(None)


def run(capsys, *arguments):
    code = main(arguments)
    told = capsys.readouterr()
    return code, told.out.split("\n")[:-1], told.err


def test_the_commands(shared, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("FASTVIDEO_URL", shared.url)
    flags = ("--num-inference-steps", "2", "--num-frames", "1")
    code, (video_id,), _ = run(capsys, "submit", "a red circle", *flags)
    assert code == 0
    code, lines, _ = run(capsys, "watch", video_id)
    assert (code, lines[0], lines[-1]) == (0, "request.accepted", "request.completed")
    code, (line,), _ = run(capsys, "status", video_id)
    assert code == 0
    assert "completed" in line
    assert "100 %" in line
    assert run(capsys, "status", "-n", "1")[1][0].startswith("video_")
    assert run(capsys, "cancel", video_id)[:2] == (0, [video_id])
    code, _, told = run(capsys, "status", video_id)
    assert (code, told.count("\n")) == (2, 1)
    code, lines, _ = run(capsys, "submit", "x", *flags, "-o", str(tmp_path / "x.mp4"))
    assert (code, lines) == (0, [str(tmp_path / "x.mp4")])
    assert (tmp_path / "x.mp4").stat().st_size > 0
    code, _, told = run(capsys, "submit", "x", "--num-frames", "6")
    assert code == 2
    assert "4k + 1" in told


def test_the_key_is_taken_from_the_environment(serve, capsys, monkeypatch):
    keys = [{"name": "ann", "sha256": hashlib.sha256(b"secret").hexdigest()}]
    with serve(keys=keys) as server:
        monkeypatch.setenv("FASTVIDEO_URL", server.url)
        assert run(capsys, "status")[0] == 2
        monkeypatch.setenv("FASTVIDEO_API_KEY", "secret")
        assert run(capsys, "status")[:2] == (0, [])
