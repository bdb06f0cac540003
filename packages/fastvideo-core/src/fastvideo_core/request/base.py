"""The request: the one thing that crosses from a product into the runtime. The task is declared, never inferred."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

__all__ = [
    "ActionPart",
    "AudioPart",
    "ImagePart",
    "LatentPart",
    "ModalPart",
    "OutputSpec",
    "Request",
    "RequestId",
    "TextPart",
    "VideoPart",
    "new_request_id",
]

RequestId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
"""Safe as a file name: no separators, no leading dot."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    content_field: ClassVar[str | None] = None
    """Field that holds the content where no path is given; None if the kind has no path."""

    name: str
    """Input of the task that this part fills, for instance `prompt` or `image`."""

    @model_validator(mode="after")
    def _has_one_source(self) -> Self:
        if self.content_field is not None:
            given = [name for name in ("path", self.content_field) if getattr(self, name) is not None]
            if len(given) != 1:
                raise ValueError(f"input {self.name!r} needs either a path or {self.content_field}")
        return self


class TextPart(_Part):
    """Text."""

    kind: Literal["text"] = "text"
    text: str


class ImagePart(_Part):
    """An image: a path, or uint8 pixels (H, W, 3)."""

    content_field: ClassVar[str | None] = "pixels"
    kind: Literal["image"] = "image"
    path: Path | None = None
    pixels: Any = None


class VideoPart(_Part):
    """A video: a path, or uint8 frames (T, H, W, 3) with frames a second."""

    content_field: ClassVar[str | None] = "frames"
    kind: Literal["video"] = "video"
    path: Path | None = None
    frames: Any = None
    fps: float | None = None


class AudioPart(_Part):
    """Sound: a path, or float samples (channels, N) with samples a second."""

    content_field: ClassVar[str | None] = "samples"
    kind: Literal["audio"] = "audio"
    path: Path | None = None
    samples: Any = None
    sample_rate: int | None = None


class ActionPart(_Part):
    """Actions: numbers (steps, width)."""

    kind: Literal["action"] = "action"
    values: Any


class LatentPart(_Part):
    """Latents: float32 (C, T, H, W)."""

    kind: Literal["latents"] = "latents"
    latents: Any


ModalPart = Annotated[
    TextPart | ImagePart | VideoPart | AudioPart | ActionPart | LatentPart, Field(discriminator="kind")
]


class OutputSpec(BaseModel):
    """What the caller wants back.

    Attributes:
        artifacts: Outputs of the task by name; empty means its default output. What none of them needs does not run.
        previews: Whether previews are streamed while it runs.
        capture_behavior: Whether behaviour records are captured (the rollout profile).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    artifacts: tuple[str, ...] = ()
    previews: bool = False
    capture_behavior: bool = False


def new_request_id() -> str:
    """Return a fresh id."""
    return uuid.uuid4().hex[:16]


class Request(BaseModel):
    """One job: a generation, an encoding, a scoring, a conversion.

    Attributes:
        request_id: Unique within an engine.
        task: The card's task.
        inputs: Modal inputs.
        parameters: What the caller set; what is absent is resolved from the deploy config and the card.
        outputs: What comes back.
        node_overrides: Parameters for single nodes of the program, by node id.
        plugins: Options of plugins that are on where it runs, by plugin; those left out are the deploy config's.
        exact: Whether the reference's order of operations is asked for; refused where an altering plugin is on.
        latency_class: Scheduling class.
        deadline_s: Seconds after acceptance by which the result is wanted.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    request_id: RequestId = Field(default_factory=new_request_id)
    task: str
    inputs: tuple[ModalPart, ...] = ()
    parameters: dict[str, Any] = Field(default_factory=dict)
    outputs: OutputSpec = OutputSpec()
    node_overrides: dict[str, dict[str, Any]] = Field(default_factory=dict)
    plugins: dict[str, dict[str, Any]] = Field(default_factory=dict)
    exact: bool = False
    latency_class: Literal["interactive", "standard", "batch"] = "standard"
    deadline_s: float | None = Field(default=None, gt=0)

    def part(self, name: str) -> Any:
        """Return the input of that name, or None."""
        return next((part for part in self.inputs if part.name == name), None)
