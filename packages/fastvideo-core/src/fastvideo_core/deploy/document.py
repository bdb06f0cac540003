"""YAML as plain data, with the line of every key; what YAML lets pass and nobody means is refused."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from fastvideo_core.errors import ConfigError

__all__ = ["Document", "Place", "parse_scalar", "read_document"]

Place = tuple[str, ...]
"""Where a value is: the keys that lead to it; items of a list have their index, as text."""

_MAX_BYTES = 1 << 20
_MAX_VALUES = 20_000


@dataclass(frozen=True, slots=True)
class Document:
    """A file's content.

    Attributes:
        path: The file.
        content: Plain data.
        lines: Lines, from 1, by place.
    """

    path: Path
    content: dict[str, Any]
    lines: dict[Place, int] = field(default_factory=dict)


def read_document(path: Path) -> Document:
    """Read a YAML file whose top level is a mapping; an empty one is an empty mapping.

    Raises:
        ConfigError: It cannot be read, is no YAML, has a key twice or one that is no text, or is no mapping.
    """
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ConfigError(f"{path} is too large for a config: more than {_MAX_BYTES >> 20} MiB", file=path)
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise ConfigError(f"{path} cannot be read: {reason}", file=path) from error
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError) as error:
        raise _syntax_error(path, error) from None
    lines: dict[Place, int] = {}
    content = {} if root is None else _Builder(path, lines).build(root, (), ())
    if content is None:
        content = {}
    if not isinstance(content, dict):
        raise ConfigError(f"{path} holds a {type(content).__name__}; allowed: keys with values", file=path, line=1)
    return Document(path, content, lines)


def parse_scalar(text: str) -> Any:
    """Return what a text means as a YAML value: a number, true, null, a list; a text that is none of it is itself."""
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text


class _Builder:
    """Turns YAML nodes into data; a node is at a place, inside of some others."""

    def __init__(self, path: Path, lines: dict[Place, int]) -> None:
        self._path = path
        self._lines = lines
        self._scalars = yaml.constructor.SafeConstructor()
        self._num_values = 0

    def build(self, node: Any, place: Place, inside: tuple[int, ...]) -> Any:
        self._num_values += 1
        if id(node) in inside or self._num_values > _MAX_VALUES:
            raise self._error("refers to itself, or has too many values", node)
        inside = (*inside, id(node))
        if isinstance(node, yaml.MappingNode):
            return self._build_mapping(node, place, inside)
        if isinstance(node, yaml.SequenceNode):
            return [self._build_item(item, (*place, str(i)), inside) for i, item in enumerate(node.value)]
        try:
            return self._scalars.construct_object(node)
        except (yaml.YAMLError, ValueError) as error:
            raise self._error(f"cannot be read: {' '.join(str(error).split())}", node) from None

    def _build_item(self, node: Any, place: Place, inside: tuple[int, ...]) -> Any:
        self._lines[place] = node.start_mark.line + 1
        return self.build(node, place, inside)

    def _build_mapping(self, node: Any, place: Place, inside: tuple[int, ...]) -> dict[str, Any]:
        built: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = self.build(key_node, place, inside)
            if not isinstance(key, str):
                raise self._error(
                    f"has the key {key!r}; allowed: text, in quotes where YAML reads something else", key_node
                )
            if key in built:
                first = self._lines[*place, key]
                raise self._error(f"has the key {key!r} twice, first in line {first}", key_node)
            self._lines[*place, key] = key_node.start_mark.line + 1
            built[key] = self.build(value_node, (*place, key), inside)
        return built

    def _error(self, what: str, node: Any) -> ConfigError:
        line = node.start_mark.line + 1
        return ConfigError(f"{self._path}, line {line}: {what}", file=self._path, line=line)


def _syntax_error(path: Path, error: Exception) -> ConfigError:
    mark = getattr(error, "problem_mark", None)
    line = None if mark is None else mark.line + 1
    where = f"{path}, line {line}" if line is not None else str(path)
    problem = getattr(error, "problem", None) or "it is nested too deeply"
    return ConfigError(f"{where}: not YAML: {problem}", file=path, line=line)
