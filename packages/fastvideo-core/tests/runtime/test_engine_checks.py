from __future__ import annotations

import pytest

from fastvideo_core.errors import InputWarning, PromptError
from fastvideo_core.runtime.engine import Engine
from fastvideo_testing.tiny import tiny_card


@pytest.fixture
def engine(tiny_folder):
    with Engine.open(tiny_card(tiny_folder)) as engine:
        yield engine


def test_what_checks_warn_of_is_told_and_comes_with_the_result(tiny_folder, with_loop, made_up):
    def check(spec, model, parameters, inputs):
        return [] if inputs["prompt"] == "plain" else ["prompt: odd", "prompt: very odd"]

    card = with_loop(tiny_card(tiny_folder), "text", check=made_up("check", check))
    with Engine.open(card) as engine:
        handle = engine.submit(engine.make_request("x"))
        events = list(handle.events())
        assert [e.type for e in events][:4] == [
            "request.accepted", "request.warning", "request.warning", "request.started",
        ]  # fmt: skip
        assert handle.result().warnings == (events[1].message, events[2].message) == ("prompt: odd", "prompt: very odd")
        with pytest.warns(InputWarning, match="prompt: (very )?odd") as warned:
            engine.generate("x")
        assert [w.filename for w in warned] == [__file__] * 2
        assert engine.generate("plain").warnings == ()


def test_what_a_check_refuses_is_refused_at_once(engine):
    with pytest.raises(PromptError, match="the text has 129 tokens"):
        engine.submit(engine.make_request("x" * 129))
