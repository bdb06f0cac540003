"""Pictures of what is being denoised: one frame of the clean sample as a step sees it, decoded beside the step.

A loop whose request has `has_previews` set plans `PREVIEW` as a sink of the steps that `preview_steps` names, and the
step body puts a `preview_chunk` there. Nothing else of the step depends on it.
"""

from __future__ import annotations

from typing import Any

from fastvideo_core.loop.work import EmitSpec, StreamChunk

__all__ = ["MAX_PREVIEWS", "PREVIEW", "preview_chunk", "preview_steps"]

MAX_PREVIEWS = 8
"""Most pictures of a request: each costs a decoded frame."""

PREVIEW = EmitSpec("preview", "preview")
"""The sink."""


def preview_steps(begin: int, num_steps: int) -> tuple[int, ...]:
    """Return the steps after which there is a picture, evenly spread; the last step is followed by the result.

    Args:
        begin: The first step that is made.
        num_steps: One more than the last.
    """
    steps = range(begin, num_steps - 1)
    count = min(MAX_PREVIEWS, len(steps))
    return tuple(steps[index * len(steps) // count] for index in range(count))


def preview_chunk(frames_THWC: Any, index: int) -> StreamChunk:
    """Return what goes into the sink: the picture as a clip of one frame.

    Args:
        frames_THWC: uint8 (1, H, W, 3).
        index: Which of the request's pictures it is, from 0.
    """
    return StreamChunk(stream=PREVIEW.stream, kind="preview", index=index, data=frames_THWC)
