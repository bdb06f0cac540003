"""The hooks as a list: name, version, arguments, documentation; what `fastvideo plugins hooks` shows."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

from fastvideo_core.extend import hookspecs

__all__ = ["HookInfo", "hook_infos"]


@dataclass(frozen=True, slots=True)
class HookInfo:
    """One hook.

    Attributes:
        name: Its name.
        since: Version of the surface that it came with.
        arguments: Names of its arguments; an implementation may leave any of them out.
        returns: What it returns, as the annotation has it.
        is_first_result: Whether the first plugin that answers is the only one that counts.
        summary: First line of its documentation.
        documentation: All of it.
        deprecated: What to implement in its place, where it is to go.
    """

    name: str
    since: str
    arguments: tuple[str, ...]
    returns: str
    is_first_result: bool
    summary: str
    documentation: str
    deprecated: str | None = None


def hook_infos() -> tuple[HookInfo, ...]:
    """Return all hooks, in the order of the specification."""
    found = [value for value in vars(hookspecs).values() if hasattr(value, "fastvideo_spec")]
    return tuple(_info(function) for function in found)


def _info(function: Any) -> HookInfo:
    text = inspect.getdoc(function) or ""
    signature = inspect.signature(function)
    return HookInfo(
        name=function.__name__,
        since=function.fastvideo_since,
        arguments=tuple(signature.parameters),
        returns=str(signature.return_annotation),
        is_first_result=bool(function.fastvideo_spec["firstresult"]),
        summary=text.partition("\n")[0],
        documentation=text,
        deprecated=getattr(function, "fastvideo_deprecated", None),
    )
