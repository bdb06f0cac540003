"""From what was asked for to jobs: a request that the card accepts, and a file that can be written.

All checks here need no weights and no torch; the cheap ones come first.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from fastvideo_core.errors import OutputError, ParameterError

if TYPE_CHECKING:
    from fastvideo_core.card import ModelCard, TaskSpec
    from fastvideo_core.extend.extensions import Extensions
    from fastvideo_core.request.media.output import OutputTarget
    from fastvideo_core.runtime.durable import SavedJob
    from fastvideo_core.runtime.prepare import PreparedRequest

__all__ = [
    "DEFAULT_SUFFIX",
    "Ask",
    "CardSetup",
    "Job",
    "beside",
    "check_engine_options",
    "find_card",
    "known_formats",
    "needed_bytes",
    "numbered_outputs",
    "output_for",
    "prepare_ask",
    "suffix_for",
    "usual_suffix",
]


class CardSetup(Protocol):
    """What a deploy config says of a card."""

    def parameters(self, card: ModelCard, task: str) -> Mapping[str, Any]:
        """Return parameters in place of the card's defaults."""
        ...

    def extensions(self, card: ModelCard) -> Extensions | None:
        """Return the plugins that are on."""
        ...


DEFAULT_SUFFIX = ".mp4"
"""Extension of results where neither the deploy config nor the task says another."""

_DEVICE = re.compile(r"auto|cpu|cuda(:\d+)?")


@dataclass(frozen=True, slots=True)
class Ask:
    """What somebody wants, before any card has seen it.

    Attributes:
        prompt: What to show.
        task: The card's task; None lets the card suggest one.
        image: Path of an input image.
        inputs: Other inputs by name: paths, and of actions their numbers.
        is_exact: Whether the reference's order of operations is asked for.
        parameters: Parameters that were given, and only those.
        plugins: Options of plugins, by plugin.
        request_id: Id of the request; None makes one up.
        latency_class: How urgent it is; None is the usual.
        deadline_s: Seconds after its start in which it is wanted.
        front_names: What else can be given by name, so that a misspelt one is recognised.
    """

    prompt: str
    task: str | None = None
    image: str | None = None
    inputs: Mapping[str, Any] = field(default_factory=dict)
    is_exact: bool = False
    parameters: Mapping[str, Any] = field(default_factory=dict)
    plugins: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    request_id: str | None = None
    latency_class: str | None = None
    deadline_s: float | None = None
    front_names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Job:
    """A request that can run, and where its result goes.

    Attributes:
        prepared: The checked request.
        artifact: The artifact that is saved.
        target: The checked output.
        saved: Where it goes on, if it was begun by another process.
    """

    prepared: PreparedRequest
    artifact: str
    target: OutputTarget
    saved: SavedJob | None = None

    @property
    def request_id(self) -> str:
        """Id of the request."""
        return self.prepared.request.request_id


def check_engine_options(card: ModelCard, *, device: str, precision: str | None) -> None:
    """Refuse a device that cannot be one, and a precision that the card does not run in.

    Raises:
        ParameterError: No name of a device.
        PrecisionMismatchError: With what is allowed.
    """
    if not _DEVICE.fullmatch(device):
        raise ParameterError("not a device", field="device", value=device, allowed="auto, cpu, cuda, cuda:<index>")
    if precision is not None:
        card.check_precision(precision)


def find_card(name: str | None, *, default: str | None = None) -> ModelCard:
    """Return the card that was asked for, or a default one.

    Args:
        name: Its name; None if nobody has named one.
        default: The card then; None takes that of videos.

    Raises:
        UnknownCardError: There is no such card.
        CardError: What is there is no valid card.
        CheckpointError: The folder or repository holds no known checkpoint.
    """
    from fastvideo_core.defaults import DEFAULT_CARD
    from fastvideo_core.runtime.catalog import Catalog

    return Catalog.installed().find((default or DEFAULT_CARD) if name is None else name)


def prepare_ask(
    card: ModelCard, ask: Ask, suffix: str, *, setup: CardSetup | None = None
) -> tuple[PreparedRequest, str]:
    """Check an ask against a card.

    Args:
        card: The card.
        ask: What is wanted.
        suffix: Extension of the output; it decides which artifact is made, and so which loops run.
        setup: What the deploy config says.

    Returns:
        The checked request, and the name of its artifact.

    Raises:
        InputError: The card does not take it.
    """
    from fastvideo_core.extend.extensions import NO_EXTENSIONS
    from fastvideo_core.request.build import build_request
    from fastvideo_core.runtime.prepare import prepare_request

    request = build_request(
        card, ask.prompt, task=ask.task, image=ask.image, inputs=ask.inputs, exact=ask.is_exact,
        parameters=ask.parameters, plugins=ask.plugins, request_id=ask.request_id, latency_class=ask.latency_class,
        deadline_s=ask.deadline_s,
    )  # fmt: skip
    task = card.task(request.task)
    _check_names(task, ask)
    artifact = output_for(task, suffix)
    outputs = request.outputs.model_copy(update={"artifacts": (artifact, *_beside(task, artifact))})
    prepared = prepare_request(
        card,
        request.model_copy(update={"outputs": outputs}),
        deploy=None if setup is None else setup.parameters(card, request.task),
        extensions=NO_EXTENSIONS if setup is None else setup.extensions(card) or NO_EXTENSIONS,
    )
    _check_fits(prepared, suffix)
    return prepared, artifact


