"""Where an artifact comes from: enough to make it again, in a form that fits into a file's metadata."""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cache
from typing import Any, Literal

import importlib_metadata
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, JsonValue, ValidationError, field_validator

from fastvideo_core.errors import StateError
from fastvideo_core.request.parameters import ParameterSource

__all__ = ["ParameterRecord", "Provenance", "software_versions"]

_LIBRARIES = ("torch", "transformers", "av", "numpy")


def software_versions() -> dict[str, str]:
    """Return the versions of Python, of every installed part of FastVideo, and of the libraries that shape a result.

    Reads package metadata only; imports none of them.
    """
    return dict(_software_versions())


@cache
def _software_versions() -> dict[str, str]:
    # Looking through everything that is installed takes a twentieth of a second, and every artifact needs it.
    versions = {"python": platform.python_version()}
    names = {str(found.name) for found in importlib_metadata.distributions() if _is_ours(found)}
    for name in (*sorted(names), *_LIBRARIES):
        try:
            versions[name] = importlib_metadata.version(name)
        except importlib_metadata.PackageNotFoundError:
            continue
    return versions


class ParameterRecord(BaseModel):
    """One resolved parameter and who set it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    value: JsonValue
    source: ParameterSource

    @field_validator("value")
    @classmethod
    def _finite(cls, value: JsonValue) -> JsonValue:
        # JSON has no infinity: it would come back as null, that is, as another parameter.
        if not all(math.isfinite(number) for number in _floats(value)):
            raise ValueError("must be finite")
        return value


class Provenance(BaseModel):
    """How an artifact was made.

    Attributes:
        schema_version: Version of this layout.
        node: Node of the program that produced the artifact.
        request_id: The request that it belongs to.
        task: The card's task.
        card_id: The model card.
        card_version: Version of the card.
        weights_version: Version of the weights: a hub revision, or a digest.
        parameters: Every resolved parameter with its source; `ResolvedParameters.to_json()` has this form.
        seed: The seed that ran.
        created_at: When it was made, UTC.
        software: Distribution names and versions.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal[1] = 1
    node: str
    request_id: str | None = None
    task: str | None = None
    card_id: str
    card_version: str | None = None
    weights_version: str | None = None
    parameters: dict[str, ParameterRecord] = Field(default_factory=dict)
    seed: int | None = None
    created_at: AwareDatetime = Field(default_factory=lambda: datetime.now(UTC).replace(microsecond=0))
    software: dict[str, str] = Field(default_factory=software_versions)

    @property
    def title(self) -> str | None:
        """The prompt, as a title for players; None if there is none."""
        record = self.parameters.get("prompt")
        return record.value if record is not None and isinstance(record.value, str) else None

    def to_json(self) -> str:
        """Return one line of JSON in ASCII, which every container's comment field can hold."""
        return json.dumps(self.model_dump(mode="json"), ensure_ascii=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes) -> Provenance:
        """Read what `to_json` wrote.

        Raises:
            StateError: It is no provenance, or one of another schema version.
        """
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "document"
            raise StateError(f"not a provenance record: {where}: {first['msg']}") from None


def _is_ours(distribution: Any) -> bool:
    name = distribution.metadata["Name"]
    return isinstance(name, str) and name.startswith("fastvideo-")


def _floats(value: Any) -> Iterator[float]:
    if isinstance(value, float):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _floats(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _floats(item)
