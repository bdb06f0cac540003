"""What a request gives back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fastvideo_core.errors import InputError
from fastvideo_core.request.artifacts import Artifact
from fastvideo_core.request.parameters import ResolvedParameters

__all__ = ["GenerationResult"]


@dataclass(frozen=True, slots=True)
class GenerationResult:
    """What a request gives back.

    Attributes:
        request_id: The request.
        artifacts: Artifacts by name.
        parameters: What it ran with, with the source of each value.
        duration_s: From acceptance to the last artifact, in seconds.
        node_durations_s: Seconds in each node of the program, waiting included.
        warnings: What was allowed and yet may not have given what was asked for, one line each.
        captured: In the rollout profile, all that each loop has handed on, by node: references, `behavior` among them
            where the loop records some. Empty otherwise.
    """

    request_id: str
    artifacts: Mapping[str, Artifact]
    parameters: ResolvedParameters
    duration_s: float
    node_durations_s: Mapping[str, float] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    captured: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def seed(self) -> int | None:
        """The seed that ran."""
        return self.parameters.get("seed")

    @property
    def video(self) -> Any:
        """The video artifact; asking for one that the request did not make is an `InputError`."""
        return self._artifact("video")

    @property
    def latents(self) -> Any:
        """The latents artifact; asking for some that the request did not make is an `InputError`."""
        return self._artifact("latents")

    def _artifact(self, name: str) -> Any:
        if name not in self.artifacts:
            made = ", ".join(self.artifacts)
            raise InputError("not among the request's outputs", field="outputs", value=name, allowed=made)
        return self.artifacts[name]
