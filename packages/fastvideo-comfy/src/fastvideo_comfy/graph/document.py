"""Reading a workflow file: JSON of bounded size and depth, and which of the two forms it is."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fastvideo_comfy.errors import WorkflowError

__all__ = ["MAX_BYTES", "MAX_NODES", "Document", "parse_document", "read_document"]

MAX_BYTES = 64 * 1024 * 1024
"""Largest file; the largest published template has half a megabyte."""

MAX_NODES = 100_000
"""Most nodes, those of all instances of subgraphs counted."""

_FORMS = "a ComfyUI workflow: UI form (`nodes` and `links`) or API form (`{id: {class_type, inputs}}`)"


@dataclass(frozen=True, slots=True)
class Document:
    """A workflow file's content.

    Attributes:
        form: "ui" or "api".
        content: The JSON object: the workflow, or nodes by id.
        name: What to call it.
        doubled: Ids that the file gives to two nodes of an API form, of which JSON readers keep the last.
    """

    form: Literal["ui", "api"]
    content: Mapping[str, Any]
    name: str
    doubled: tuple[str, ...] = ()


def read_document(path: Path | str) -> Document:
    """Read a workflow file.

    Raises:
        WorkflowError: It cannot be read or is no workflow.
    """
    place = Path(path)
    try:
        if place.stat().st_size > MAX_BYTES:
            raise WorkflowError("the file is too large", field="FILE", value=str(place), allowed=f"{MAX_BYTES} bytes")
        data = place.read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise WorkflowError(f"the file cannot be read: {reason}", field="FILE", value=str(path)) from None
    return parse_document(data, name=place.stem)


def parse_document(data: bytes | str | Mapping[str, Any], *, name: str = "workflow") -> Document:
    """Tell the form of a workflow that is given as JSON, or as what JSON gave.

    Also takes the body of a `POST /prompt`, which has an API form under `prompt`.

    Raises:
        WorkflowError: It is no JSON, or no workflow.
    """
    content = data if isinstance(data, Mapping) else _load(data, name)
    if not isinstance(content, Mapping):
        raise WorkflowError("not a workflow", field="FILE", value=name, allowed=_FORMS)
    if isinstance(content.get("nodes"), list):
        return Document("ui", content, name)
    inner = content.get("prompt")
    nodes = inner if isinstance(inner, Mapping) and "class_type" not in inner else content
    if not nodes or not all(isinstance(node, Mapping) and "class_type" in node for node in nodes.values()):
        raise WorkflowError("not a workflow", field="FILE", value=name, allowed=_FORMS)
    return Document("api", nodes, name, () if isinstance(data, Mapping) else _doubled_ids(data, nodes))


def _load(data: bytes | str, name: str) -> Any:
    try:
        return json.loads(data)
    except RecursionError:
        raise WorkflowError("the JSON is nested too deeply", field="FILE", value=name, allowed=_FORMS) from None
    except ValueError as error:
        raise WorkflowError(f"not JSON: {error}", field="FILE", value=name, allowed=_FORMS) from None


def _doubled_ids(data: bytes | str, nodes: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the ids that stand twice in an object of nodes; the usual reader would drop the first of them."""
    doubled: set[str] = set()

    def note(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = Counter(name for name, value in pairs if isinstance(value, dict) and "class_type" in value)
        doubled.update(name for name, count in names.items() if count > 1)
        return dict(pairs)

    json.loads(data, object_pairs_hook=note)
    return tuple(sorted(doubled & set(nodes)))
