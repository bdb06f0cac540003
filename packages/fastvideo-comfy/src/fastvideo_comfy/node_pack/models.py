"""A model as the nodes know it: on an engine in this process, or on a server. Both make videos and streams."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastvideo_comfy.node_pack.made import Made
from fastvideo_core.errors import InputError

__all__ = ["BUFFER_S", "Model", "Stream", "TaskForm", "Work", "parameters_for"]

BUFFER_S = 5.0
"""Seconds that a stream may be ahead which nobody steers."""

_NAMES = {
    "width": "width", "height": "height", "length": "num_frames", "steps": "num_inference_steps",
    "cfg": "guidance_scale", "seed": "seed", "negative": "negative_prompt",
}  # fmt: skip
"""The cards' names of what ComfyUI names otherwise."""


@dataclass(frozen=True, slots=True)
class TaskForm:
    """What a task takes.

    Attributes:
        name: The task.
        inputs: Names of its inputs.
        parameters: Names of its parameters.
    """

    name: str
    inputs: frozenset[str]
    parameters: frozenset[str]


class Work(ABC):
    """A video that is being made."""

    @property
    @abstractmethod
    def fraction(self) -> float:
        """How far it is, from 0 to 1."""

    @abstractmethod
    def wait(self, seconds: float) -> Made | None:
        """Wait for it, and return it if it is there.

        Raises:
            FastVideoError: It failed.
        """

    @abstractmethod
    def cancel(self) -> None:
        """Cancel it at its next step."""


class Stream(ABC):
    """A stream that is being made, chunk by chunk."""

    @abstractmethod
    def wait(self, seconds: float) -> int | None:
        """Wait for a chunk, and return its number if one has come; -1 once none will come any more.

        Raises:
            FastVideoError: It failed.
        """

    @abstractmethod
    def push_text(self, text: str) -> None:
        """Give it a new prompt, from the next chunk on."""

    @abstractmethod
    def close(self) -> None:
        """End it."""

    @abstractmethod
    def made(self) -> Made:
        """Return all that has come."""


class Model(ABC):
    """A model that makes videos."""

    name: str

    @abstractmethod
    def tasks(self) -> Sequence[TaskForm]:
        """Return its tasks, the default one first."""

    @abstractmethod
    def stream_task(self, *, has_image: bool) -> TaskForm | None:
        """Return the task of its streams; None if it makes none."""

    @abstractmethod
    def begin(self, prompt: str, task: str, image: Any, parameters: Mapping[str, Any]) -> Work:
        """Begin a video.

        Args:
            prompt: What to show.
            task: The task.
            image: uint8 pixels (H, W, 3), or None.
            parameters: By the card's names.

        Raises:
            FastVideoError: It is not accepted.
        """

    @abstractmethod
    def begin_stream(
        self, prompt: str, task: str, image: Any, parameters: Mapping[str, Any], *, num_chunks: int, is_steered: bool
    ) -> Stream:
        """Begin a stream that ends after so many chunks; see `begin`.

        Args:
            prompt: See `begin`.
            task: See `begin`.
            image: See `begin`.
            parameters: See `begin`.
            num_chunks: Chunks.
            is_steered: Whether each chunk waits for the next `wait`, so that what is pushed before that counts for it.
        """

    def task_for(self, *, has_image: bool) -> TaskForm:
        """Return the first task that fits.

        Raises:
            InputError: None takes an image.
        """
        found = next((one for one in self.tasks() if not has_image or "image" in one.inputs), None)
        if found is None:
            raise InputError(f"card {self.name} takes no image", field="start_image", allowed="nothing")
        return found

    def stream_for(self, *, has_image: bool) -> TaskForm:
        """Return the task of its streams.

        Raises:
            InputError: It makes none, or they take no image.
        """
        found = self.stream_task(has_image=has_image)
        if found is None:
            raise InputError(
                f"card {self.name} makes no streams", field="model", value=self.name, allowed="a card of a causal model"
            )
        if has_image and "image" not in found.inputs:
            raise InputError(f"streams of card {self.name} take no image", field="start_image", allowed="nothing")
        return found


def parameters_for(task: TaskForm, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters by the card's names; what the card does not take is left out."""
    return {_NAMES[name]: value for name, value in values.items() if _NAMES[name] in task.parameters}
