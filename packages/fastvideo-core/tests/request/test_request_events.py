from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from fastvideo_core.request import events
from fastvideo_core.request.events import MediaChunk, RequestFailed, RequestProgress, parse_event

HEAD = {"request_id": "r", "sequence": 3, "time_s": 1.5}
EXAMPLES = {
    "RequestAccepted": {"card": "c", "task": "t", "parameters": {"seed": {"value": None, "source": "card"}}},
    "RequestStarted": {},
    "RequestWarning": {"message": "prompt: the model does not know these words: dog"},
    "RequestProgress": {"node": "denoise", "step": 2, "num_steps": None, "fraction": 0.5, "remaining_s": 2.0},
    "RequestCompleted": {"artifacts": ("video",), "duration_s": 3.0},
    "RequestFailed": {"error": "NonFiniteError", "message": "step 3 gave NaN"},
    "RequestCancelled": {"reason": "interrupted"},
    "ArtifactCreated": {"name": "video", "kind": "video"},
    "MediaInit": {"stream": "video", "codec": "rgb24", "width": 32, "height": 16, "fps": 8.0},
    "MediaChunk": {"stream": "video", "index": 0, "start_s": 0.0, "end_s": 0.5, "is_preview": True},
    "MediaComplete": {"stream": "video", "num_chunks": 4},
    "TextDelta": {"stream": "text", "index": 1, "text": "a red ball"},
}


def test_there_is_an_example_of_every_event():
    assert set(EXAMPLES) | {"Event", "parse_event"} == set(events.__all__)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_event_survives_json(name):
    event = getattr(events, name)(**HEAD, **EXAMPLES[name])
    assert parse_event(event.model_dump_json()) == event
    with pytest.raises(ValidationError, match="frozen"):
        event.sequence = 4
    with pytest.raises(ValidationError, match="Extra inputs"):
        getattr(events, name)(**HEAD, **EXAMPLES[name], more=1)


def test_types_are_told_apart():
    types = [getattr(events, name).model_fields["type"].default for name in EXAMPLES]
    assert len(set(types)) == len(types)
    assert all(kind.partition(".")[0] in ("request", "artifact", "media", "text") for kind in types)


def test_frames_are_no_part_of_the_json_form():
    event = MediaChunk(**HEAD, **EXAMPLES["MediaChunk"], data=object())
    assert "data" not in event.model_dump()
    assert "object" not in repr(event)


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        (RequestProgress, {"fraction": 1.5}),
        (RequestProgress, {"fraction": float("nan")}),
        (RequestProgress, {"remaining_s": -1}),
        (RequestProgress, {"sequence": -1}),
        (RequestFailed, {"message": None}),
        (MediaChunk, {"stream": None}),
        (MediaChunk, {"start_s": 1.0, "end_s": 0.5}),
        (events.MediaInit, {"fps": 0}),
        (events.MediaInit, {"width": 0}),
    ],
)
def test_an_impossible_event_cannot_be_built(kind, change):
    fields = {**HEAD, **EXAMPLES[kind.__name__]}
    with pytest.raises(ValidationError):
        kind(**{**fields, **change})


@given(st.text(max_size=20) | st.sampled_from(['{"type": "request.unknown"}', "[]", '{"sequence": 1}']))
def test_other_text_is_no_event(text):
    with pytest.raises(ValidationError):
        parse_event(text)
