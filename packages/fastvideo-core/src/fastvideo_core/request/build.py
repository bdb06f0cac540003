"""From what a person says (a prompt, an image, some settings) to a request; shared by all front ends, free of torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError

from fastvideo_core.card import ModelCard
from fastvideo_core.errors import InputError, ParameterError
from fastvideo_core.request.base import ImagePart, OutputSpec, Request, TextPart

__all__ = ["build_request"]


def build_request(
    card: ModelCard,
    prompt: str,
    *,
    task: str | None = None,
    image: Any = None,
    outputs: Sequence[str] = (),
    exact: bool = False,
    parameters: Mapping[str, Any] | None = None,
    request_id: str | None = None,
    latency_class: str | None = None,
    deadline_s: float | None = None,
) -> Request:
    """Build a request for a card; front ends share it, and no weights are needed.

    Raises:
        InputError: The card has no task for what is given, or there is no such latency class.
    """
    chosen = _suggest_task(card, has_image=image is not None) if task is None else task
    fields: dict[str, Any] = {} if request_id is None else {"request_id": request_id}
    if latency_class is not None:
        fields["latency_class"] = _check_class(latency_class)
    try:
        parts: list[Any] = [TextPart(name="prompt", text=prompt)]
        if image is not None:
            parts.append(_image_part(image))
        return Request(
            task=chosen,
            inputs=tuple(parts),
            parameters=dict(parameters or {}),
            outputs=OutputSpec(artifacts=tuple(outputs)),
            exact=exact,
            deadline_s=deadline_s,
            **fields,
        )
    except ValidationError as error:
        first = error.errors()[0]
        # A part names no field of the request; what is wrong in it is the prompt's text.
        field = {"text": "prompt"}.get(place := ".".join(str(part) for part in first["loc"]), place)
        raise InputError(first["msg"], field=field, value=first["input"]) from None


def _check_class(name: str) -> str:
    classes = get_args(Request.model_fields["latency_class"].annotation)
    if name not in classes:
        near = get_close_matches(str(name), classes, n=1, cutoff=0.4)
        raise ParameterError(
            "no such class",
            field="latency_class",
            value=name,
            allowed=", ".join(classes),
            nearest=near[0] if near else None,
        )
    return name


def _suggest_task(card: ModelCard, *, has_image: bool) -> str:
    """Suggest a task at the boundary: the card's default, or with an image one that takes it."""
    default, tasks = card.capabilities.default_task, card.capabilities.tasks
    takers = [name for name in (default, *tasks) if "image" in tasks[name].inputs]
    return takers[0] if has_image and takers else default


def _image_part(image: Any) -> ImagePart:
    if isinstance(image, (str, Path)):
        return ImagePart(name="image", path=Path(image))
    return ImagePart(name="image", pixels=image)
