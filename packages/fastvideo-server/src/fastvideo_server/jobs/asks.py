"""From the fields of a call to a request that the card takes; whatever is wrong is told by the field's name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from fractions import Fraction
from types import MappingProxyType
from typing import Any, Literal

from fastvideo_core.card import ModelCard, ParameterSpec, TaskSpec
from fastvideo_core.errors import InputError
from fastvideo_core.request.base import Request
from fastvideo_core.request.build import build_request, check_latency_class
from fastvideo_core.request.media.images import load_image
from fastvideo_core.request.parameters import ResolvedParameters
from fastvideo_core.runtime.serving import OfferedTask, ServedCall, WeightStack
from fastvideo_server.errors import ApiError, api_error

__all__ = ["NO_OFFERS", "Ask", "build", "check_fields", "check_model", "length_text", "read_ask", "size_text"]

_FRONT = ("prompt", "model", "size", "task", "latency_class", "deadline_s", "exact")
"""Fields that every creation has, besides the card's parameters."""
_OWN: dict[str, tuple[str, ...]] = {
    "video": ("seconds", "input_reference"),
    "image": ("n", "response_format", "output_format", "user"),
    "session": (),
}
_SIZE = re.compile(r"(\d{1,6})x(\d{1,6})", re.ASCII)
_BOOLEANS = {"true": True, "false": False}

NO_OFFERS: Mapping[str, OfferedTask] = MappingProxyType({})

AskKind = Literal["video", "image", "session"]


@dataclass(frozen=True, slots=True)
class Ask:
    """What somebody wants.

    Attributes:
        prompt: What to show.
        task: The card's task.
        image: Bytes of an input image's file; None without one.
        parameters: Parameters that were given, and only those.
        latency_class: How urgent it is; None for the usual.
        deadline_s: Seconds in which it is wanted.
        is_exact: Whether the reference's order of operations is asked for.
        outputs: Artifacts that are wanted.
        inputs: Further inputs by name.
        request: The request, where somebody else than this module has built it.
        weights: Changes of weights that it runs under; None runs on the card's own.
        call: The call of a task that a plugin offers; None for the card's own tasks.
        has_previews: Whether pictures are wanted while it runs.
    """

    prompt: str
    task: str
    image: bytes | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    latency_class: str | None = None
    deadline_s: float | None = None
    is_exact: bool = False
    outputs: tuple[str, ...] = ("video",)
    inputs: Mapping[str, Any] = field(default_factory=dict)
    request: Request | None = None
    weights: WeightStack | None = None
    call: ServedCall | None = None
    has_previews: bool = False


def read_ask(
    card: ModelCard,
    fields: Mapping[str, Any],
    *,
    kind: AskKind,
    image: bytes | None = None,
    is_form: bool = False,
    offers: Mapping[str, OfferedTask] = NO_OFFERS,
    owner: str = "",
) -> Ask:
    """Read the fields of a creation.

    Args:
        card: The card that is served.
        fields: What was given, by name.
        kind: What is to be made.
        image: Bytes of an input image's file.
        is_form: Whether values are text because a form can hold nothing else.
        offers: Tasks that plugins offer beside the card's.
        owner: Who asks, for these.

    Raises:
        ApiError: A field is missing, unknown, given twice, or not allowed.
    """
    check_model(card, fields.get("model"))
    task_name = _text(fields, "task") or _suggest(card, has_image=image is not None)
    if task_name in offers:
        return _offered(card, offers[task_name].spec, task_name, fields, image=image, is_form=is_form, owner=owner)
    task = _task(card, task_name, offers)
    names = [*_FRONT, *_OWN[kind], *task.parameters]
    check_fields(fields, names)
    prompt = _text(fields, "prompt")
    if prompt is None:
        raise ApiError(400, "prompt is missing", code="missing_field", param="prompt", allowed="text")
    parameters = _parameters(task, fields, is_form=is_form)
    _add_size(fields, task, parameters)
    if kind == "video":
        _add_seconds(card, task, fields, parameters)
    elif kind == "image":
        _add_single_frame(task, task_name, parameters)
    return Ask(
        prompt,
        task_name,
        image,
        parameters,
        _text(fields, "latency_class"),
        _seconds(fields, "deadline_s", is_form=is_form),
        _flag(fields, "exact", is_form=is_form),
    )


