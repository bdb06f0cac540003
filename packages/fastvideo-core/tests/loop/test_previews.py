"""Pictures of what is being denoised."""

from __future__ import annotations

import numpy as np
import pytest

from fastvideo_core import Engine
from fastvideo_core.loop.previews import MAX_PREVIEWS, preview_steps


@pytest.mark.parametrize(("begin", "num_steps"), [(0, 1), (0, 2), (0, 9), (0, 10), (3, 50), (49, 50), (0, 1000)])
def test_steps_are_spread_and_the_last_is_none_of_them(begin, num_steps):
    steps = preview_steps(begin, num_steps)
    assert len(steps) == min(MAX_PREVIEWS, num_steps - 1 - begin)
    assert len(set(steps)) == len(steps)
    assert sorted(steps) == list(steps)
    assert all(begin <= step < num_steps - 1 for step in steps)
    gaps = np.diff(steps)
    assert not len(gaps) or gaps.max() - gaps.min() <= 1


def run(engine, *, previews, **options):
    request = engine.make_request(
        "x", parameters={"num_inference_steps": 5, "num_frames": 5, "seed": 3, "flow_shift": 1.0}, **options
    )
    request = request.model_copy(update={"outputs": request.outputs.model_copy(update={"previews": previews})})
    handle = engine.submit(request)
    events = list(handle.events())
    pictures = [event for event in events if event.type == "media.chunk" and event.is_preview]
    return handle.result().video.frames, pictures


@pytest.mark.parametrize("exact", [False, True])
def test_a_request_with_pictures_gives_what_it_gives_without(exact, tiny_card):
    with Engine.open(tiny_card) as engine:
        frames, pictures = run(engine, previews=True, exact=exact)
        alone, none = run(engine, previews=False, exact=exact)
    np.testing.assert_array_equal(frames, alone)
    assert none == []
    assert [picture.index for picture in pictures] == [0, 1, 2, 3]
    assert all(picture.data.shape == (1, *frames.shape[1:]) for picture in pictures)
    far = [np.abs(picture.data.numpy()[0].astype(int) - frames[0]).mean() for picture in pictures]
    # The last picture is one step away from the result, the first one four.
    assert far[-1] < far[0]
