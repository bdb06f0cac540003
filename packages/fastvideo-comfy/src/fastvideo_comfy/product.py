"""Workflows as products: a compiled workflow with a version, named public parameters and their schema.

A product keeps the flat workflow, so that a parameter goes through the same compilation as if it stood in the file:
arithmetic and switches follow it, and the card checks what comes out.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from fastvideo_comfy.assign import parse_place
from fastvideo_comfy.compiler import Compiled, examine
from fastvideo_comfy.errors import WorkflowError
from fastvideo_comfy.files import parse_assignments
from fastvideo_comfy.fold.brought import BroughtNode
from fastvideo_comfy.graph.base import Link
from fastvideo_comfy.graph.document import MAX_BYTES, parse_document
from fastvideo_comfy.lower.base import CardFinder
from fastvideo_comfy.program import WorkflowProgram
from fastvideo_core.card.base import Contract, Identifier
from fastvideo_core.card.parameters import ParameterSpec
from fastvideo_core.errors import OutputError, ParameterError

__all__ = [
    "PublicParameter",
    "WorkflowProduct",
    "call_product",
    "load_product",
    "make_product",
    "parse_parameters",
    "write_new",
]


class PublicParameter(Contract):
    """An input of the workflow that callers may set.

    Attributes:
        node: Id of the node.
        input: Its input.
        spec: Type, range and default.
    """

    node: str
    input: str
    spec: ParameterSpec


class WorkflowProduct(Contract):
    """A saved workflow.

    Attributes:
        schema_version: Version of this contract.
        name: What it is called by.
        version: Version of the product itself.
        parameters: Public parameters by name.
        models: Cards of model files, as `--model` says them.
        prompt: The flat workflow in API form.
        program: What it compiles to with all defaults.
    """

    schema_version: Literal[1] = 1
    kind: Literal["workflow-product"] = "workflow-product"
    name: str = Field(min_length=1, max_length=128)
    version: str = Field(min_length=1, max_length=64)
    parameters: dict[Identifier, PublicParameter] = Field(default_factory=dict)
    models: tuple[str, ...] = ()
    prompt: dict[str, Any]
    program: WorkflowProgram

    @model_validator(mode="after")
    def _parameters_are_there(self) -> WorkflowProduct:
        for name, parameter in self.parameters.items():
            node = self.prompt.get(parameter.node)
            inputs = node.get("inputs") if isinstance(node, Mapping) else None
            if not isinstance(inputs, Mapping) or parameter.input not in inputs:
                raise ValueError(f"parameter {name!r} sets {parameter.node}.{parameter.input}, which is not there")
        return self

    def json_schema(self) -> dict[str, Any]:
        """Return the JSON schema of a call's parameters."""
        return {
            "type": "object",
            "title": f"{self.name} {self.version}",
            "additionalProperties": False,
            "properties": {name: _property(one.spec) for name, one in self.parameters.items()},
        }


def _property(spec: ParameterSpec) -> dict[str, Any]:
    found: dict[str, Any] = {"type": spec.type, "default": spec.default}
    optional = {
        "minimum": spec.minimum,
        "maximum": spec.maximum,
        "enum": None if spec.choices is None else list(spec.choices),
        "description": spec.description or None,
    }
    return found | {name: value for name, value in optional.items() if value is not None}


def parse_parameters(texts: list[str]) -> dict[str, tuple[str, str]]:
    """Read `NAME=NODE.INPUT`.

    Raises:
        ParameterError: One is of another form, or a name stands twice.
    """
    found: dict[str, tuple[str, str]] = {}
    for text in texts:
        name, equals, place = text.partition("=")
        if not equals or name in found:
            raise ParameterError(
                "not a public parameter", field="parameter", value=text, allowed="NAME=NODE.INPUT, each name once"
            )
        found[name] = parse_place(place)
    return found


def make_product(
    compiled: Compiled,
    *,
    name: str,
    version: str = "1",
    parameters: Mapping[str, tuple[str, str]] | None = None,
    models: tuple[str, ...] = (),
) -> WorkflowProduct:
    """Make a product of a compiled workflow.

    Args:
        compiled: The workflow, which has to compile.
        name: What it is called by.
        version: Its version.
        parameters: Node and input of each public parameter.
        models: Cards of model files.

    Raises:
        UnsupportedWorkflowError: It does not compile.
        ParameterError: A parameter is no input with a value, or has a name that is not allowed.
    """
    program = compiled.expect()
    public = {key: _public(compiled, key, *place) for key, place in (parameters or {}).items()}
    try:
        return WorkflowProduct(
            name=name, version=version, parameters=public, models=models, prompt=compiled.graph.to_prompt(),
            program=program,
        )  # fmt: skip
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "product"
        raise ParameterError(first["msg"], field=where, value=first["input"]) from None


