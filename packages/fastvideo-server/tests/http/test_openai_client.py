"""The official OpenAI client, unmodified, against a server."""

from __future__ import annotations

import base64
import io
import time

import av
import numpy as np
import openai
import pytest
from PIL import Image

pytestmark = pytest.mark.filterwarnings("ignore:.*Sora API.*:DeprecationWarning")

QUICK = {"num_inference_steps": 2, "num_frames": 5, "seed": 7}


@pytest.fixture
def openai_client(shared):
    with openai.OpenAI(base_url=f"{shared.url}/v1", api_key="unused", max_retries=0) as client:
        yield client


def wait(client, video):
    deadline = time.monotonic() + 30
    while video.status in ("queued", "in_progress"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
        video = client.videos.retrieve(video.id)
    return video


def frames_of(data):
    with av.open(io.BytesIO(data)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


def test_a_video_from_creation_to_deletion(openai_client):
    video = openai_client.videos.create(
        prompt="a red circle", model="tiny", size="48x32", seconds="1", extra_body={"seed": 3}
    )
    assert (video.object, video.model, video.size, video.seconds) == ("video", "tiny", "48x32", "1")
    assert video.status in ("queued", "in_progress")
    video = wait(openai_client, video)
    assert (video.status, video.progress, video.error) == ("completed", 100, None)
    assert video.completed_at >= video.created_at
    frames = frames_of(openai_client.videos.download_content(video.id).read())
    assert len(frames) == 9
    assert frames[0].shape == (32, 48, 3)
    thumbnail = Image.open(io.BytesIO(openai_client.videos.download_content(video.id, variant="thumbnail").read()))
    assert (thumbnail.format, thumbnail.size) == ("WEBP", (48, 32))
    picture = np.asarray(thumbnail.convert("RGB")).astype(int)
    assert np.argmin([np.abs(picture - frame).mean() for frame in frames]) == 0
    sheet = Image.open(io.BytesIO(openai_client.videos.download_content(video.id, variant="spritesheet").read()))
    assert (sheet.format, sheet.size) == ("JPEG", (4 * 48, 3 * 32))
    deleted = openai_client.videos.delete(video.id)
    assert (deleted.id, deleted.deleted, deleted.object) == (video.id, True, "video.deleted")
    with pytest.raises(openai.NotFoundError) as refused:
        openai_client.videos.retrieve(video.id)
    assert refused.value.code == "not_found"


def test_create_and_poll_as_the_client_does_it(openai_client):
    video = openai_client.videos.create_and_poll(prompt="x", extra_body=QUICK, poll_interval_ms=20)
    assert video.status == "completed"
    assert video.parameters["num_inference_steps"] == {"value": 2, "source": "request"}


def test_a_video_from_an_image(openai_client):
    buffer = io.BytesIO()
    Image.new("RGB", (32, 32), (255, 0, 0)).save(buffer, format="PNG")
    reference = ("red.png", buffer.getvalue(), "image/png")
    video = wait(openai_client, openai_client.videos.create(prompt="x", input_reference=reference, extra_body=QUICK))
    assert (video.status, video.task) == ("completed", "image_to_video")


def test_jobs_are_listed_page_by_page(openai_client):
    made = [openai_client.videos.create(prompt=f"number {index}", extra_body=QUICK).id for index in range(5)]
    listed = [video.id for video in openai_client.videos.list(limit=2)]
    assert listed[:5] == made[::-1]
    assert len(listed) == len(set(listed))
    page = openai_client.videos.list(limit=2, order="asc", after=made[0])
    assert [video.id for video in page.data] == made[1:3]
    assert page.has_more
    assert not openai_client.videos.list(limit=4, order="asc", after=made[0]).has_more
    for video_id in made:
        openai_client.videos.delete(video_id)


def test_images_while_it_waits(openai_client):
    answer = openai_client.images.generate(
        prompt="x",
        model="tiny",
        n=2,
        size="32x48",
        output_format="png",
        extra_body={"num_inference_steps": 2, "seed": 5},
    )
    assert [one.seed for one in answer.data] == [5, 6]
    images = [np.asarray(Image.open(io.BytesIO(base64.b64decode(one.b64_json)))) for one in answer.data]
    assert all(image.shape == (48, 32, 3) for image in images)
    assert not np.array_equal(*images)


def test_models(openai_client):
    (model,) = openai_client.models.list().data
    assert (model.id, model.object, model.owned_by) == ("tiny", "model", "tiny")
    assert model.tasks["text_to_video"]["parameters"]["num_frames"]["offset"] == 1
    assert openai_client.models.retrieve("tiny") == model
    with pytest.raises(openai.NotFoundError):
        openai_client.models.retrieve("sora-2")


@pytest.mark.parametrize(
    ("extra", "param", "allowed"),
    [
        ({"num_inference_stepz": 3}, "num_inference_stepz", "num_inference_steps"),
        ({"num_frames": 6}, "num_frames", "4k + 1"),
        ({"guidance_scale": "much"}, "guidance_scale", "number"),
        ({"task": "text_to_song"}, "task", "text_to_video"),
        ({"latency_class": "soon"}, "latency_class", "interactive"),
        ({"exact": "perhaps"}, "exact", "true or false"),
    ],
)
def test_what_is_not_allowed_is_refused_by_name(extra, param, allowed, openai_client):
    with pytest.raises(openai.BadRequestError) as refused:
        openai_client.videos.create(prompt="x", extra_body=extra)
    assert refused.value.param == param
    assert refused.value.type == "invalid_request_error"
    assert allowed in refused.value.body["allowed"]


def test_a_length_off_the_grid_is_refused_with_the_nearest(openai_client):
    with pytest.raises(openai.BadRequestError) as refused:
        openai_client.videos.create(prompt="x", seconds="1.2")
    assert (refused.value.param, refused.value.body["nearest"]) == ("seconds", "1")


def test_another_model_is_not_served(openai_client):
    with pytest.raises(openai.NotFoundError) as refused:
        openai_client.videos.create(prompt="x", model="sora-2")
    assert (refused.value.code, refused.value.param) == ("model_not_found", "model")
