"""Saved workflows as tasks of a server: listed, called, and refused like the card's own."""

from __future__ import annotations

import base64
import copy
import io
import json
import time
from pathlib import Path

import av
import numpy as np
import pytest

from fastvideo_comfy.product import load_product
from fastvideo_comfy.serve.products import offer_products
from fastvideo_core.errors import ConfigError


def make(comfy, **fields):
    job = post(comfy, fields)
    end = time.monotonic() + 120
    while job["status"] not in ("completed", "failed"):
        assert time.monotonic() < end
        time.sleep(0.05)
        job = comfy.json(f"/v1/videos/{job['id']}")
    assert job["status"] == "completed", job["error"]
    return job


def post(comfy, fields):
    return as_json(comfy).post("/v1/videos", fields)


def as_json(comfy):
    """The same client, whose bodies say what they are: ComfyUI's do not."""
    other = copy.copy(comfy)
    other.headers = {**comfy.headers, "Content-Type": "application/json"}
    return other


def image(make_picture):
    return {"image_url": f"data:image/png;base64,{base64.b64encode(make_picture()).decode()}"}


def test_products_are_listed_with_their_schema(comfy):
    (card,) = comfy.json("/v1/models")["data"]
    fox = card["tasks"]["fox"]
    assert fox == card["tasks"]["fox@2"]
    assert fox["version"] == "2"
    assert set(fox["parameters"]) == {"prompt", "seed", "length", "picture"}
    assert fox["parameters"]["length"]["type"] == "integer"
    assert fox["parameters"]["seed"]["default"] == 7
    assert fox["inputs"]["image"]["required"] is False


def test_a_product_is_called_like_a_task(comfy, make_picture):
    job = make(comfy, task="fox", prompt="a fox", length=9, input_reference=image(make_picture))
    assert (job["task"], job["prompt"], job["size"]) == ("fox", "a fox", "32x32")
    shown = frames(comfy, job)
    assert len(shown) == 9
    assert job["parameters"]["num_inference_steps"]["value"] == 2
    uploaded = comfy.upload(make_picture(), "other.png", overwrite="true")["name"]
    again = make(comfy, task="fox@2", prompt="a fox", length=9, picture=uploaded)
    assert np.array_equal(frames(comfy, again), shown)


def frames(comfy, job):
    data, _ = comfy.get(f"/v1/videos/{job['id']}/content")
    with av.open(io.BytesIO(data)) as video:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in video.decode(video=0)])


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"task": "fxo"}, "task"),
        ({"task": "fox", "lenght": 5}, "lenght"),
        ({"task": "fox", "length": 6}, None),
        ({"task": "fox", "length": "five"}, "length"),
        ({"task": "fox", "steps": 3}, "steps"),
        ({"task": "fox", "exact": True}, "exact"),
        ({"task": "fox", "picture": "../x.png"}, None),
        ({"task": "fox", "latency_class": "soon"}, "latency_class"),
    ],
)
def test_what_a_product_does_not_take_is_refused(comfy, fields, param):
    status, body = as_json(comfy).refused("/v1/videos", fields)
    assert status == 400
    if param is not None:
        assert body["error"]["param"] == param


def test_files_that_are_no_products_are_told_of_at_the_start(product, tmp_path):
    for name, text in {"none.json": "{}", "broken.json": '{"kind": "workflow-product"}'}.items():
        (tmp_path / name).write_text(text)
        with pytest.raises(ConfigError, match="not a product"):
            offer_products((tmp_path / name,), None, None)
    content = json.loads(Path(product).read_text())
    (tmp_path / "named.json").write_text(json.dumps({**content, "name": "fox@1"}))
    with pytest.raises(ConfigError, match="before @VERSION"):
        offer_products((tmp_path / "named.json",), None, None)
    assert load_product(product).version == "2"