def _public(compiled: Compiled, key: str, node_id: str, name: str) -> PublicParameter:
    node = compiled.graph.nodes.get(node_id)
    status = compiled.report.node(node_id).status if node is not None else ""
    if node is None or name not in node.inputs or isinstance(node.inputs[name], Link):
        places = [
            f"{one.node_id}.{own}"
            for one in compiled.graph.nodes.values()
            for own, value in one.inputs.items()
            if not isinstance(value, Link)
        ]
        near = get_close_matches(f"{node_id}.{name}", places, n=1, cutoff=0.0)
        raise ParameterError(
            "no input with a value of its own", field=key, value=f"{node_id}.{name}", allowed="NODE.INPUT",
            nearest=next(iter(near), None),
        )  # fmt: skip
    if status not in ("compiled", "folded"):
        raise ParameterError(
            f"node {node_id} is {status}: setting it changes nothing", field=key, value=f"{node_id}.{name}"
        )
    spec = _spec(node.inputs[name], name=name, node_type=node.type, title=node.title)
    return PublicParameter(node=node_id, input=name, spec=spec)


_NUMBERS = frozenset({"cfg", "denoise", "fps", "shift", "strength", "strength_clip", "strength_model"})
"""Inputs that take any number, also where a file has a whole one."""


def _spec(value: Any, *, name: str, node_type: str, title: str) -> ParameterSpec:
    kinds: Mapping[type, Any] = {bool: "boolean", int: "integer", float: "number", str: "string"}
    kind = kinds.get(type(value))
    if kind is None:
        raise ParameterError("not a value that callers can set", field=name, value=value, allowed="a scalar")
    if type(value) is int and (name in _NUMBERS or node_type == "PrimitiveFloat"):
        kind, value = kinds[float], float(value)
    return ParameterSpec(type=kind, default=value, description=f"{title}: {name}")


def load_product(path: Path) -> WorkflowProduct | None:
    """Read a product; None where the file is something else, such as a workflow.

    Raises:
        WorkflowError: It says that it is a product, and something in it is wrong.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            return None
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(content, Mapping) or content.get("kind") != "workflow-product":
        return None
    try:
        return WorkflowProduct.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "document"
        raise WorkflowError(f"not a product: {where}: {first['msg']}", field="FILE", value=str(path)) from None


def call_product(
    product: WorkflowProduct,
    parameters: Mapping[str, Any],
    *,
    find_card: CardFinder,
    models: tuple[str, ...] = (),
    nodes: Mapping[str, BroughtNode] | None = None,
) -> Compiled:
    """Compile a product with parameters of a call.

    Args:
        product: The product.
        parameters: Values by public name; those left out have their defaults.
        find_card: Cards by name.
        models: Further cards of model files.
        nodes: Node types that plugins bring, by type.

    Raises:
        ParameterError: There is no such parameter, or a value is not allowed.
    """
    values = {}
    for name, value in parameters.items():
        public = product.parameters.get(name)
        if public is None:
            near = get_close_matches(name, product.parameters, n=1, cutoff=0.0)
            raise ParameterError(
                "the product has no such parameter", field=name, value=value,
                allowed=", ".join(product.parameters) or "none", nearest=next(iter(near), None),
            )  # fmt: skip
        values[public.node, public.input] = public.spec.validate_value(name, value)
    files = parse_assignments([*product.models, *models])
    document = parse_document(product.prompt, name=product.name)
    return examine(document, find_card=find_card, files=files, values=values, nodes=nodes)


def write_new(path: Path, text: str) -> None:
    """Write a file that is not there yet.

    Raises:
        OutputError: It is there, or cannot be written.
    """
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError:
        raise OutputError("the file is there already", field="output", value=str(path), allowed="a new name") from None
    except OSError as error:
        raise OutputError(f"cannot be written: {error.strerror}", field="output", value=str(path)) from None