def _offered(
    card: ModelCard,
    task: TaskSpec,
    name: str,
    fields: Mapping[str, Any],
    *,
    image: bytes | None,
    is_form: bool,
    owner: str,
) -> Ask:
    """Read the fields of a call of a task that a plugin offers: its parameters, and nothing that it does not have."""
    check_fields(fields, [*(one for one in _FRONT if one not in ("prompt", "exact")), "seconds", *task.parameters])
    if image is not None and "image" not in task.inputs:
        raise _wrong("input_reference", "an image", f"nothing: task {name} takes no image")
    parameters = _parameters(task, fields, is_form=is_form)
    _add_size(fields, task, parameters)
    _add_seconds(card, task, fields, parameters)
    try:
        checked = {key: task.parameters[key].validate_value(key, value) for key, value in parameters.items()}
        urgency = _text(fields, "latency_class")
        latency_class = None if urgency is None else check_latency_class(urgency)
    except InputError as error:
        raise api_error(error) from error
    prompt = checked.get("prompt", task.defaults().get("prompt"))
    return Ask(
        prompt if isinstance(prompt, str) else "",
        name,
        latency_class=latency_class,
        deadline_s=_seconds(fields, "deadline_s", is_form=is_form),
        call=ServedCall(owner, checked, image),
    )


def _parameters(task: TaskSpec, fields: Mapping[str, Any], *, is_form: bool) -> dict[str, Any]:
    return {
        name: _from_text(task.parameters[name], name, value) if is_form else value
        for name, value in fields.items()
        if name in task.parameters
    }


def build(card: ModelCard, ask: Ask, *, request_id: str, max_image_pixels: int) -> Request:
    """Build the request of an ask; decodes its image.

    Raises:
        ApiError: The card has no such class, or the image cannot be read.
    """
    if ask.request is not None:
        said = {"latency_class": ask.latency_class, "deadline_s": ask.deadline_s}
        changes = {name: value for name, value in said.items() if value is not None}
        return ask.request.model_copy(update={"request_id": request_id, **changes})
    try:
        pixels = (
            None if ask.image is None else load_image(ask.image, field="input_reference", max_pixels=max_image_pixels)
        )
        request = build_request(
            card, ask.prompt, task=ask.task, image=pixels, inputs=ask.inputs, outputs=ask.outputs, exact=ask.is_exact,
            parameters=ask.parameters, request_id=request_id, latency_class=ask.latency_class,
            deadline_s=ask.deadline_s,
        )  # fmt: skip
        if ask.has_previews:
            return request.model_copy(update={"outputs": request.outputs.model_copy(update={"previews": True})})
        return request
    except InputError as error:
        raise api_error(error) from error


def size_text(parameters: ResolvedParameters) -> str:
    """Return a video's size as clients know it, `64x48`."""
    return f"{parameters['width']}x{parameters['height']}" if {"width", "height"} <= parameters.keys() else ""


def length_text(task: TaskSpec, parameters: ResolvedParameters) -> str:
    """Return a video's length in seconds, from the first frame to the last as `seconds` counts it."""
    if not {"num_frames", "fps"} <= parameters.keys():
        return ""
    steps = parameters["num_frames"] - _first_frames(task)
    return f"{float(Fraction(steps) / Fraction(parameters['fps'])):g}"


def check_fields(fields: Mapping[str, Any], names: list[str]) -> None:
    """Refuse fields that there are not.

    Raises:
        ApiError: 400, with the field and the nearest that there is.
    """
    for name in fields:
        if name not in names:
            raise _unknown(name, names)


def check_model(card: ModelCard, model: Any) -> None:
    """Refuse a model that is not the card.

    Raises:
        ApiError: 404, with the one that is served.
    """
    if model is not None and model != card.model_id:
        raise ApiError(
            404, f"model {str(model)[:100]!r} is not served here", code="model_not_found", param="model",
            allowed=card.model_id, nearest=card.model_id,
        )  # fmt: skip


def _suggest(card: ModelCard, *, has_image: bool) -> str:
    tasks, default = card.capabilities.tasks, card.capabilities.default_task
    takers = [name for name in (default, *tasks) if "image" in tasks[name].inputs]
    return takers[0] if has_image and takers else default


def _task(card: ModelCard, name: str, offers: Mapping[str, OfferedTask]) -> TaskSpec:
    try:
        return card.task(name)
    except InputError as error:
        known = [*card.capabilities.tasks, *offers]
        near = next(iter(get_close_matches(name, known, n=1, cutoff=0.5)), None)
        raise _wrong("task", name, ", ".join(known), nearest=near) from error


def _unknown(name: str, names: list[str]) -> ApiError:
    near = [known for known in names if name in known.split("_")]
    near += get_close_matches(name, names, n=1, cutoff=0.5)
    return ApiError(
        400,
        f"there is no field {name[:100]!r} here",
        code="unknown_parameter",
        param=name[:100],
        allowed=", ".join(names),
        nearest=next(iter(near), None),
    )


def _wrong(name: str, value: Any, allowed: str, *, nearest: Any = None) -> ApiError:
    return ApiError(
        400, f"{name}={str(value)[:100]!r} is not allowed; allowed: {allowed}", code="invalid_value", param=name,
        allowed=allowed, nearest=nearest,
    )  # fmt: skip


