"""Events over HTTP: whole, resumed, shared by many, and never saying what is not true yet."""

from __future__ import annotations

import base64
import io
import json
import threading
import time

import pytest
from PIL import Image

from fastvideo_core.request.events import parse_event
from fastvideo_server.errors import ApiError
from fastvideo_server.http.events import parse_event_id

LONG = {"prompt": "x", "num_inference_steps": 300, "num_frames": 1, "height": 16, "width": 16}
SHORT = {**LONG, "num_inference_steps": 3}


def read(client, video_id, *, last=None, stop_after=None, pictures=None):
    """Return the events of a job as (id, typed event); what they show goes to `pictures`."""
    headers = {} if last is None else {"Last-Event-ID": last}
    found, fields = [], {}
    with client.stream("GET", f"/v1/videos/{video_id}/events", headers=headers) as response:
        if response.status_code != 200:
            response.read()
            return response
        assert response.headers["content-type"].startswith("text/event-stream")
        for line in response.iter_lines():
            name, _, value = line.partition(": ")
            if line:
                fields[name] = value
            elif "data" in fields:
                event = parse_event(fields["data"])
                assert event.type == fields["event"]
                if pictures is not None and getattr(event, "image", None):
                    pictures.append(event.image)
                if event.type == "media.chunk":
                    event = event.model_copy(update={"image": None})
                found.append((fields["id"], event))
                fields = {}
                if stop_after is not None and len(found) >= stop_after:
                    break
    return found


def create(client, fields):
    response = client.post("/v1/videos", json=fields)
    assert response.status_code == 200, response.text
    return response.json()["id"]


def test_events_are_typed_and_end_when_the_content_is_there(client):
    video_id, pictures = create(client, SHORT), []
    events = read(client, video_id, pictures=pictures)
    assert [one for one, _ in events] == [f"1.{number}" for number in range(len(events))]
    kinds = [event.type for _, event in events]
    assert kinds[:2] == ["request.accepted", "request.started"]
    assert kinds[-1] == "request.completed"
    assert client.get(f"/v1/videos/{video_id}/content").status_code == 200, "at the very moment"
    assert read(client, video_id) == events, "and again, out of the table, where pictures are not"
    for picture in pictures:
        data = base64.b64decode(picture.removeprefix("data:image/jpeg;base64,"))
        assert Image.open(io.BytesIO(data)).size == (16, 16)
    assert len(pictures) == 2


def test_a_reader_goes_on_where_it_left_off(client):
    video_id = create(client, LONG)
    first = read(client, video_id, stop_after=5)
    rest = read(client, video_id, last=first[-1][0])
    whole = read(client, video_id)
    assert first + rest == whole
    assert len(whole) > 300
    assert read(client, video_id, last=whole[3][0]) == whole[4:]
    assert read(client, video_id, last=whole[-1][0]).status_code == 204


@pytest.mark.parametrize("last", ["1.9999", "2.0", "x", "-1.0", "1", "1.0.0", "9" * 40, ""])
def test_an_event_that_has_not_been_is_refused(last, client):
    video_id = create(client, SHORT)
    read(client, video_id)
    response = client.get(f"/v1/videos/{video_id}/events", headers={"Last-Event-ID": last})
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["param"], error["code"]) == ("Last-Event-ID", "invalid_event_id")
    assert error["allowed"]


def test_many_readers_lose_nothing(client, shared):
    video_id = create(client, LONG)
    results = {}

    def follow(number):
        with shared.client() as own:
            results[number] = [one for one, _ in read(own, video_id)]

    readers = [threading.Thread(target=follow, args=(number,)) for number in range(20)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(60)
    assert len(results) == 20
    assert all(ids == [f"1.{number}" for number in range(len(ids))] for ids in results.values())
    assert len({len(ids) for ids in results.values()}) == 1


def test_progress_is_true(client):
    video_id = create(client, LONG)
    seen = []
    while (video := client.get(f"/v1/videos/{video_id}").json())["status"] != "completed":
        assert video["progress"] < 100
        seen.append(video["progress"])
        time.sleep(0.01)
    assert video["progress"] == 100
    assert seen == sorted(seen)
    assert len(set(seen)) > 3


def test_deleting_cancels_and_tells_whoever_follows(client, shared):
    video_id = create(client, {**LONG, "num_inference_steps": 1000, "height": 64, "width": 64})
    events = []
    with shared.client() as own:
        reader = threading.Thread(target=lambda: events.extend(read(own, video_id)))
        reader.start()
        while client.get(f"/v1/videos/{video_id}").json()["progress"] < 1:
            time.sleep(0.01)
        begun = time.monotonic()
        assert client.delete(f"/v1/videos/{video_id}").json()["deleted"]
        assert time.monotonic() - begun < 5
        reader.join(10)
    assert events[-1][1].type == "request.cancelled"
    assert client.get(f"/v1/videos/{video_id}").status_code == 404
    assert client.delete(f"/v1/videos/{video_id}").status_code == 404
    assert shared.parts.service.num_unfinished == 0


def test_a_silent_stream_says_that_it_is_there(serve):
    with serve(heartbeat_s=0.05) as server, server.client() as client, server.parts.service.engine.paused():
        video_id = create(client, SHORT)
        with client.stream("GET", f"/v1/videos/{video_id}/events") as response:
            lines = response.iter_lines()
            assert any(line.startswith(":") for _, line in zip(range(50), lines, strict=False))


@pytest.mark.parametrize(
    ("text", "run", "newest", "after"),
    [("1.5", 1, 9, 5), ("1.9", 1, 9, 9), ("1.5", 2, 3, -1), (" 3.0 ", 3, 0, 0)],
)
def test_ids_of_events(text, run, newest, after):
    assert parse_event_id(text, run=run, newest=newest) == after


@pytest.mark.parametrize(("text", "run", "newest"), [("1.10", 1, 9), ("2.0", 1, 9), ("1.0", 1, -1), ("１.0", 1, 9)])
def test_ids_of_no_event(text, run, newest):
    with pytest.raises(ApiError):
        parse_event_id(text, run=run, newest=newest)


def test_stored_events_are_json_lines(client, shared):
    video_id = create(client, SHORT)
    read(client, video_id)
    lines = shared.parts.service.shelf.database.events(video_id).splitlines()
    assert [json.loads(line)["sequence"] for line in lines] == list(range(len(lines)))
