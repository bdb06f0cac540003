"""Who comes later joins those that are at it: at the next token, and at the next denoising step."""

from __future__ import annotations

import threading

import pytest

from fastvideo_core.request.build import build_request
from fastvideo_core.runtime.catalog import Catalog
from fastvideo_core.runtime.engine import Engine

SIZE = {"num_frames": 5, "height": 32, "width": 32, "guidance_scale": 1.0}


@pytest.fixture(scope="module")
def engine(folder):
    with Engine.open(Catalog.installed().read_folder(folder), device="cpu") as opened:
        yield opened


def run_two(engine, monkeypatch, loop, task, long, short):
    """Ask for a second thing while the first is in its third step; return sizes of the loop's calls, and who ended."""
    sizes: list[int] = []
    ended: list[str] = []
    body, is_going, may_go_on = engine.instance.steps[loop], threading.Event(), threading.Event()

    def counted(instance, plans, ctx):
        sizes.append(len(plans))
        if len(sizes) == 3:
            is_going.set()
            may_go_on.wait(60)
        return body(instance, plans, ctx)

    monkeypatch.setitem(engine.instance.steps, loop, counted)

    def submit(name, prompt, parameters):
        request = build_request(engine.card, prompt, task=task, parameters={"seed": 1, **parameters})
        return engine.submit(request, on_event=lambda event: note(name, event))

    def note(name, event):
        if event.type == "request.completed":
            ended.append(name)

    first = submit("first", "a ball", long)
    assert is_going.wait(60)
    second = submit("second", "something else, and longer than the first", short)
    may_go_on.set()
    second.result(60)
    first.result(60)
    return sizes, ended


def test_a_later_answer_is_written_beside_one_that_is_being_written(engine, monkeypatch):
    long, short = {"max_tokens": 300}, {"max_tokens": 6}
    sizes, ended = run_two(engine, monkeypatch, "ar_decode", "reasoning_text", long, short)
    assert sizes.count(2) == 5  # the first of the six tokens comes with the text that is read
    assert sizes.index(2) < 10
    assert ended == ["second", "first"]


def test_a_later_video_is_denoised_with_one_that_is_being_denoised(engine, monkeypatch):
    long, short = {**SIZE, "num_inference_steps": 60}, {**SIZE, "num_inference_steps": 4}
    sizes, _ = run_two(engine, monkeypatch, "diffusion_denoise", "text_to_video", long, short)
    assert sizes.count(2) == 4
    assert sizes.index(2) < 10
