"""Pictures while a video is denoised, of the shipped card."""

from __future__ import annotations

import numpy as np

from fastvideo_core import Engine

QUICK = {"num_inference_steps": 6, "num_frames": 5, "seed": 7}


def run(engine, *, previews):
    request = engine.make_request("a red circle moving right", parameters=QUICK)
    request = request.model_copy(update={"outputs": request.outputs.model_copy(update={"previews": previews})})
    handle = engine.submit(request)
    pictures = [event for event in handle.events() if event.type == "media.chunk" and event.is_preview]
    return handle.result().video.frames, [picture.data.numpy() for picture in pictures]


def test_pictures_come_nearer_to_the_first_frame_and_change_nothing():
    with Engine.open("wan-shapes") as engine:
        frames, pictures = run(engine, previews=True)
        alone, none = run(engine, previews=False)
    np.testing.assert_array_equal(frames, alone)
    assert (len(pictures), none) == (5, [])
    far = [np.abs(picture[0].astype(int) - frames[0]).mean() for picture in pictures]
    assert far[-1] < far[0]
    assert far[-1] < 2  # one small step before the end they are nearly the same
