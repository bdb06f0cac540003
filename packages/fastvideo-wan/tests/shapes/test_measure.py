"""Cases go to the engine with their own seeds, a few at a time, and their clips are judged in order."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from fastvideo_wan.shapes.evaluation import Case, held_out_cases, summarise
from fastvideo_wan.shapes.measure import MAX_WAITING, make_and_judge
from fastvideo_wan.shapes.render import render_clip, to_uint8_frames


@dataclass
class DrawingEngine:
    """Stands in for the engine: draws what the prompt's case asks for."""

    cases: list[Case]
    asked: list[dict[str, Any]] = field(default_factory=list)
    waiting: int = 0
    most_waiting: int = 0
    cancelled: int = 0

    def make_request(self, prompt: str, *, parameters: dict[str, Any]) -> Any:
        return SimpleNamespace(prompt=prompt, parameters=parameters)

    def submit(self, request: Any, *, on_event: Any = None) -> Any:
        self.asked.append(request.parameters)
        self.waiting += 1
        self.most_waiting = max(self.most_waiting, self.waiting)
        if on_event is not None:
            on_event(request.prompt)
        return SimpleNamespace(result=lambda: self._draw(request), cancel=self._cancel)

    def _draw(self, request: Any) -> Any:
        self.waiting -= 1
        (case,) = [c for c in self.cases if (c.prompt, c.seed) == (request.prompt, request.parameters["seed"])]
        frames = to_uint8_frames(render_clip(case.scene, num_frames=request.parameters["num_frames"])).numpy()
        return SimpleNamespace(video=SimpleNamespace(frames=frames))

    def _cancel(self, reason: str) -> None:
        self.cancelled += 1


def test_every_case_is_made_with_its_seed_and_judged() -> None:
    cases = held_out_cases(MAX_WAITING + 5, seed=4)
    engine, events = DrawingEngine(cases), []
    judged = list(make_and_judge(engine, cases, {"num_frames": 5}, on_event=events.append))  # type: ignore[arg-type]
    assert [item.case for item in judged] == cases
    assert [asked["seed"] for asked in engine.asked] == [case.seed for case in cases]
    assert summarise([item.scores for item in judged])["all"]["part"] == 1
    assert engine.most_waiting == MAX_WAITING and engine.waiting == 0 and engine.cancelled == 0
    assert events == [case.prompt for case in cases]


def test_what_still_waits_is_cancelled_when_nobody_wants_it() -> None:
    cases = held_out_cases(6, seed=4)
    engine = DrawingEngine(cases)
    some = make_and_judge(engine, cases, {"num_frames": 1})  # type: ignore[arg-type]
    next(some)
    some.close()
    assert engine.cancelled == 5


def test_a_failed_request_ends_the_evaluation() -> None:
    cases = held_out_cases(3, seed=4)
    engine = DrawingEngine(cases[:1])
    with pytest.raises(ValueError, match="not enough values"):
        list(make_and_judge(engine, cases, {"num_frames": 1}))  # type: ignore[arg-type]
    assert engine.cancelled == 1
