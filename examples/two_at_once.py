"""Two requests on one resident model, interleaved step by step, with their events as they come.

Run it in a folder that you may write to:  python two_at_once.py
"""

from __future__ import annotations

from queue import SimpleQueue
from typing import Any

from fastvideo_core import Engine

PROMPTS = {"circle": "a red circle moving right", "square": "a blue square moving up"}


def main() -> None:
    """Make both videos and save them as `circle.mp4` and `square.mp4`."""
    events: SimpleQueue[Any] = SimpleQueue()
    with Engine.open("wan-shapes") as engine:
        handles = {
            name: engine.submit(
                engine.make_request(prompt, parameters={"seed": 7, "num_inference_steps": 6}, request_id=name),
                on_event=events.put,
            )
            for name, prompt in PROMPTS.items()
        }
        num_running = len(handles)
        while num_running:
            event = events.get()
            if event.type == "request.progress":
                print(f"{event.request_id}: {event.node} {event.step}/{event.num_steps}, {event.fraction:.0%}")
            num_running -= event.type in ("request.completed", "request.failed", "request.cancelled")
        for name, handle in handles.items():
            print(handle.result().video.save(f"{name}.mp4").path)


if __name__ == "__main__":
    main()
