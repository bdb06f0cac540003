"""From the messages of a chat to a request that the card's reasoner takes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastvideo_core.card import ModelCard
from fastvideo_server.errors import ApiError
from fastvideo_server.http.bodies import image_from_url
from fastvideo_server.jobs.asks import Ask, check_fields, check_model

__all__ = ["Talk", "read_talk", "reasoning_task"]

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_FRONT = ("model", "messages", "stream", "stream_options", "n", "user", "max_completion_tokens", "response_format")
_FIXED = {
    "n": (1,),
    "response_format": ({"type": "text"},),
}
"""Fields that clients send, and the only values that mean what is done here."""


@dataclass(frozen=True, slots=True)
class Talk:
    """What somebody asks a reasoner.

    Attributes:
        ask: The request.
        is_streamed: Whether the answer is sent as it is written.
        has_usage: Whether the end of a streamed answer says how many tokens it took.
    """

    ask: Ask
    is_streamed: bool = False
    has_usage: bool = False


def reasoning_task(card: ModelCard) -> str:
    """Return the task of a card that answers in text.

    Raises:
        ApiError: 404, it has none.
    """
    for name, task in card.capabilities.tasks.items():
        if set(task.outputs.values()) == {"text"}:
            return name
    raise ApiError(
        404,
        f"{card.model_id} has no reasoner",
        code="unsupported",
        param="model",
        allowed="a card that answers in text",
    )


def read_talk(card: ModelCard, fields: Mapping[str, Any]) -> Talk:
    """Read the fields of a chat's call.

    Args:
        card: The card that is served.
        fields: What was given, by name.

    Raises:
        ApiError: A field is missing, unknown or not allowed, or the card has no reasoner.
    """
    check_model(card, fields.get("model"))
    name = reasoning_task(card)
    task = card.task(name)
    check_fields(fields, [*_FRONT, *task.parameters])
    for field, allowed in _FIXED.items():
        if fields.get(field) not in (None, *allowed):
            raise _wrong(field, fields[field], " or ".join(map(json.dumps, allowed)))
    turns, image = _turns(fields.get("messages"), can_see="image" in task.inputs)
    ask = Ask(
        turns[-1].text,
        name,
        image,
        _parameters(fields, [one for one in task.parameters if one in fields]),
        latency_class="interactive",
        outputs=tuple(task.outputs),
        inputs={"history": json.dumps([turn.to_json() for turn in turns[:-1]])} if turns[1:] else {},
    )
    is_streamed = _flag(fields, "stream")
    return Talk(ask, is_streamed, is_streamed and _flag(_options(fields), "include_usage", "stream_options."))


@dataclass(frozen=True, slots=True)
class _Turn:
    """What was said by somebody.

    Attributes:
        role: Who.
        text: What.
        is_shown: Whether the image was shown with it.
    """

    role: str
    text: str
    is_shown: bool

    def to_json(self) -> dict[str, Any]:
        """Return it as the reasoner takes earlier turns."""
        shown = [{"type": "image"}] if self.is_shown else []
        return {"role": self.role, "content": [*shown, {"type": "text", "text": self.text}]}


def _turns(messages: Any, *, can_see: bool) -> tuple[list[_Turn], bytes | None]:
    """Return what was said, and the image that was shown."""
    if not isinstance(messages, list) or not messages:
        raise _wrong("messages", messages, "a list of messages")
    turns, shown = [], None
    for index, message in enumerate(messages):
        place = f"messages.{index}"
        if not isinstance(message, dict) or not isinstance(role := message.get("role"), str) or role not in _ROLES:
            raise _wrong(f"{place}.role", message, ", ".join(_ROLES))
        text, image = _content(message.get("content"), f"{place}.content")
        if image is not None and (shown is not None or not can_see or role != "user"):
            raise _wrong(f"{place}.content", "an image", "one image, of a user" if can_see else "text: it cannot see")
        shown = shown if image is None else image
        turns.append(_Turn(_ROLES[role], text, image is not None))
    if turns[-1].role != "user":
        raise _wrong(f"messages.{len(turns) - 1}.role", turns[-1].role, "user, in the last message")
    return turns, shown


def _content(content: Any, place: str) -> tuple[str, bytes | None]:
    """Return the text of a message, and the image in it."""
    if isinstance(content, str):
        return content, None
    if not isinstance(content, list):
        raise _wrong(place, content, "text, or a list of parts")
    texts, images = [], []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        value = part.get(kind) if isinstance(kind, str) else None
        if kind == "text" and isinstance(value, str):
            texts.append(value)
        elif kind == "image_url" and isinstance(value, dict) and isinstance(value.get("url"), str):
            images.append(_image(value["url"], place))
        else:
            raise _wrong(place, part, "parts of type text, or image_url with a data URL")
    if len(images) > 1:
        raise _wrong(place, f"{len(images)} images", "one image")
    return "\n".join(texts), next(iter(images), None)


def _image(url: str, place: str) -> bytes:
    try:
        return image_from_url(url)
    except ApiError as error:
        error.param = place
        raise


def _parameters(fields: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return the card's parameters, by its names and in its forms."""
    given = {name: fields[name] for name in names if fields[name] is not None}
    if isinstance(given.get("stop"), str):
        given["stop"] = [given["stop"]]
    newer = fields.get("max_completion_tokens")
    if newer is not None:
        if given.get("max_tokens", newer) != newer:
            raise ApiError(
                400, "max_tokens and max_completion_tokens contradict each other", code="contradiction",
                param="max_completion_tokens", allowed="one of them",
            )  # fmt: skip
        given["max_tokens"] = newer
    return given


def _options(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    options = fields.get("stream_options") or {}
    if not isinstance(options, dict) or set(options) - {"include_usage"}:
        raise _wrong("stream_options", options, "include_usage")
    return options


def _flag(fields: Mapping[str, Any], name: str, place: str = "") -> bool:
    value = fields.get(name)
    if value is not None and not isinstance(value, bool):
        raise _wrong(place + name, value, "true or false")
    return bool(value)


def _wrong(name: str, value: Any, allowed: str) -> ApiError:
    return ApiError(
        400, f"{name}={str(value)[:100]!r} is not allowed; allowed: {allowed}", code="invalid_value", param=name,
        allowed=allowed,
    )  # fmt: skip
