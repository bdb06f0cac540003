"""From a request to something that can run: all checks that need no weights, before any weight is read."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fastvideo_core.card import LoopSpec, ModelCard, TaskSpec, resolve_ref
from fastvideo_core.errors import InputError, ParameterError, PromptError
from fastvideo_core.program.base import ArtifactNode, InlineProgram, ModelLoopNode
from fastvideo_core.request.base import ImagePart, Request, TextPart
from fastvideo_core.request.parameters import ResolvedParameters, resolve_parameters

__all__ = ["PreparedRequest", "prepare_request"]

MAX_SEED = 2**63 - 1


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A request that is valid for a card.

    Attributes:
        request: As it was given.
        card: The card.
        program: What runs.
        nodes: The nodes that the wanted artifacts need, sources first.
        parameters: Resolved for the whole request; a seed is always set where the task has one.
        node_parameters: Resolved for nodes with overrides.
        inputs: Inputs by name, read and decoded.
    """

    request: Request
    card: ModelCard
    program: InlineProgram
    nodes: tuple[ModelLoopNode | ArtifactNode, ...]
    parameters: ResolvedParameters
    node_parameters: Mapping[str, ResolvedParameters]
    inputs: Mapping[str, Any]

    def parameters_of(self, node_id: str) -> ResolvedParameters:
        """Return the parameters that a node runs with."""
        return self.node_parameters.get(node_id, self.parameters)


def prepare_request(card: ModelCard, request: Request, *, deploy: Mapping[str, Any] | None = None) -> PreparedRequest:
    """Check a request against a card and resolve its parameters.

    Args:
        card: The card.
        request: The request.
        deploy: Parameters that the deploy config sets for this card.

    Raises:
        InputError: The task, an input, a parameter or an output is not one of the card's.
    """
    task = card.task(request.task)
    program: InlineProgram = resolve_ref(task.program)
    program.check_against(card)
    nodes = program.needed_for(_wanted(task, request))
    loops = {node.loop: card.loops[node.loop] for node in nodes if isinstance(node, ModelLoopNode)}
    parameters = resolve_parameters(task, request.parameters, deploy=deploy, loops=loops)
    if "seed" in parameters and parameters["seed"] is None:
        parameters = parameters.with_value("seed", secrets.randbelow(2**31), "engine")
    overrides = _node_parameters(task, request, nodes, deploy, loops, parameters)
    return PreparedRequest(request, card, program, nodes, parameters, overrides, _read_inputs(task, request))


def _wanted(task: TaskSpec, request: Request) -> tuple[str, ...]:
    wanted = request.outputs.artifacts or (next(iter(task.outputs)),)
    for name in wanted:
        if name not in task.outputs:
            raise InputError(
                "the task makes no such output", field="outputs", value=name, allowed=", ".join(task.outputs)
            )
    return wanted


def _node_parameters(
    task: TaskSpec,
    request: Request,
    nodes: tuple[ModelLoopNode | ArtifactNode, ...],
    deploy: Mapping[str, Any] | None,
    loops: Mapping[str, LoopSpec],
    parameters: ResolvedParameters,
) -> dict[str, ResolvedParameters]:
    known = [node.node_id for node in nodes]
    resolved = {}
    for node_id, given in request.node_overrides.items():
        if node_id not in known:
            raise ParameterError(
                "no such node in the program", field="node_overrides", value=node_id, allowed=", ".join(known)
            )
        merged = {**request.parameters, "seed": parameters.get("seed"), **given}
        if "seed" not in task.parameters:
            merged.pop("seed")
        resolved[node_id] = resolve_parameters(task, merged, deploy=deploy, loops=loops)
    return resolved


def _read_inputs(task: TaskSpec, request: Request) -> dict[str, Any]:
    names = [part.name for part in request.inputs]
    for part in request.inputs:
        spec = task.inputs.get(part.name)
        if spec is None:
            raise InputError(
                f"task {request.task} takes no such input",
                field=part.name,
                value=part.kind,
                allowed=", ".join(task.inputs) or "no inputs",
            )
        if spec.modality != part.kind:
            raise InputError("wrong kind of input", field=part.name, value=part.kind, allowed=spec.modality)
        if names.count(part.name) > 1:
            raise InputError("given more than once", field=part.name, value=part.kind, allowed="one")
    for name, spec in task.inputs.items():
        if spec.required and name not in names:
            raise InputError(f"task {request.task} needs this input", field=name, value=None, allowed=spec.modality)
    return {part.name: _read(part, task.inputs[part.name].required) for part in request.inputs}


def _read(part: Any, is_required: bool) -> Any:
    if isinstance(part, TextPart):
        if is_required and not part.text.strip():
            raise PromptError("the text is empty", field=part.name, value=part.text, allowed="at least one word")
        return part.text
    if isinstance(part, ImagePart):
        from fastvideo_core.request.media.images import load_image

        return load_image(part.path if part.path is not None else part.pixels, field=part.name)
    return part
