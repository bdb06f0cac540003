"""What the generator is told besides the prompt, in the words that its weights were trained with."""

from __future__ import annotations

import json
import math
from typing import Any

from fastvideo_cosmos3.models.embodiments import VIEW_POINTS

__all__ = ["SYSTEM_IMAGE", "SYSTEM_VIDEO", "action_caption", "generation_text"]

SYSTEM_IMAGE = "You are a helpful assistant who will generate images from a give prompt."
SYSTEM_VIDEO = "You are a helpful assistant who will generate videos from a give prompt."

_ASPECTS = ("1,1", "4,3", "3,4", "16,9", "9,16")


def generation_text(
    prompt: str, *, num_frames: int, height: int, width: int, fps: float, is_negative: bool = False
) -> str:
    """Return a prompt with the length and the size of what is wanted, or in a negative prompt of what is not.

    Args:
        prompt: The prompt, or the negative prompt.
        num_frames: Frames; 1 makes an image, which has no length.
        height: Pixels.
        width: Pixels.
        fps: Frames a second.
        is_negative: Whether it is the negative prompt.
    """
    word = "is not" if is_negative else "is"
    text = prompt
    if num_frames > 1:
        text = _append(text, f"The video {word} {num_frames / fps:.1f} seconds long and {word} of {fps:.0f} FPS.")
    kind = "image" if num_frames == 1 else "video"
    return _append(text, f"This {kind} {word} of {height}x{width} resolution.")


def _append(text: str, sentence: str) -> str:
    base = text.rstrip(".")
    return f"{base}. {sentence}" if base else sentence


def action_caption(description: str, *, view_point: str, num_frames: int, height: int, width: int, fps: float) -> str:
    """Return the JSON caption of an action task.

    Args:
        description: What is done.
        view_point: Where the camera is.
        num_frames: Frames of the view.
        height: Pixels of the canvas.
        width: Pixels of the canvas.
        fps: Frames a second.
    """
    seconds = num_frames / fps
    minutes, rest = divmod(round(seconds), 60)
    text = description.strip()
    if text and not text.endswith((".", "!", "?")):
        text = f"{text}."
    caption: dict[str, Any] = {
        "cinematography": {"framing": VIEW_POINTS[view_point]},
        "actions": [{"time": f"0:00-{minutes}:{rest:02d}", "description": text}],
        "duration": f"{math.floor(seconds)}s",
        "fps": float(fps),
        "resolution": {"H": height, "W": width},
        "aspect_ratio": min(_ASPECTS, key=lambda name: abs(_ratio(name) - width / height)),
    }
    return json.dumps(caption)


def _ratio(name: str) -> float:
    width, height = name.split(",")
    return int(width) / int(height)
