"""What a store keeps of a request, and what it gives back."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from fastvideo_core.card import ModelCard
from fastvideo_core.errors import StateError
from fastvideo_core.request.provenance import software_versions
from fastvideo_core.runtime.instance import ModelInstance, needed_components
from fastvideo_core.runtime.prepare import PreparedRequest

__all__ = ["FinishedNode", "Identity", "NodeState", "RefusedJob", "RunningNode", "SavedJob"]

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RunningNode:
    """A node of a program between two steps.

    Attributes:
        loop_id: The loop that it runs.
        state: Its state.
        num_committed: Steps that have gone into the state.
    """

    loop_id: str
    state: Any
    num_committed: int


@dataclass(frozen=True, slots=True)
class FinishedNode:
    """A node of a program that has nothing left to do.

    Attributes:
        loop_id: The loop that it ran.
        outputs: Its results by name; None if it was not to be run, or if nothing that is left needs them.
    """

    loop_id: str
    outputs: Mapping[str, Any] | None


NodeState = RunningNode | FinishedNode


@dataclass(frozen=True, slots=True)
class Identity:
    """What a request runs on, as far as its result depends on it.

    Attributes:
        card_id: The card.
        card_version: Its version.
        weights: Content versions of the weights that the request's task needs, by component.
        precision: Number format.
        device_kind: Kind of device: cpu, cuda.
        software: Versions of the software; another one is told of, not refused.
    """

    card_id: str
    card_version: str
    weights: Mapping[str, str]
    precision: str
    device_kind: str
    software: Mapping[str, str]

    @classmethod
    def of(cls, instance: ModelInstance, task: str) -> Self:
        """Return the identity of a task on a resident model."""
        needed = {spec.component_id for spec in needed_components(instance.card, [task])}
        return cls(
            card_id=instance.card.model_id,
            card_version=instance.card.version,
            weights={name: one for name, one in sorted(instance.weights_versions.items()) if name in needed},
            precision=instance.precision,
            device_kind=instance.device.type,
            software=software_versions(),
        )

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Read what `to_json` gave.

        Raises:
            StateError: It is something else.
        """
        try:
            return cls(**data)
        except TypeError as error:
            raise StateError(f"names no model: {error}") from error

    def check(self, other: Identity) -> None:
        """Refuse to go on on another model than the one that a request began on.

        Raises:
            StateError: What differs.
        """
        for name in ("card_id", "card_version", "weights", "precision", "device_kind"):
            began, now = getattr(self, name), getattr(other, name)
            if began != now:
                what = name.replace("_", " ")
                raise StateError(
                    f"began with {what} {_shown(began, now)}, and {_shown(now, began)} is what there is now"
                )
        changed = sorted(name for name, one in self.software.items() if other.software.get(name, one) != one)
        if changed:
            _LOG.warning("a request goes on under other versions of %s than it began", ", ".join(changed))


@dataclass(frozen=True, slots=True)
class SavedJob:
    """An accepted request that has not ended.

    Attributes:
        job_id: Its id.
        prepared: The request.
        nodes: Its nodes as they were at the last checkpoint; those that are not there have to be run.
        note: What the front end wrote down with it.
    """

    job_id: str
    prepared: PreparedRequest
    nodes: Mapping[str, NodeState]
    note: Mapping[str, Any]

    @property
    def card(self) -> ModelCard:
        """The card that it runs on."""
        return self.prepared.card


@dataclass(frozen=True, slots=True)
class RefusedJob:
    """An accepted request that cannot go on.

    Attributes:
        job_id: Its id.
        error: Which file is wrong, and how.
        note: What the front end wrote down with it; None if that cannot be read.
        is_aside: Whether its files were put aside; else they are where they were, and it can go on later.
    """

    job_id: str
    error: StateError
    note: Mapping[str, Any] | None
    is_aside: bool


def _shown(value: Any, other: Any) -> str:
    """Return a value, of several by name only those that differ from another's."""
    if isinstance(value, Mapping):
        differing = {name: one for name, one in value.items() if one != other.get(name)}
        return ", ".join(f"{name} {one}" for name, one in differing.items()) or "none"
    return repr(value)
