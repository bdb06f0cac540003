from __future__ import annotations

import asyncio
import io
import threading

import pytest

from fastvideo_server.errors import ApiError
from fastvideo_server.http.ranges import file_response, parse_range
from fastvideo_server.jobs.artifacts import StoredFile

QUICK = {"prompt": "x", "num_inference_steps": 1, "num_frames": 5}


@pytest.mark.parametrize(
    ("header", "part"),
    [
        ("bytes=0-9", (0, 9)),
        ("bytes=90-", (90, 99)),
        ("bytes=90-1000", (90, 99)),
        ("bytes=-5", (95, 99)),
        ("bytes=-500", (0, 99)),
        (" bytes=3-3 ", (3, 3)),
        ("bytes=0-1,5-6", None),
        ("bytes=9-3", None),
        ("bytes=-", None),
        ("bytes=a-b", None),
        ("items=0-1", None),
        ("bytes=١-٢", None),
    ],
)
def test_ranges(header, part):
    assert parse_range(header, 100) == part


@pytest.mark.parametrize("header", ["bytes=100-", "bytes=100-200", "bytes=-0"])
def test_ranges_beyond_the_end(header):
    with pytest.raises(ApiError) as refused:
        parse_range(header, 100)
    assert (refused.value.status, refused.value.headers["Content-Range"]) == (416, "bytes */100")


def test_content_in_parts_is_the_content(client):
    video_id = client.post("/v1/videos", json=QUICK).json()["id"]
    assert client.get(f"/v1/videos/{video_id}/events").text.count("request.completed")
    place = f"/v1/videos/{video_id}/content"
    whole = client.get(place)
    assert (whole.headers["Content-Type"], whole.headers["Accept-Ranges"]) == ("video/mp4", "bytes")
    size = len(whole.content)
    assert int(whole.headers["Content-Length"]) == size
    parts = []
    for start in range(0, size, 1000):
        part = client.get(place, headers={"Range": f"bytes={start}-{start + 999}"})
        assert part.status_code == 206
        assert part.headers["Content-Range"] == f"bytes {start}-{min(start + 999, size - 1)}/{size}"
        parts.append(part.content)
    assert b"".join(parts) == whole.content
    assert client.get(place, headers={"Range": f"bytes={size}-"}).status_code == 416
    tag = whole.headers["ETag"]
    assert client.get(place, headers={"If-None-Match": tag}).status_code == 304
    changed = client.get(place, headers={"Range": "bytes=0-3", "If-Range": '"other"'})
    assert (changed.status_code, len(changed.content)) == (200, size)
    assert client.get(place, headers={"Range": "bytes=0-3", "If-Range": tag}).content == whole.content[:4]


def test_content_that_is_not_there_yet(serve):
    with serve() as server, server.client() as client, server.parts.service.engine.paused():
        video_id = client.post("/v1/videos", json=QUICK).json()["id"]
        response = client.get(f"/v1/videos/{video_id}/content")
        assert (response.status_code, response.json()["error"]["code"]) == (409, "video_not_ready")


@pytest.mark.parametrize("fails", [False, True])
def test_a_file_whose_reader_goes_while_it_is_opened_is_closed(fails):
    may_open, opened = threading.Event(), io.BytesIO(b"abc")

    def open_slowly():
        assert may_open.wait(timeout=30)
        if fails:
            raise OSError("gone")
        return opened

    async def leave():
        response = file_response(StoredFile("a.mp4", 3, "t", open_slowly), "video/mp4", name="a.mp4", headers={})
        reading = asyncio.ensure_future(anext(response.body_iterator))
        await asyncio.sleep(0.05)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        may_open.set()
        await asyncio.get_running_loop().shutdown_default_executor()
        await asyncio.sleep(0)

    asyncio.run(asyncio.wait_for(leave(), 30))
    assert opened.closed != fails
