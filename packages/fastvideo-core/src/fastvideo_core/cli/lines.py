"""JSON Lines with one request each: every line is read and checked alone, so that a bad one harms no other."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from fastvideo_core.cli.jobs import Ask
from fastvideo_core.cli.reading import read_actions
from fastvideo_core.errors import InputError, MediaError, ParameterError, PromptError
from fastvideo_core.request.media.naming import check_stem, slugify

__all__ = ["Line", "read_lines"]

MAX_BYTES = 1 << 30
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,119}")
_RESERVED_IDS = ("summary",)
_COMMAND_FLAGS = ("card", "config", "device", "format", "max_running", "output", "precision", "quiet")
_OWN_FIELDS: dict[str, type | tuple[type, ...]] = {
    "actions": (str, list),
    "deadline_s": (int, float),
    "exact": bool,
    "id": (str, int),
    "image": str,
    "latency_class": str,
    "plugins": dict,
    "prompt": str,
    "task": str,
    "video": str,
}
_KINDS = {
    "actions": "the path of a .json file, or a list of lists of numbers",
    "deadline_s": "a number of seconds",
    "exact": "true or false",
    "id": "text or a whole number",
    "plugins": "an object of options by plugin",
}


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the file.

    Attributes:
        number: Its number, from 1; empty lines count and are left out.
        request_id: Its id; the number where it gives none, or none that can be used.
        ask: What it asks for; None if it is bad.
        error: What is wrong with it.
    """

    number: int
    request_id: str
    ask: Ask | None = None
    error: InputError | None = None


def read_lines(path: str, *, is_exact: bool) -> list[Line]:
    """Read a file of requests; `-` is stdin.

    Args:
        path: The file.
        is_exact: What a line that does not say so wants.

    Raises:
        MediaError: The file cannot be read, or holds no request.
    """
    lines: list[Line] = []
    used: dict[str, int] = {}
    for number, data in _split(path):
        line = _read_line(number, data, is_exact)
        # Some file systems take upper and lower case for the same.
        first = used.setdefault(line.request_id.casefold(), number)
        if line.error is None and first != number:
            error = ParameterError(
                f"used by line {first}", field="id", value=line.request_id, allowed="another id for each line"
            )
            line = Line(number, line.request_id, error=error)
        lines.append(line)
    if not lines:
        raise MediaError("holds no request", field="file", value=path, allowed="one JSON object a line")
    return lines


def _split(path: str) -> Iterator[tuple[int, bytes]]:
    try:
        data = _read_stdin() if path == "-" else _read_file(Path(path))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise MediaError(f"cannot be read: {reason}", field="file", value=path) from error
    if len(data) > MAX_BYTES:
        raise MediaError("too large", field="file", value=path, allowed=f"{MAX_BYTES >> 20} MiB")
    for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if line.strip():
            yield number, line


def _read_stdin() -> bytes:
    # Nothing is there if the process was started with a closed stdin.
    return b"" if sys.stdin is None else sys.stdin.buffer.read(MAX_BYTES + 1)


def _read_file(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MAX_BYTES + 1)


def _read_line(number: int, data: bytes, is_exact: bool) -> Line:
    request_id = str(number)
    try:
        values = _parse(data)
        request_id = _read_id(values.pop("id", number))
        return Line(number, request_id, _read_ask(values, request_id, is_exact))
    except InputError as error:
        return Line(number, request_id, error=error)


def _parse(data: bytes) -> dict[str, Any]:
    try:
        values = json.loads(
            data.decode("utf-8"), object_pairs_hook=_refuse_doubled, parse_constant=_refuse_constant,
            parse_float=_read_float,
        )  # fmt: skip
    except UnicodeDecodeError as error:
        raise InputError(f"not UTF-8: byte {error.start + 1} is {data[error.start]:#04x}") from error
    except json.JSONDecodeError as error:
        raise InputError(f"not JSON: {error.msg} at character {error.colno}") from error
    except RecursionError as error:
        raise InputError("not usable JSON: nested too deeply") from error
    except ValueError as error:
        # JSON puts no limit on the digits of a number, Python does.
        raise InputError("not usable JSON: a number with too many digits") from error
    if not isinstance(values, dict):
        raise InputError(f"a JSON {_json_name(values)}", allowed="an object with at least a prompt")
    return values


