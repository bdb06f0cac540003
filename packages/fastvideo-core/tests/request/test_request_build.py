from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from fastvideo_core.errors import InputError, ParameterError
from fastvideo_core.request.base import (
    AudioPart,
    ImagePart,
    OutputSpec,
    Request,
    TextPart,
    VideoPart,
    new_request_id,
)
from fastvideo_core.request.build import build_request
from fastvideo_testing.tiny import tiny_card

CARD = tiny_card(Path("weights"))


def card_with(default, *names):
    """Return a card with these tasks of the tiny card, in this order."""
    tasks = {name: CARD.capabilities.tasks[name] for name in names}
    capabilities = CARD.capabilities.model_copy(update={"tasks": tasks, "default_task": default})
    return CARD.model_copy(update={"capabilities": capabilities})


def test_what_is_not_said_is_not_in_the_request():
    request = build_request(CARD, "a red circle")
    assert (request.task, request.parameters, request.exact) == ("text_to_video", {}, False)
    assert request.inputs == (TextPart(name="prompt", text="a red circle"),)
    assert request.outputs == OutputSpec()
    assert request.part("prompt").text == "a red circle"
    assert request.part("image") is None


def test_what_is_said_is_in_the_request():
    pixels = np.zeros((2, 2, 3), np.uint8)
    request = build_request(
        CARD, "x", task="image_to_video", image=pixels, outputs=["latents"], exact=True,
        parameters={"seed": 3}, request_id="mine",
    )  # fmt: skip
    assert (request.request_id, request.task, request.exact, request.parameters) == (
        "mine",
        "image_to_video",
        True,
        {"seed": 3},
    )
    assert request.outputs.artifacts == ("latents",)
    assert request.part("image").pixels is pixels


def test_a_task_without_a_name_is_not_one_that_was_not_named():
    assert build_request(CARD, "x", task="").task == ""


@pytest.mark.parametrize("image", ["a.png", Path("a.png")])
def test_an_image_may_be_a_path(image):
    assert build_request(CARD, "x", image=image).part("image") == ImagePart(name="image", path=Path("a.png"))


@pytest.mark.parametrize(
    ("card", "has_image", "task"),
    [
        (card_with("text_to_video", "text_to_video", "image_to_video"), False, "text_to_video"),
        (card_with("text_to_video", "text_to_video", "image_to_video"), True, "image_to_video"),
        (card_with("image_to_video", "text_to_video", "image_to_video"), False, "image_to_video"),
        (card_with("text_to_video", "text_to_video"), True, "text_to_video"),
    ],
)
def test_a_task_is_suggested_only_where_none_is_named(card, has_image, task):
    assert build_request(card, "x", image="a.png" if has_image else None).task == task
    assert build_request(card, "x", image="a.png" if has_image else None, task="other").task == "other"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"prompt": 3}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": "x", "request_id": "../x"}, "request_id"),
        ({"prompt": "x", "request_id": ""}, "request_id"),
        ({"prompt": "x", "exact": "maybe"}, "exact"),
        ({"prompt": "x", "task": 7}, "task"),
        ({"prompt": "x", "outputs": [3]}, "artifacts.0"),
    ],
)
def test_what_is_of_a_wrong_type_is_named(fields, field):
    with pytest.raises(InputError) as caught:
        build_request(CARD, **fields)
    assert caught.value.field == field
    assert "\n" not in str(caught.value)


def test_ids_are_fresh_and_safe_in_file_names():
    ids = {new_request_id() for _ in range(100)}
    assert len(ids) == 100
    assert all(Request(request_id=name, task="t").request_id == name for name in ids)
    for bad in ("a/b", ".hidden", "a b", "x" * 129):
        with pytest.raises(ValidationError, match="request_id"):
            Request(request_id=bad, task="t")


def test_unknown_fields_and_kinds_are_refused():
    with pytest.raises(ValidationError, match="seed\n.*Extra inputs"):
        Request(task="t", seed=3)
    with pytest.raises(ValidationError, match="inputs.0"):
        Request(task="t", inputs=[{"kind": "smell", "name": "x"}])
    with pytest.raises(ValidationError, match="deadline_s"):
        Request(task="t", deadline_s=0)
    parts = [{"kind": "text", "name": "prompt", "text": "x"}, {"kind": "image", "name": "image", "path": "a.png"}]
    assert [type(part) for part in Request(task="t", inputs=parts).inputs] == [TextPart, ImagePart]


@pytest.mark.parametrize(("kind", "content"), [(ImagePart, "pixels"), (VideoPart, "frames"), (AudioPart, "samples")])
def test_media_come_from_a_path_or_from_memory(kind, content):
    assert kind(name="x", path="a").path == Path("a")
    assert getattr(kind(name="x", **{content: [1]}), content) == [1]
    for fields in ({}, {"path": "a", content: [1]}):
        with pytest.raises(ValidationError, match=f"input 'x' needs either a path or {content}"):
            kind(name="x", **fields)


def test_urgency_and_deadline():
    request = build_request(CARD, "x", latency_class="batch", deadline_s=7)
    assert (request.latency_class, request.deadline_s) == ("batch", 7.0)
    assert build_request(CARD, "x").latency_class == "standard"
    with pytest.raises(
        ParameterError,
        match="latency_class='interactiv': no such class; allowed: interactive, standard, batch; nearest: interactive",
    ):
        build_request(CARD, "x", latency_class="interactiv")
    with pytest.raises(InputError, match="deadline_s=0: Input should be greater than 0"):
        build_request(CARD, "x", deadline_s=0)