def _text(fields: Mapping[str, Any], name: str) -> str | None:
    value = fields.get(name)
    if value is not None and not isinstance(value, str):
        raise _wrong(name, value, "text")
    return value


def _seconds(fields: Mapping[str, Any], name: str, *, is_form: bool) -> float | None:
    value = fields.get(name)
    if value is None:
        return None
    number = _number(value) if is_form or not isinstance(value, str) else None
    if number is None or not 0 < number < 1e9:
        raise _wrong(name, value, "a number of seconds above 0")
    return float(number)


def _flag(fields: Mapping[str, Any], name: str, *, is_form: bool) -> bool:
    value = fields.get(name, False)
    if is_form and isinstance(value, str):
        value = _BOOLEANS.get(value.lower(), value)
    if not isinstance(value, bool):
        raise _wrong(name, value, "true or false")
    return value


def _number(value: Any) -> int | float | None:
    """Return a finite number, from text too; None for what is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    if isinstance(value, str):
        if len(value) > 40:
            return None
        try:
            value = int(value)
        except ValueError:
            try:
                value = float(value)
            except ValueError:
                return None
    return value if abs(value) < float("inf") else None


def _from_text(spec: ParameterSpec, name: str, value: Any) -> Any:
    """Return what the text of a form's field means for a parameter; what it cannot mean is left for the card."""
    if spec.type in ("integers", "numbers"):
        return [_scalar(one) for one in (value if isinstance(value, list) else [value])]
    if isinstance(value, list):
        raise ApiError(400, f"{name} was given more than once", code="duplicate_field", param=name, allowed="once")
    if spec.type == "boolean":
        return _BOOLEANS.get(value.lower(), value)
    return value if spec.type == "string" else _scalar(value)


def _scalar(text: str) -> Any:
    number = _number(text)
    return text if number is None else number


def _add_size(fields: Mapping[str, Any], task: TaskSpec, parameters: dict[str, Any]) -> None:
    size = _text(fields, "size")
    if size is None or size == "auto":
        return
    found = _SIZE.fullmatch(size)
    if found is None:
        raise _wrong("size", size, "WIDTHxHEIGHT, for instance 64x64")
    for name, value in zip(("width", "height"), found.groups(), strict=True):
        _add(name, int(value), "size", task, parameters)


def _add_seconds(card: ModelCard, task: TaskSpec, fields: Mapping[str, Any], parameters: dict[str, Any]) -> None:
    """Turn a length into frames: the one that is there at 0 s, and those up to the end."""
    value = fields.get("seconds")
    if value is None:
        return
    seconds = _number(value)
    if seconds is None or not 0 <= seconds < 1e6:
        raise _wrong("seconds", value, "a number of seconds")
    if "fps" not in task.parameters or "num_frames" not in task.parameters:
        raise _wrong("seconds", value, f"nothing: {card.model_id} has no such setting")
    fps = parameters.get("fps", task.parameters["fps"].default)
    rate = _number(fps)
    if rate is None or rate <= 0:
        raise _wrong("fps", fps, task.parameters["fps"].allowed_text())
    frames = Fraction(str(seconds)) * Fraction(str(rate)) + _first_frames(task)
    spec = task.parameters["num_frames"]
    try:
        spec.validate_value("num_frames", float(frames))
    except InputError as error:
        nearest = Fraction(error.nearest - _first_frames(task)) / Fraction(str(rate))
        raise _wrong(
            "seconds", value, f"lengths at {rate:g} frames a second whose frames are {spec.allowed_text()}",
            nearest=f"{float(nearest):g}",
        ) from error  # fmt: skip
    _add("num_frames", int(frames), "seconds", task, parameters)


def _first_frames(task: TaskSpec) -> int:
    """Return how many frames there are at 0 s: one, where frame counts are of the form 4k + 1."""
    spec = task.parameters["num_frames"]
    return spec.offset if spec.multiple_of is not None else 0


def _add_single_frame(task: TaskSpec, name: str, parameters: dict[str, Any]) -> None:
    spec = task.parameters.get("num_frames")
    if spec is None:
        return
    try:
        spec.validate_value("num_frames", 1)
    except InputError:
        raise ApiError(
            400, f"task {name} of this card makes no single images", code="unsupported", param="model",
            allowed="/v1/videos",
        ) from None  # fmt: skip
    _add("num_frames", 1, "n", task, parameters)


def _add(name: str, value: int, source: str, task: TaskSpec, parameters: dict[str, Any]) -> None:
    if name not in task.parameters:
        raise _wrong(source, value, f"nothing: the card has no {name}")
    if parameters.get(name, value) != value:
        raise ApiError(
            400, f"{source} and {name} contradict each other", code="contradiction", param=name, allowed=str(value)
        )
    parameters[name] = value