def _refuse_doubled(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        names = [name for name, _ in pairs]
        doubled = next(name for name in names if names.count(name) > 1)
        raise ParameterError("given twice", field=doubled, value=values[doubled], allowed="once")
    return values


def _refuse_constant(text: str) -> float:
    raise InputError(f"not JSON: {text} is no number there")


def _read_float(text: str) -> float:
    """Return a number; one that is infinite here could not be written down again as JSON."""
    if math.isinf(value := float(text)):
        raise InputError(f"not usable JSON: {text[:20]} is too large for a number")
    return value


def _read_id(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise ParameterError(f"a JSON {_json_name(value)}", field="id", value=value, allowed="text, or a whole number")
    text = str(value)
    if not _ID.fullmatch(text):
        near = re.sub(r"[^A-Za-z0-9._-]", "-", slugify(text)).strip("-._")[:120]
        raise ParameterError(
            "not usable as a file name",
            field="id",
            value=text if len(text) <= 120 else text[:119] + "…",
            allowed="letters, digits, '.', '_' and '-', the first a letter or digit, 120 at most",
            nearest=near or None,
        )
    if text.casefold() in _RESERVED_IDS:
        raise ParameterError("reserved for the summary", field="id", value=text, allowed="another id")
    return check_stem(text)


def _read_ask(values: Mapping[str, Any], request_id: str, is_exact: bool) -> Ask:
    for name in values:
        if name in _COMMAND_FLAGS:
            raise ParameterError(
                "holds for all requests", field=name, value=values[name], allowed=f"--{name.replace('_', '-')}"
            )
    own = {name: _own_field(name, values[name]) for name in _OWN_FIELDS if name in values}
    if "prompt" not in own:
        near = get_close_matches("prompt", values, n=1, cutoff=0.6)
        hint = f"; is {near[0]!r} misspelt?" if near else ""
        raise PromptError(f"missing{hint}", field="prompt", value=None, allowed="text")
    return Ask(
        prompt=own["prompt"],
        task=own.get("task"),
        image=own.get("image"),
        inputs=_inputs(own),
        is_exact=own.get("exact", is_exact),
        parameters={name: value for name, value in values.items() if name not in _OWN_FIELDS},
        plugins=_plugins(own.get("plugins", {})),
        request_id=request_id,
        latency_class=own.get("latency_class"),
        deadline_s=own.get("deadline_s"),
        front_names=tuple(_OWN_FIELDS),
    )


def _inputs(own: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs that are not the prompt or the image: a video's path, and actions, of a file their content."""
    inputs = {name: own[name] for name in ("video", "actions") if name in own}
    if isinstance(inputs.get("actions"), str):
        inputs["actions"] = read_actions(inputs["actions"])
    return inputs


def _plugins(given: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    for name, options in given.items():
        if not isinstance(options, dict):
            raise ParameterError(
                f"a JSON {_json_name(options)}", field=f"plugins.{name}", value=options, allowed="an object of options"
            )
    return dict(given)


def _own_field(name: str, value: Any) -> Any:
    is_flag = isinstance(value, bool) and _OWN_FIELDS[name] is not bool
    if is_flag or not isinstance(value, _OWN_FIELDS[name]):
        raise ParameterError(f"a JSON {_json_name(value)}", field=name, value=value, allowed=_KINDS.get(name, "text"))
    return value


def _json_name(value: Any) -> str:
    if value is None:
        return "null"
    names = {bool: "boolean", int: "number", float: "number", str: "text", list: "array", dict: "object"}
    return names[type(value)]
