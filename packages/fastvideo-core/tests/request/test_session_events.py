from __future__ import annotations

import pytest
from pydantic import ValidationError

from fastvideo_core.request import session_events
from fastvideo_core.request.events import parse_event

HEAD = {"request_id": "s", "sequence": 3, "time_s": 1.5}
EXAMPLES = {
    "SessionCreated": {"card": "c", "task": "t", "parameters": {}, "parent": "a", "chunk": 2},
    "SessionPushed": {"kind": "text", "step": 7, "chunk": 1},
    "SessionRefused": {"kind": "image", "error": "InputError", "message": "no such event"},
    "SessionHeld": {"reason": "viewer"},
    "SessionResumed": {},
    "SessionSuspended": {"reason": "idle", "chunk": 4, "num_bytes": 100},
    "SessionForked": {"child": "b", "chunk": 3},
    "SessionChunk": {"chunk": 3, "latency_s": 0.2, "lag_s": 0.0, "ahead_s": 1.0},
    "SessionEnded": {"reason": "closed", "num_chunks": 9},
    "SessionFailed": {"error": "NonFiniteError", "message": "step 3 gave NaN"},
}


def test_there_is_an_example_of_every_event():
    assert set(EXAMPLES) == set(session_events.__all__)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_event_survives_json(name):
    event = getattr(session_events, name)(**HEAD, **EXAMPLES[name])
    assert parse_event(event.model_dump_json()) == event
    assert event.type.startswith("session.")
    with pytest.raises(ValidationError, match="Extra inputs"):
        getattr(session_events, name)(**HEAD, **EXAMPLES[name], more=1)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("SessionHeld", {"reason": "weather"}),
        ("SessionChunk", {"latency_s": -1.0}),
        ("SessionPushed", {"kind": "smell"}),
        ("SessionSuspended", {"chunk": -1}),
    ],
)
def test_an_impossible_event_cannot_be_built(name, change):
    with pytest.raises(ValidationError):
        getattr(session_events, name)(**HEAD, **{**EXAMPLES[name], **change})
