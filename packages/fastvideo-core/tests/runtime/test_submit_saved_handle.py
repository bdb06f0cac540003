"""A handle that is given out before the request is accepted."""

from __future__ import annotations

import pytest

from fastvideo_core import Engine
from fastvideo_core.errors import CancelledError
from fastvideo_core.runtime.durable import SavedJob
from fastvideo_core.runtime.prepare import prepare_request


def test_what_is_cancelled_before_it_is_accepted_runs_no_step(tiny_card):
    with Engine.open(tiny_card) as engine:
        request = engine.make_request("x", parameters={"num_inference_steps": 50, "num_frames": 1})
        saved = SavedJob(request.request_id, prepare_request(tiny_card, request), {}, {})
        given = []

        def take(handle):
            given.append(handle)
            handle.cancel("too late")

        handle = engine.submit_saved(saved, on_handle=take)
        with pytest.raises(CancelledError, match="too late"):
            handle.result(30)
        kinds = [event.type for event in handle.events()]
    assert given == [handle]
    assert kinds[-1] == "request.cancelled"
    assert not {"request.started", "request.progress"} & set(kinds)
