"""What a card can be asked for: its tasks, their inputs and their parameters with grids and defaults."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from fastvideo_core.card.base import Contract, Identifier, JsonScalar, ObjectRef
from fastvideo_core.card.parameters import ParameterSpec

__all__ = ["CapabilityMatrix", "InputSpec", "Modality", "TaskSpec"]

Modality = Literal["text", "image", "video", "audio", "action", "latents"]


class InputSpec(Contract):
    """One input of a task.

    Attributes:
        modality: What it is.
        required: Whether the task refuses to run without it.
        max_length: Longest text in tokens, or most frames, where there is a limit.
        description: One line for help texts.
    """

    modality: Modality
    required: bool = True
    max_length: int | None = Field(default=None, ge=1)
    description: str = ""


class TaskSpec(Contract):
    """One task of a card.

    Attributes:
        program: The program that runs it.
        inputs: Inputs by name.
        outputs: Artifacts that it can make, by name; the first is the default.
        parameters: Parameters by name.
        description: One line for help texts.
    """

    program: ObjectRef
    inputs: dict[Identifier, InputSpec]
    outputs: dict[Identifier, Modality]
    parameters: dict[Identifier, ParameterSpec] = Field(default_factory=dict)
    description: str = ""

    @model_validator(mode="after")
    def _has_an_output(self) -> TaskSpec:
        if not self.outputs:
            raise ValueError("a task needs at least one output")
        return self

    def defaults(self) -> dict[str, JsonScalar | list[Any]]:
        """Return the default of every parameter."""
        return {name: spec.default for name, spec in self.parameters.items()}


class CapabilityMatrix(Contract):
    """The tasks of a card.

    Attributes:
        tasks: Tasks by name.
        default_task: The task that a front end suggests when the user names none.
    """

    tasks: dict[Identifier, TaskSpec]
    default_task: Identifier

    @model_validator(mode="after")
    def _default_exists(self) -> CapabilityMatrix:
        if self.default_task not in self.tasks:
            raise ValueError(f"default task {self.default_task!r} is not among {sorted(self.tasks)}")
        return self
