"""Parameters after resolution: each value with where it came from. Absent is not the same as default."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any, Literal

from fastvideo_core.card import LoopSpec, TaskSpec
from fastvideo_core.errors import LoopMismatchError, ParameterError

__all__ = ["ParameterSource", "ResolvedParameters", "check_pinned", "resolve_parameters"]

ParameterSource = Literal["request", "deploy", "card", "engine"]
"""Who set a value: the request, the deploy config, the card, or the engine (a seed that nobody gave)."""


class ResolvedParameters(Mapping[str, Any]):
    """The values that a request runs with, and the source of each. Immutable."""

    __slots__ = ("_sources", "_values")

    def __init__(self, values: Mapping[str, Any], sources: Mapping[str, ParameterSource]) -> None:
        self._values = dict(values)
        self._sources = dict(sources)

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"ResolvedParameters({self._values!r})"

    def source(self, name: str) -> ParameterSource:
        """Return who set a value."""
        return self._sources[name]

    def with_value(self, name: str, value: Any, source: ParameterSource) -> ResolvedParameters:
        """Return a copy with one value set."""
        return ResolvedParameters({**self._values, name: value}, {**self._sources, name: source})

    def to_json(self) -> dict[str, dict[str, Any]]:
        """Return `{name: {"value": …, "source": …}}`."""
        return {name: {"value": value, "source": self._sources[name]} for name, value in self._values.items()}

    @classmethod
    def from_json(cls, data: Mapping[str, Mapping[str, Any]]) -> ResolvedParameters:
        """Read what `to_json` wrote."""
        return cls(
            {name: item["value"] for name, item in data.items()}, {name: item["source"] for name, item in data.items()}
        )


def resolve_parameters(
    task: TaskSpec,
    given: Mapping[str, Any],
    *,
    deploy: Mapping[str, Any] | None = None,
    loops: Mapping[str, LoopSpec] | None = None,
) -> ResolvedParameters:
    """Merge and check parameters: request over deploy config over card.

    Args:
        task: The task with its parameters.
        given: What the request says; a name that is absent is not given, whatever its default.
        deploy: What the deploy config says for this card.
        loops: Loops that the task runs; what they pin may be repeated but not changed.

    Raises:
        ParameterError: An unknown name, or a value that is not allowed.
        LoopMismatchError: A value that contradicts what the weights were trained for.
    """
    for name in [*given, *(deploy or {})]:
        if name not in task.parameters:
            raise _unknown(name, given.get(name, (deploy or {}).get(name)), task)
    values: dict[str, Any] = {}
    sources: dict[str, ParameterSource] = {}
    for name, spec in task.parameters.items():
        source, value = _pick(name, given, deploy or {}, spec.default)
        values[name] = spec.validate_value(name, value)
        sources[name] = source
    for loop in (loops or {}).values():
        check_pinned(loop, values)
    return ResolvedParameters(values, sources)


def _pick(name: str, given: Mapping[str, Any], deploy: Mapping[str, Any], default: Any) -> tuple[ParameterSource, Any]:
    if name in given:
        return "request", given[name]
    if name in deploy:
        return "deploy", deploy[name]
    return "card", default


def _unknown(name: str, value: Any, task: TaskSpec) -> ParameterError:
    # `steps` means num_inference_steps; by letters alone it would be nearer to fps.
    near = [known for known in task.parameters if name in known.split("_")]
    near += get_close_matches(name, task.parameters, n=1, cutoff=0.5)
    return ParameterError(
        "this card does not use such a parameter",
        field=name,
        value=value,
        allowed=", ".join(task.parameters),
        nearest=next(iter(near), None),
    )


def check_pinned(loop: LoopSpec, values: Mapping[str, Any]) -> None:
    """Refuse parameters other than those that the weights were trained for.

    Raises:
        LoopMismatchError: With the pinned value.
    """
    for name, pinned in loop.pinned.items():
        if name in values and values[name] != pinned:
            raise LoopMismatchError(
                f"these weights were trained for the loop {loop.loop_id}",
                field=name,
                value=values[name],
                allowed=repr(pinned),
                nearest=pinned,
            )
