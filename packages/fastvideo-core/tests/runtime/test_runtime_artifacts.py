from __future__ import annotations

from fractions import Fraction

from fastvideo_core.request.base import Request, TextPart
from fastvideo_core.runtime.engine import Engine
from fastvideo_testing.tiny import tiny_card


def test_an_artifact_carries_what_its_source_ran_with(tiny_folder):
    prompt = TextPart(name="prompt", text="x")
    with Engine.open(tiny_card(tiny_folder)) as engine:
        plain = Request(task="text_to_video", inputs=(prompt,), parameters={"fps": 12})
        own = Request(
            task="text_to_video", inputs=(prompt,), parameters={"fps": 12}, node_overrides={"decode": {"fps": 4}}
        )
        for request, fps in ((plain, 12), (own, 4)):
            seen = []
            result = engine.submit(request, on_event=seen.append).result(60)
            (opened,) = [event for event in seen if event.type == "media.init"]
            assert result.video.fps == Fraction(fps)
            assert opened.fps == fps