def needed_bytes(prepared: PreparedRequest, suffix: str) -> int:
    """Return a generous guess of an output's size in bytes; zero where nothing is known."""
    from fastvideo_core.request.media.output import VIDEO_FORMATS, estimate_bytes

    size = _video_size(prepared.parameters)
    if suffix not in VIDEO_FORMATS or size is None:
        return 0
    return estimate_bytes(suffix, **size)


def output_for(task: TaskSpec, suffix: str) -> str:
    """Return the first output of a task that a file of this extension can hold.

    Raises:
        OutputError: None can.
    """
    formats = _formats()
    for name, modality in task.outputs.items():
        if suffix in formats.get(modality, ()):
            return name
    allowed = dict.fromkeys(one for modality in task.outputs.values() for one in formats.get(modality, ()))
    raise OutputError(
        "the task makes nothing that goes into such a file", field="output", value=suffix, allowed=", ".join(allowed)
    )


def usual_suffix(card: ModelCard, ask: Ask, suffix: str) -> str:
    """Return the extension of a file that nobody has named; see `suffix_for`."""
    from fastvideo_core.request.build import suggest_task

    return suffix_for(card.task(ask.task or suggest_task(card, has_image=ask.image is not None)), suffix)


def suffix_for(task: TaskSpec, suffix: str) -> str:
    """Return the extension of what a task makes: `suffix`, or where it makes no such file its own."""
    formats = _formats()
    if any(suffix in formats[modality] for modality in task.outputs.values()):
        return suffix
    return formats[next(iter(task.outputs.values()))][0]


def beside(path: Path, artifact: str, modality: str) -> Path:
    """Return where an artifact goes that is written beside another one's file: `clip.mp4` has `clip.text.txt`."""
    return path.with_name(f"{path.stem}.{artifact}{_formats()[modality][0]}")


def known_formats() -> tuple[str, ...]:
    """Return all extensions that results can have."""
    return tuple(dict.fromkeys(one for formats in _formats().values() for one in formats))


def numbered_outputs(path: Path, count: int) -> Sequence[Path]:
    """Return `count` names made of one: `out.mp4` and 3 give `out-1.mp4`, `out-2.mp4`, `out-3.mp4`; and 1, itself."""
    if count == 1:
        return [path]
    width = len(str(count))
    return [path.with_name(f"{path.stem}-{index:0{width}}{path.suffix}") for index in range(1, count + 1)]


def _beside(task: TaskSpec, artifact: str) -> tuple[str, ...]:
    """Return what is made with an artifact and written beside it: with a video its text and its actions."""
    if task.outputs[artifact] != "video":
        return ()
    return tuple(name for name, modality in task.outputs.items() if modality in ("text", "action"))


def _check_names(task: TaskSpec, ask: Ask) -> None:
    """Refuse a parameter that the task does not have, with the nearest of all names that could have been meant."""
    for name, value in ask.parameters.items():
        if name not in task.parameters:
            near = get_close_matches(name, [*ask.front_names, *task.parameters], n=1, cutoff=0.5)
            raise ParameterError(
                "the task takes no such parameter",
                field=name,
                value=value,
                allowed=", ".join(task.parameters),
                nearest=next(iter(near), None),
            )


def _formats() -> dict[str, tuple[str, ...]]:
    """Return the extensions of files by what they hold."""
    from fastvideo_core.request.media.output import (
        AUDIO_FORMATS,
        IMAGE_FORMATS,
        TENSOR_FORMATS,
        TEXT_FORMATS,
        VIDEO_FORMATS,
    )

    return {
        "video": VIDEO_FORMATS,
        "image": IMAGE_FORMATS,
        "audio": AUDIO_FORMATS,
        "text": TEXT_FORMATS,
        "action": TENSOR_FORMATS,
        "latents": TENSOR_FORMATS,
    }


def _video_size(parameters: Mapping[str, Any]) -> dict[str, int] | None:
    names = ("num_frames", "height", "width")
    return {name: parameters[name] for name in names} if all(name in parameters for name in names) else None


def _check_fits(prepared: PreparedRequest, suffix: str) -> None:
    """Refuse a size or a rate that the file format cannot hold."""
    from fastvideo_core.request.media.output import VIDEO_FORMATS, check_video_fits
    from fastvideo_core.request.media.rates import as_fps

    parameters = prepared.parameters
    size = _video_size(parameters)
    if suffix in VIDEO_FORMATS and size is not None and "fps" in parameters:
        check_video_fits(suffix, height=size["height"], width=size["width"], fps=as_fps(parameters["fps"]))
