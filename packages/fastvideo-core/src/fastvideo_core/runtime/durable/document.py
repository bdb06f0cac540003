"""A request as a document: all that is needed to run it again, also when the files that it named are gone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import ValidationError

from fastvideo_core.card import ModelCard
from fastvideo_core.errors import FastVideoError, StateError, describe_failure
from fastvideo_core.request.base import Request
from fastvideo_core.request.parameters import ResolvedParameters
from fastvideo_core.runtime.prepare import PreparedRequest, prepare_request

__all__ = ["RequestDocument", "read_request", "write_request"]

_ARRAY = "array"
_FILE = "file"


@dataclass(frozen=True, slots=True)
class RequestDocument:
    """A request taken apart.

    Attributes:
        content: Plain data.
        arrays: Pixels, samples and the like, by the name that stands for them in the content.
        files: Files that the request names and that are read later, by the name of their copy.
    """

    content: dict[str, Any]
    arrays: dict[str, torch.Tensor]
    files: dict[str, Path]


def write_request(prepared: PreparedRequest) -> RequestDocument:
    """Turn a request into a document. An image is kept as it was read, decoded.

    Raises:
        StateError: An input is of a kind that cannot be stored.
    """
    request = prepared.request
    arrays: dict[str, torch.Tensor] = {}
    files: dict[str, Path] = {}
    fields = request.model_dump(exclude={"inputs", "parameters", "node_overrides"})
    parts = []
    for part in request.inputs:
        values = {name: getattr(part, name) for name in type(part).model_fields}
        if part.kind == "image":
            values |= {"path": None, "pixels": prepared.inputs[part.name]}
        parts.append({name: _flatten(f"{part.name}.{name}", one, arrays, files) for name, one in values.items()})
    fields["parameters"] = _given(request.parameters, prepared.parameters)
    fields["node_overrides"] = {
        node_id: _given(given, prepared.parameters_of(node_id)) for node_id, given in request.node_overrides.items()
    }
    content = {
        "request": {**fields, "inputs": parts},
        "parameters": prepared.parameters.to_json(),
        "node_parameters": {node_id: one.to_json() for node_id, one in prepared.node_parameters.items()},
    }
    return RequestDocument(content, arrays, files)


def read_request(
    content: Mapping[str, Any], arrays: Mapping[str, torch.Tensor], folder: Path, card: ModelCard
) -> PreparedRequest:
    """Turn a document back into the request: the same seed, the same parameters, from the same sources.

    Args:
        content: The plain data.
        arrays: The arrays.
        folder: Where the copies of files are.
        card: The card.

    Raises:
        StateError: It is no such document, or the card does not take the request any more.
    """
    try:
        fields = dict(content["request"])
        fields["inputs"] = [
            {name: _restore(one, arrays, folder) for name, one in part.items()} for part in fields["inputs"]
        ]
        prepared = prepare_request(card, Request.model_validate(fields))
        return replace(
            prepared,
            parameters=ResolvedParameters.from_json(content["parameters"]),
            node_parameters={
                node_id: ResolvedParameters.from_json(one) for node_id, one in content["node_parameters"].items()
            },
        )
    except FastVideoError as error:
        raise StateError(f"is not taken by card {card.model_id} any more: {error}") from error
    except (LookupError, TypeError, AttributeError, ValidationError) as error:
        raise StateError(f"holds no request: {describe_failure(error)}") from error


def _given(given: Mapping[str, Any], resolved: ResolvedParameters) -> dict[str, Any]:
    """Return what was given, in the plain types that it was resolved to; a seed that was left open stays so."""
    return {name: value if value is None else resolved[name] for name, value in given.items()}


def _flatten(key: str, value: Any, arrays: dict[str, torch.Tensor], files: dict[str, Path]) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Path):
        name = f"input-{len(files)}{value.suffix}"
        files[name] = value
        return {_FILE: name}
    if isinstance(value, torch.Tensor):
        arrays[key] = value
        return {_ARRAY: key, "is_tensor": True}
    array = np.asarray(value)
    if array.dtype == object:
        raise StateError(f"input {key} is a {type(value).__qualname__}, which cannot be stored")
    arrays[key] = torch.from_numpy(np.array(array))
    return {_ARRAY: key}


def _restore(value: Any, arrays: Mapping[str, torch.Tensor], folder: Path) -> Any:
    if not isinstance(value, dict):
        return value
    if _FILE in value:
        return folder / Path(value[_FILE]).name
    tensor = arrays[value[_ARRAY]]
    return tensor if value.get("is_tensor") else tensor.numpy()
