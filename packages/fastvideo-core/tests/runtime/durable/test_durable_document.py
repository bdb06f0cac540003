from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from fastvideo_core.errors import StateError
from fastvideo_core.request.base import AudioPart, LatentPart, Request, VideoPart
from fastvideo_core.runtime.durable.document import read_request, write_request

PIXELS = np.arange(16 * 24 * 3, dtype=np.uint8).reshape(16, 24, 3)


def moved(prepared, folder, card):
    """Send a request through JSON."""
    document = write_request(prepared)
    arrays = {name: tensor.clone() for name, tensor in document.arrays.items()}
    return read_request(json.loads(json.dumps(document.content)), arrays, folder, card)


def test_a_request_comes_back_with_its_seed_and_the_sources_of_its_parameters(prepare, instance, tmp_path):
    prepared = prepare(
        prompt="ä ✓", exact=True, outputs=("latents",), parameters={"seed": None, "num_inference_steps": np.int64(3)}
    )
    back = moved(prepared, tmp_path, instance.card)
    assert back.parameters.to_json() == prepared.parameters.to_json()
    assert back.parameters.source("seed") == "engine"
    assert back.request.parameters == {"seed": None, "height": 16, "width": 24, "num_inference_steps": 3}
    assert back.request.model_copy(update={"parameters": {}}) == prepared.request.model_copy(update={"parameters": {}})
    assert back.inputs == {"prompt": "ä ✓"}
    assert (back.program, back.nodes) == (prepared.program, prepared.nodes)


def test_overrides_of_nodes_come_back(prepare, instance, tmp_path):
    prepared = prepare()
    request = prepared.request.model_copy(update={"node_overrides": {"denoise": {"guidance_scale": 2}}})
    from fastvideo_core.runtime.prepare import prepare_request

    prepared = prepare_request(instance.card, request)
    back = moved(prepared, tmp_path, instance.card)
    assert back.parameters_of("denoise").to_json() == prepared.parameters_of("denoise").to_json()
    assert back.parameters_of("denoise")["guidance_scale"] == 2.0
    assert back.parameters_of("text")["guidance_scale"] == 3.0


@pytest.mark.parametrize("kind", ["pixels", "path", "palette"])
def test_an_image_is_kept_as_it_was_read(kind, prepare, instance, tmp_path):
    image = PIXELS
    if kind != "pixels":
        image = tmp_path / "image.png"
        picture = Image.fromarray(PIXELS)
        (picture if kind == "path" else picture.convert("P")).save(image)
    prepared = prepare(image=image)
    if kind != "pixels":
        image.unlink()
    back = moved(prepared, tmp_path, instance.card)
    assert back.inputs["image"].dtype == np.uint8
    assert np.array_equal(back.inputs["image"], prepared.inputs["image"])
    assert back.request.task == "image_to_video"


def test_inputs_of_other_kinds_are_taken_along(prepare):
    parts = (
        VideoPart(name="clip", frames=np.zeros((2, 4, 4, 3), np.uint8), fps=8.0),
        LatentPart(name="start", latents=torch.ones(1, 2)),
        AudioPart(name="sound", path="a/b.wav"),
    )
    prepared = prepare()
    request = Request(task="text_to_video", inputs=parts)
    document = write_request(replace(prepared, request=request, inputs={part.name: part for part in parts}))
    assert set(document.arrays) == {"clip.frames", "start.latents"}
    assert {name: str(path) for name, path in document.files.items()} == {"input-0.wav": "a/b.wav"}
    clip, start, sound = json.loads(json.dumps(document.content))["request"]["inputs"]
    assert (clip["fps"], clip["frames"]) == (8.0, {"array": "clip.frames"})
    assert start["latents"] == {"array": "start.latents", "is_tensor": True}
    assert sound["path"] == {"file": "input-0.wav"}


def test_an_input_that_cannot_be_stored_is_refused(prepare):
    prepared = prepare()
    request = Request(task="text_to_video", inputs=(LatentPart(name="start", latents=object()),))
    with pytest.raises(StateError, match=r"input start.latents is a object, which cannot be stored"):
        write_request(replace(prepared, request=request))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda c: c.pop("request"), "holds no request: KeyError: 'request'"),
        (lambda c: c.pop("parameters"), "holds no request: KeyError: 'parameters'"),
        (lambda c: c["request"].update(task=3), "holds no request: ValidationError"),
        (
            lambda c: c["request"].update(inputs=[{"kind": "text", "name": "x", "text": {"array": "a"}}]),
            "KeyError: 'a'",
        ),
        (lambda c: c["request"].update(task="dream"), "is not taken by card tiny any more: task='dream'"),
        (lambda c: c["request"]["parameters"].update(height=7), "is not taken by card tiny any more: height=7"),
    ],
)
def test_a_document_that_does_not_fit_is_refused(change, text, prepare, instance, tmp_path):
    content = json.loads(json.dumps(write_request(prepare()).content))
    change(content)
    with pytest.raises(StateError) as caught:
        read_request(content, {}, tmp_path, instance.card)
    assert text in str(caught.value)
