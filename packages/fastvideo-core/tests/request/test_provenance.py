from __future__ import annotations

import json
from datetime import UTC, datetime

import numpy as np
import pydantic
import pytest

from fastvideo_core.errors import StateError
from fastvideo_core.request.parameters import ResolvedParameters
from fastvideo_core.request.provenance import ParameterRecord, Provenance


def make(**changes):
    fields = {
        "node": "decode",
        "request_id": "r1",
        "task": "text_to_video",
        "card_id": "wan-shapes",
        "card_version": "1.0",
        "weights_version": "sha256:ab",
        "parameters": {
            "prompt": {"value": "ein grüner Kreis 圆", "source": "request"},
            "guidance_scale": {"value": 5.0, "source": "card"},
            "seed": {"value": 2**63, "source": "engine"},
        },
        "seed": 2**63,
        "created_at": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        "software": {"torch": "2.6"},
    }
    return Provenance(**{**fields, **changes})


def test_round_trip_keeps_every_field():
    made = make()
    assert Provenance.from_json(made.to_json()) == made


def test_json_is_one_ascii_line_with_values_and_sources():
    text = make().to_json()
    assert text.isascii()
    assert "\n" not in text
    read = json.loads(text)
    assert read["parameters"]["prompt"] == {"value": "ein grüner Kreis 圆", "source": "request"}
    assert read["created_at"] == "2026-01-02T03:04:05Z"


def test_takes_resolved_parameters_as_they_write_themselves():
    resolved = ResolvedParameters({"fps": 16, "shift": None}, {"fps": "card", "shift": "deploy"})
    assert make(parameters=resolved.to_json()).parameters == {
        "fps": ParameterRecord(value=16, source="card"),
        "shift": ParameterRecord(value=None, source="deploy"),
    }


def test_defaults_name_the_time_and_the_software():
    before = datetime.now(UTC)
    made = Provenance(node="n", card_id="c")
    assert abs((made.created_at - before).total_seconds()) < 5
    assert made.software["numpy"] == np.__version__
    assert "fastvideo-core" in made.software
    assert "pytest" not in made.software


def test_title_is_the_prompt():
    assert make().title == "ein grüner Kreis 圆"
    assert make(parameters={}).title is None


@pytest.mark.parametrize("value", [float("nan"), float("inf"), [1.0, {"a": float("-inf")}]])
def test_infinity_is_refused_because_json_has_none(value):
    with pytest.raises(pydantic.ValidationError, match="finite"):
        make(parameters={"x": {"value": value, "source": "request"}})


@pytest.mark.parametrize("change", [{"source": "nobody"}, {"value": object()}, {"extra": 1}])
def test_foreign_parameter_records_are_refused(change):
    with pytest.raises(pydantic.ValidationError):
        make(parameters={"x": {"value": 1, "source": "card", **change}})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "document"),
        ("[]", "document"),
        ("{}", "node"),
        ('{"node":"a","card_id":"b","schema_version":2}', "schema_version"),
        ('{"node":"a","card_id":"b","who":1}', "who"),
    ],
)
def test_foreign_json_is_a_state_error(text, message):
    with pytest.raises(StateError, match=message):
        Provenance.from_json(text)


def test_the_versions_are_looked_up_once_and_handed_out_as_copies(monkeypatch):
    from fastvideo_core.request import provenance

    first = provenance.software_versions()
    monkeypatch.setattr(provenance.importlib_metadata, "distributions", None)
    second = provenance.software_versions()
    assert second == first
    second.clear()
    assert provenance.software_versions() == first
