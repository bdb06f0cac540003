"""From a file, the environment and the command line to one config that knows where each of its values came from."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import BaseModel, ValidationError

from fastvideo_core.deploy.config import DeployConfig
from fastvideo_core.deploy.document import Document, Place, parse_scalar, read_document
from fastvideo_core.errors import ConfigError

__all__ = ["CONFIG_VARIABLE", "VARIABLE_PREFIX", "Layer", "Origin", "ResolvedConfig", "place_text", "resolve_config",
           "split_place"]  # fmt: skip

Layer = Literal["request", "environment", "file", "default"]
"""Who set a value, from the strongest to the weakest; `request` is what the command line says with `--set`."""

CONFIG_VARIABLE = "FASTVIDEO_CONFIG"
"""Names the config file where the command line does not."""
VARIABLE_PREFIX = "FASTVIDEO__"
"""`FASTVIDEO__LIMITS__MAX_RUNNING=4` sets `limits.max_running`."""

_ROW_SECTIONS = ("cards", "classes", "plugins", "pools")


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value came from.

    Attributes:
        layer: Who set it.
        text: In words: a file with its line, a variable, a flag.
        file: The file.
        line: Its line.
    """

    layer: Layer
    text: str
    file: Path | None = None
    line: int | None = None


_DEFAULT = Origin("default", "default")


@dataclass(frozen=True)
class ResolvedConfig:
    """A config that is valid in itself.

    Attributes:
        config: Its values.
        origins: Where those came from that somebody has set, by place; the rest are defaults.
        sections: Sections of its top level that belong to plugins, unchecked.
        path: The file; None if there is none.
    """

    config: DeployConfig
    origins: Mapping[Place, Origin] = field(default_factory=dict)
    sections: Mapping[str, Any] = field(default_factory=dict)
    path: Path | None = None

    @property
    def is_default(self) -> bool:
        """Whether nobody has set anything."""
        return self.path is None and not self.origins

    def origin(self, place: Place) -> Origin:
        """Return where a value came from: the nearest thing around it that somebody has set."""
        for length in range(len(place), 0, -1):
            if place[:length] in self.origins:
                return self.origins[place[:length]]
        return _DEFAULT

    def setter(self, place: Place) -> Origin:
        """Return who has set a value itself, whatever of its section was set."""
        return self.origins.get(place, _DEFAULT)

    def error(self, place: Place, message: str, **details: Any) -> ConfigError:
        """Return an error about the value at a place."""
        return _error(self.origin(place), place, message, **details)

    def values(self) -> Iterator[tuple[Place, Any, Origin]]:
        """Yield every value with its place and where it came from."""
        for place, value in _leaves({**self.config.model_dump(mode="json"), **self.sections}, ()):
            yield place, value, self.setter(place)


def resolve_config(
    path: str | Path | None = None,
    *,
    assignments: Sequence[tuple[str, Any]] = (),
    environment: Mapping[str, str] | None = None,
) -> ResolvedConfig:
    """Read a config and what stands above it: the environment, then assignments.

    Args:
        path: The file; None takes the one that the environment names, or none at all.
        assignments: Dotted keys with values.
        environment: Variables; None takes those of the process.

    Raises:
        ConfigError: Something is not allowed; with the place, and the nearest key.
    """
    variables = os.environ if environment is None else environment
    chosen = path if path is not None else variables.get(CONFIG_VARIABLE) or None
    document = None if chosen is None else read_document(Path(chosen))
    merged: dict[str, Any] = {}
    origins: dict[Place, Origin] = {}
    if document is not None:
        merged = document.content
        origins |= _file_origins(document)
    for name, text in sorted(variables.items()):
        if name.startswith(VARIABLE_PREFIX):
            place = tuple(name.removeprefix(VARIABLE_PREFIX).lower().split("__"))
            _put(merged, origins, place, parse_scalar(text), Origin("environment", f"variable {name}"))
    for key, value in assignments:
        _put(merged, origins, split_place(key), value, Origin("request", f"--set {key}"))
    known = {name: value for name, value in merged.items() if name in DeployConfig.model_fields}
    sections = {name: value for name, value in merged.items() if name not in known}
    config = _validate(known, origins)
    return ResolvedConfig(config, origins, sections, None if document is None else document.path)


def split_place(key: str) -> Place:
    """Return the parts of a dotted key; a part in double quotes may have dots, and names of plugins have one.

    Raises:
        ConfigError: A part is empty, or a quote is not closed.
    """
    parts: list[str] = []
    rest = key
    while True:
        if rest.startswith('"'):
            part, quote, rest = rest[1:].partition('"')
            if not quote or not (rest == "" or rest.startswith(".")):
                raise ConfigError("a quote is not closed", field="set", value=key, allowed='cards."wan2.1".precision')
            separator, rest = rest[:1], rest[1:]
        else:
            part, separator, rest = rest.partition(".")
        if not part or (separator and not rest):
            raise ConfigError("a part of the key is empty", field="set", value=key, allowed="section.key")
        parts.append(part)
        if not separator:
            break
    if parts[0] == "plugins" and len(parts) > 2 and "." not in parts[1]:
        parts[1:3] = [f"{parts[1]}.{parts[2]}"]
    return tuple(parts)


