"""What a prefill reads: the tokens of a conversation, of a prompt for the generator, or of an action caption."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fastvideo_core.card import LoopSpec
from fastvideo_core.errors import InputError, PromptError
from fastvideo_core.loop.base import ModelView
from fastvideo_core.request.media.pixels import Frames
from fastvideo_cosmos3.models.embodiments import canvas_of
from fastvideo_cosmos3.models.prompts import SYSTEM_IMAGE, SYSTEM_VIDEO, action_caption, generation_text
from fastvideo_cosmos3.models.tokenizer import ChatTokenizer
from fastvideo_cosmos3.models.vision import VisionPreprocessor, Visual

__all__ = ["GENERATED_END", "TextToRead", "check_context", "read_history", "read_text", "read_visual", "view_frames"]

GENERATED_END = 2
"""Tokens between a text and what is generated: its end, and the start of what follows."""

_CAPTIONS = ("caption", "caption_negative")


@dataclass(frozen=True, slots=True)
class TextToRead:
    """Tokens, and where images stand among them.

    Attributes:
        ids: The tokens.
        grids: Rows and columns of tokens of each image, and of each group of frames of a video, in order.
    """

    ids: tuple[int, ...]
    grids: tuple[tuple[int, int], ...] = ()


def read_text(model: ModelView, spec: LoopSpec, parameters: Mapping[str, Any], inputs: Mapping[str, Any]) -> TextToRead:
    """Return what a prefill reads.

    Args:
        model: Gives the tokenizer, and the preprocessing of what is shown.
        spec: The loop. Options: `system_prompt`, whether the generator is told what it is; `spatial_factor`, pixels of
            a latent row or column.
        parameters: The request's.
        inputs: `text` says what kind of text it is; `answers` whether an answer follows, else something is generated.

    Raises:
        PromptError: The text and what follows it are longer than the context.
    """
    tokenizer: ChatTokenizer = model.component("text_tokenizer")
    if inputs["text"] == "chat":
        read = _read_chat(model, tokenizer, inputs)
    else:
        text = _generator_text(spec, parameters, inputs)
        read = TextToRead(tokenizer.encode_chat([*_system(spec, parameters), {"role": "user", "content": text}]))
        _check_placeholders(tokenizer, read.ids, tokenizer.image_id, 0)
    if not inputs.get("answers"):
        return TextToRead((*read.ids, tokenizer.eos_id, tokenizer.start_of_generation_id), read.grids)
    return read


def check_context(spec: LoopSpec, parameters: Mapping[str, Any], inputs: Mapping[str, Any], num_tokens: int) -> None:
    """Refuse a text that, with the answer to it, is longer than the context.

    Raises:
        PromptError: With the number of tokens, and how many are allowed.
    """
    limit = int(spec.options["max_context"])
    answer = int(parameters["max_tokens"]) + GENERATED_END if inputs.get("answers") else 0
    if num_tokens + answer > limit:
        name = "negative_prompt" if "negative" in str(inputs["text"]) else "prompt"
        with_answer = f" and up to {answer} of the answer" if answer else ""
        raise PromptError(
            f"the text has {num_tokens} tokens{with_answer}", field=name, value=num_tokens + answer,
            allowed=f"at most {limit} tokens",
        )  # fmt: skip


def read_history(text: str | None) -> list[dict[str, Any]]:
    """Return the turns before a question, from their JSON form.

    Each has `role` (user or assistant) and `content`: text, or parts such as `{"type": "text", "text": …}`, and once
    `{"type": "image"}` or `{"type": "video"}` where it was shown.

    Raises:
        InputError: It is no such list.
    """
    if not text:
        return []
    allowed = 'a JSON list of {"role": "user" or "assistant", "content": text or parts}'
    try:
        turns = json.loads(text)
        return [_read_turn(turn) for turn in turns]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise InputError("not a conversation", field="history", value=text, allowed=allowed) from None


def _read_turn(turn: Any) -> dict[str, Any]:
    if turn["role"] not in ("user", "assistant", "system"):
        raise ValueError(turn["role"])
    content = turn["content"]
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    kept = [{"type": part["type"]} if part["type"] != "text" else {"type": "text", "text": str(part["text"])}
            for part in parts]  # fmt: skip
    if any(part["type"] not in ("text", "image", "video") for part in kept):
        raise ValueError("no such part")
    return {"role": turn["role"], "content": kept}


def view_frames(inputs: Mapping[str, Any]) -> Frames:
    """Return the frames that an action task sees: of a video, or of one image.

    Raises:
        InputError: There is neither.
    """
    image, video = inputs.get("image"), inputs.get("video")
    if video is not None:
        frames: Frames = video.frames
        return frames
    if image is None:
        raise InputError(
            "the task needs something to look at", field="image", value=None, allowed="an image or a video"
        )
    single: Frames = image[None]
    return single


def read_visual(processor: VisionPreprocessor, inputs: Mapping[str, Any]) -> Visual | None:
    """Return what a conversation shows, as patches; None if it is text alone.

    Raises:
        InputError: It shows an image and a video.
    """
    image, video = inputs.get("image"), inputs.get("video")
    if image is not None and video is not None:
        raise InputError("a conversation shows one thing", field="video", value="an image too", allowed="one of them")
    if image is not None:
        return processor.image(image)
    return None if video is None else processor.video(video.frames, float(video.fps))


def _generator_text(spec: LoopSpec, parameters: Mapping[str, Any], inputs: Mapping[str, Any]) -> str:
    kind = str(inputs["text"])
    text = str(inputs["prompt"]) if "negative" not in kind else str(parameters.get("negative_prompt") or "")
    if kind == "caption_negative":
        return text
    fps = float(parameters.get("fps") or 24.0)
    if kind == "caption":
        grid = int(spec.options["spatial_factor"])
        rows, columns = (max(grid, size - size % grid) for size in view_frames(inputs).shape[1:3])
        height, width = canvas_of(str(parameters["resolution_tier"]), rows, columns)
        num_frames = int(parameters["chunk_size"]) + 1
        view_point = str(parameters["view_point"])
        return action_caption(text, view_point=view_point, num_frames=num_frames, height=height, width=width, fps=fps)
    return generation_text(
        text,
        num_frames=int(parameters.get("num_frames", 1)),
        height=int(parameters["height"]),
        width=int(parameters["width"]),
        fps=fps,
        is_negative=kind == "negative",
    )


def _system(spec: LoopSpec, parameters: Mapping[str, Any]) -> list[dict[str, Any]]:
    if not spec.options.get("system_prompt", True):
        return []
    is_image = "num_frames" not in parameters and "chunk_size" not in parameters
    return [{"role": "system", "content": SYSTEM_IMAGE if is_image else SYSTEM_VIDEO}]


def _read_chat(model: ModelView, tokenizer: ChatTokenizer, inputs: Mapping[str, Any]) -> TextToRead:
    seen = inputs.get("image") is not None or inputs.get("video") is not None
    visual = read_visual(model.component("image_processor"), inputs) if seen else None
    before = read_history(inputs.get("history"))
    parts: list[dict[str, Any]] = [{"type": "text", "text": str(inputs["prompt"])}]
    kind = None if visual is None else "video" if visual.seconds else "image"
    if kind is not None and not any({"type": kind} in turn["content"] for turn in before):
        parts.insert(0, {"type": kind})
    ids = tokenizer.encode_chat([*before, {"role": "user", "content": parts}])
    placeholder = tokenizer.video_id if kind == "video" else tokenizer.image_id
    _check_placeholders(tokenizer, ids, placeholder, 0 if visual is None else 1)
    if visual is None:
        return TextToRead(ids)
    grid = (visual.grid[1] // visual.merge, visual.grid[2] // visual.merge)
    place = ids.index(placeholder)
    return TextToRead((*ids[:place], *_visual_ids(tokenizer, visual), *ids[place + 1 :]), (grid,) * visual.grid[0])


def _check_placeholders(tokenizer: ChatTokenizer, ids: tuple[int, ...], placeholder: int, wanted: int) -> None:
    """Refuse a text that holds a token which stands for something shown, where nothing is."""
    found = sum(token in (tokenizer.image_id, tokenizer.video_id) for token in ids)
    if found != wanted or ids.count(placeholder) != wanted:
        raise PromptError(
            "the conversation refers to something that is not shown", field="prompt", value=found,
            allowed=f"{wanted} places for an image or a video",
        )  # fmt: skip


def _visual_ids(tokenizer: ChatTokenizer, visual: Visual) -> tuple[int, ...]:
    """Return the tokens in place of what is shown; each group of a video's frames stands behind its time."""
    if not visual.seconds:
        return (tokenizer.image_id,) * visual.tokens_a_group
    ids: list[int] = []
    for seconds in visual.seconds:
        ids += tokenizer.encode(f"<{seconds:.1f} seconds>")
        ids += [
            tokenizer.start_of_generation_id,
            *[tokenizer.video_id] * visual.tokens_a_group,
            tokenizer.vision_end_id,
        ]
    return tuple(ids)
