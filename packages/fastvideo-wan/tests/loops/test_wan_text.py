from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from fastvideo_core.runtime.engine import Engine, RuntimeOptions
from fastvideo_core.runtime.scheduler.base import SchedulerConfig
from fastvideo_wan.loops import text
from fastvideo_wan.loops.text import can_share_call

PROMPTS = ["a red circle moving right", "big blue square", "a small green triangle that goes up on a black background"]


def plan(pad_to):
    return SimpleNamespace(payload=SimpleNamespace(pad_to=pad_to))


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (1, 16, True),
        (9, 17, True),
        (8, 17, False),
        (100, 200, True),
        (100, 201, False),
        (512, 512, True),
        (20, 512, False),
    ],
)
def test_prompts_share_a_call_where_padding_does_not_double_it(one, other, expected):
    assert can_share_call(plan(one), plan(other)) is expected
    assert can_share_call(plan(other), plan(one)) is expected


@pytest.fixture
def calls(monkeypatch):
    """Sizes of the calls of the text encoder's step body."""
    sizes = []

    def watched(instance, plans, ctx):
        sizes.append(len(plans))
        return text.run_step(instance, plans, ctx)

    monkeypatch.setattr("fastvideo_wan.loops.text.watched", watched, raising=False)
    return sizes


def submit(engine, prompt, *, exact=False):
    parameters = {"num_inference_steps": 1, "guidance_scale": 1.0, "seed": 1}
    return engine.submit(engine.make_request(prompt, outputs=("latents",), exact=exact, parameters=parameters))


def open_watched(**settings):
    """Open the shipped card with a text loop whose calls are counted."""
    from fastvideo_core.runtime.catalog import Catalog

    card = Catalog.installed().find("wan-shapes")
    loop = card.loops["text_encode"].model_copy(update={"step": "fastvideo_wan.loops.text:watched"})
    card = card.model_copy(update={"loops": {**card.loops, "text_encode": loop}})
    return Engine.open(card, options=RuntimeOptions(SchedulerConfig(**settings)))


def test_equal_prompts_are_encoded_once(calls):
    with open_watched() as engine:
        first, *others = [submit(engine, PROMPTS[0]).result(60) for _ in range(3)]
        assert all(np.array_equal(one.latents.latents, first.latents.latents) for one in others)
        stats = engine.caches.features["text_features"].stats
    assert calls == [1]
    assert (stats.hits, stats.misses, stats.held_bytes) == (2, 1, 0)


def test_prompts_of_unequal_length_share_calls_and_keep_their_embeddings(calls):
    with open_watched(max_batch=1) as engine:
        alone = [submit(engine, prompt).result(60).latents.latents for prompt in PROMPTS]
    assert calls == [1, 1, 1]
    calls.clear()
    with open_watched() as engine:
        with engine.paused():
            handles = [submit(engine, prompt) for prompt in PROMPTS]
        together = [handle.result(60).latents.latents for handle in handles]
    assert calls == [3]
    for one, other in zip(alone, together, strict=True):
        assert np.abs(one - other).max() <= 1e-5 * np.abs(one).max()


def test_exact_prompts_have_a_call_each(calls):
    with open_watched() as engine:
        with engine.paused():
            handles = [submit(engine, prompt, exact=True) for prompt in PROMPTS]
        for handle in handles:
            handle.result(60)
    assert calls == [1, 1, 1]
