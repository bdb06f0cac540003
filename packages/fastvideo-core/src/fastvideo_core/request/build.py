"""From what a person says (a prompt, an image, some settings) to a request; shared by all front ends, free of torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError

from fastvideo_core.card import ModelCard
from fastvideo_core.errors import InputError, ParameterError
from fastvideo_core.request.base import (
    ActionPart,
    ImagePart,
    ModalPart,
    OutputSpec,
    Request,
    TextPart,
    VideoPart,
)

__all__ = ["build_request", "check_latency_class", "suggest_task"]


def build_request(
    card: ModelCard,
    prompt: str,
    *,
    task: str | None = None,
    image: Any = None,
    inputs: Mapping[str, Any] | None = None,
    outputs: Sequence[str] = (),
    exact: bool = False,
    parameters: Mapping[str, Any] | None = None,
    plugins: Mapping[str, Mapping[str, Any]] | None = None,
    request_id: str | None = None,
    latency_class: str | None = None,
    deadline_s: float | None = None,
) -> Request:
    """Build a request for a card; front ends share it, and no weights are needed.

    Args:
        card: The card.
        prompt: The prompt.
        task: The card's task; None suggests one.
        image: The input `image`: a path, or pixels.
        inputs: Other inputs by name: a path for an image or a video, numbers for actions, or a whole part.
        outputs: Artifacts by name; empty takes the task's default.
        exact: Whether the reference's order of operations is asked for.
        parameters: Parameters by name.
        plugins: Options of plugins that are on where it runs, by plugin.
        request_id: Id; None makes one up.
        latency_class: Scheduling class; None takes the usual one.
        deadline_s: Seconds after acceptance by which the result is wanted.

    Raises:
        InputError: The card has no task for what is given, or there is no such latency class.
    """
    chosen = suggest_task(card, has_image=image is not None) if task is None else task
    fields: dict[str, Any] = {} if request_id is None else {"request_id": request_id}
    if latency_class is not None:
        fields["latency_class"] = check_latency_class(latency_class)
    try:
        parts: list[Any] = [TextPart(name="prompt", text=prompt)]
        if image is not None:
            parts.append(_image_part(image))
        parts += [_part(card, chosen, name, value) for name, value in (inputs or {}).items()]
        return Request(
            task=chosen,
            inputs=tuple(parts),
            parameters=dict(parameters or {}),
            plugins={name: dict(options) for name, options in (plugins or {}).items()},
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


def check_latency_class(name: str) -> str:
    """Return the name of a latency class.

    Raises:
        ParameterError: There is no such class.
    """
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


def suggest_task(card: ModelCard, *, has_image: bool) -> str:
    """Suggest a task at the boundary: the card's default, or with an image one that takes it."""
    default, tasks = card.capabilities.default_task, card.capabilities.tasks
    takers = [name for name in (default, *tasks) if "image" in tasks[name].inputs]
    return takers[0] if has_image and takers else default


def _part(card: ModelCard, task: str, name: str, value: Any) -> Any:
    """Return an input as the part that the task takes under its name."""
    spec = card.task(task).inputs.get(name)
    if spec is None or isinstance(value, get_args(get_args(ModalPart)[0])):
        return value if spec is not None else _refuse_input(card, task, name, value)
    is_path = isinstance(value, (str, Path))
    match spec.modality:
        case "text":
            return TextPart(name=name, text=value)
        case "image":
            return ImagePart(name=name, path=Path(value)) if is_path else ImagePart(name=name, pixels=value)
        case "action":
            return ActionPart(name=name, values=value)
        case "video" if is_path:
            return VideoPart(name=name, path=Path(value))
    raise InputError(
        "give the input as a part", field=name, value=type(value).__name__, allowed=f"a {spec.modality} part"
    )


def _refuse_input(card: ModelCard, task: str, name: str, value: Any) -> Any:
    allowed = card.task(task).inputs
    near = get_close_matches(name, allowed, n=1, cutoff=0.4)
    raise InputError(
        f"task {task} takes no such input", field=name, value=value, allowed=", ".join(allowed),
        nearest=near[0] if near else None,
    )  # fmt: skip


def _image_part(image: Any) -> ImagePart:
    if isinstance(image, (str, Path)):
        return ImagePart(name="image", path=Path(image))
    return ImagePart(name="image", pixels=image)