def place_text(place: Place) -> str:
    """Return a place as `--set` takes it."""
    is_plugin = len(place) > 1 and place[0] == "plugins"
    return ".".join(
        f'"{part}"' if "." in part and not (is_plugin and index == 1 and part.count(".") == 1) else part
        for index, part in enumerate(place)
    )


def _file_origins(document: Document) -> dict[Place, Origin]:
    return {
        place: Origin("file", f"{document.path}, line {line}", document.path, line)
        for place, line in document.lines.items()
    }


def _put(merged: dict[str, Any], origins: dict[Place, Origin], place: Place, value: Any, origin: Origin) -> None:
    """Set a value, and forget where what it replaces came from."""
    inner: Any = merged
    for part in place[:-1]:
        inner = inner.setdefault(part, {})
        if not isinstance(inner, dict):
            raise _error(origin, place, "there is a plain value in the way", value=value, allowed="keys of sections")
    inner[place[-1]] = value
    for known in [known for known in origins if known[: len(place)] == place]:
        del origins[known]
    origins[place] = origin
    origins |= {inside: origin for inside, _ in _leaves(value, place)}


def _validate(content: Mapping[str, Any], origins: Mapping[Place, Origin]) -> DeployConfig:
    try:
        return DeployConfig.model_validate(_without_empty(content))
    except ValidationError as error:
        raise _first_problem(error, content, origins) from None


def _without_empty(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content with a key that has nothing after it as an empty section, where one belongs."""
    filled = dict(content)
    for name in (*_ROW_SECTIONS, "limits", "output"):
        if name in filled and filled[name] is None:
            filled[name] = {}
        if name in _ROW_SECTIONS and isinstance(filled.get(name), dict):
            filled[name] = {key: {} if row is None else row for key, row in filled[name].items()}
    return filled


def _first_problem(error: ValidationError, content: Mapping[str, Any], origins: Mapping[Place, Origin]) -> ConfigError:
    found = error.errors(include_url=False)[0]
    place = tuple(str(part) for part in found["loc"] if part != "[key]")
    details: dict[str, Any] = {"value": found["input"]}
    message = found["msg"]
    allowed = _allowed_keys(place[:-1])
    if found["type"] == "extra_forbidden" or "[key]" in found["loc"]:
        message = "no such key"
        details["value"] = _value_at(content, place)
        if allowed:
            near = get_close_matches(place[-1], allowed, n=1, cutoff=0.5)
            details |= {"allowed": ", ".join(allowed), "nearest": next(iter(near), None)}
        if place[0] == "plugins" and len(place) == 2:
            details |= {"allowed": "KIND.NAME, for instance observer.nanwatch"}
    if found["type"] == "string_pattern_mismatch" and {"device", "devices"} & set(place):
        message, details["allowed"] = "not a device", "auto, cpu, cuda, cuda:<index>"
    origin = ResolvedConfig(DeployConfig(), origins).origin(place)
    return _error(origin, place, message, **details)


def _error(origin: Origin, place: Place, message: str, **details: Any) -> ConfigError:
    where = f"{origin.text}: " if origin.layer != "default" else ""
    return ConfigError(f"{where}{message}", file=origin.file, line=origin.line, field=place_text(place), **details)


def _allowed_keys(place: Place) -> tuple[str, ...]:
    """Return the keys that a section takes; nothing where they are free."""
    if not place:
        return tuple(DeployConfig.model_fields)
    if place == ("plugins",) or place == ("cards",):
        return ()
    annotation: Any = DeployConfig.model_fields[place[0]].annotation if place[0] in DeployConfig.model_fields else None
    if place[0] in _ROW_SECTIONS:
        key, row = get_args(annotation)
        if len(place) == 1:
            return tuple(str(one) for one in get_args(key))
        return tuple(row.model_fields) if len(place) == 2 else ()
    return tuple(annotation.model_fields) if _is_section(annotation) and len(place) == 1 else ()


def _is_section(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _value_at(content: Any, place: Place) -> Any:
    for part in place:
        content = content.get(part) if isinstance(content, Mapping) else None
    return content


def _leaves(value: Any, place: Place) -> Iterator[tuple[Place, Any]]:
    if isinstance(value, Mapping) and value:
        for key, part in value.items():
            yield from _leaves(part, (*place, key))
    else:
        yield place, value
