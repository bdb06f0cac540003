"""From a request to something that can run: all checks that need no weights, before any weight is read."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fastvideo_core.card import LoopSpec, ModelCard, TaskSpec, resolve_ref
from fastvideo_core.card.base import is_unicode
from fastvideo_core.errors import CardError, InputError, MediaError, ParameterError, PromptError
from fastvideo_core.extend.extensions import NO_EXTENSIONS, Extensions
from fastvideo_core.program.base import ArtifactNode, ConstantEdge, InlineProgram, InputEdge, ModelLoopNode
from fastvideo_core.request.base import ActionPart, ImagePart, Request, TextPart, VideoPart
from fastvideo_core.request.parameters import ResolvedParameters, check_pinned, resolve_parameters

__all__ = ["PreparedRequest", "check_task", "known_inputs", "plugin_options", "prepare_request"]


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


def prepare_request(
    card: ModelCard,
    request: Request,
    *,
    deploy: Mapping[str, Any] | None = None,
    extensions: Extensions | None = None,
) -> PreparedRequest:
    """Check a request against a card and resolve its parameters.

    Args:
        card: The card.
        request: The request.
        deploy: Parameters that the deploy config sets for this card.
        extensions: What is on where the request will run; None leaves what it sets of plugins to the engine's check.

    Raises:
        InputError: The task, an input, a parameter or an output is not one of the card's.
    """
    program = check_task(card, request.task)
    task = card.task(request.task)
    nodes = program.needed_for(_wanted(task, request))
    loops = {node.loop: card.loops[node.loop] for node in nodes if isinstance(node, ModelLoopNode)}
    _check_capture(request, loops)
    parameters = resolve_parameters(task, request.parameters, deploy=deploy, loops=loops)
    if "seed" in parameters and parameters["seed"] is None:
        parameters = parameters.with_value("seed", secrets.randbelow(2**31), "engine")
    overrides = _node_parameters(task, request, nodes, deploy, loops, parameters)
    inputs = _read_inputs(task, request)
    _check_sources(nodes, program, inputs)
    prepared = PreparedRequest(request, card, program, nodes, parameters, overrides, inputs)
    if extensions is not None:
        plugin_options(prepared, extensions)
    return prepared


def known_inputs(node: ModelLoopNode, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return what reaches a node without any other's result: the request's inputs and the program's own values."""
    known: dict[str, Any] = {}
    for port, edge in node.inputs.items():
        if isinstance(edge, InputEdge):
            known[port] = inputs.get(edge.name)
        elif isinstance(edge, ConstantEdge):
            known[port] = edge.value
    return known


def plugin_options(prepared: PreparedRequest, extensions: Extensions | None) -> dict[str, Any]:
    """Return the options of each interceptor that is on, for one request.

    Args:
        prepared: The request.
        extensions: What is on; None if nothing is.

    Raises:
        ParameterError: It sets what is not on, or not its own to set, or what is not allowed.
        InputError: It is exact, and something is on that alters results.
    """
    request = prepared.request
    known = NO_EXTENSIONS if extensions is None else extensions
    checked: dict[str, Any] = {}
    for parameters in (*prepared.node_parameters.values(), prepared.parameters):
        checked = known.check_request(request.plugins, exact=request.exact, parameters=parameters)
    return checked


def check_task(card: ModelCard, name: str) -> InlineProgram:
    """Return the program of a task, refusing one that the card's weights were not made for. Needs no weights.

    Raises:
        UnknownTaskError: The card has no such task.
        LoopMismatchError: The program runs a loop that the weights do not assume, or the card's own defaults
            contradict what the weights were trained for.
        CardError: The card names no program, or one that does not fit it.
    """
    task = card.task(name)
    program = resolve_ref(task.program)
    if not isinstance(program, InlineProgram):
        raise CardError(f"task {name} of {card.model_id} names {task.program!r}, which is no program")
    program.check_against(card)
    for loop_id in program.loop_ids():
        check_pinned(card.loops[loop_id], task.defaults())
    return program


def _wanted(task: TaskSpec, request: Request) -> tuple[str, ...]:
    wanted = request.outputs.artifacts or (next(iter(task.outputs)),)
    for name in wanted:
        if name not in task.outputs:
            raise InputError(
                "the task makes no such output", field="outputs", value=name, allowed=", ".join(task.outputs)
            )
    return wanted


def _check_capture(request: Request, loops: Mapping[str, LoopSpec]) -> None:
    """Refuse to capture behaviour where no loop has any to give."""
    if request.outputs.capture_behavior and all(loop.behavior_schema is None for loop in loops.values()):
        raise InputError(
            f"no loop of task {request.task} records its behaviour", field="capture_behavior", value=True,
            allowed="false", nearest=False,
        )  # fmt: skip


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
        if merged["seed"] is None:
            merged["seed"] = parameters.get("seed")
        if "seed" not in task.parameters and "seed" not in given:
            merged.pop("seed")
        resolved[node_id] = resolve_parameters(task, merged, deploy=deploy, loops=loops)
    return resolved


def _check_sources(
    nodes: tuple[ModelLoopNode | ArtifactNode, ...], program: InlineProgram, inputs: Mapping[str, Any]
) -> None:
    """Refuse an output whose loop does not run without an input that was not given."""
    for node in nodes:
        if isinstance(node, ArtifactNode):
            source = program.node(node.source.node)
            needed = source.requires_input if isinstance(source, ModelLoopNode) else None
            if needed is not None and needed not in inputs:
                raise InputError(f"output {node.node_id} needs this input", field=needed, value=None, allowed="given")


def _read_inputs(task: TaskSpec, request: Request) -> dict[str, Any]:
    names = [part.name for part in request.inputs]
    for part in request.inputs:
        spec = task.inputs.get(part.name)
        if spec is None:
            raise InputError(
                f"task {request.task} takes no such input",
                field=part.name,
                value=str(path) if (path := getattr(part, "path", None)) is not None else part.kind,
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
        if not is_unicode(part.text):
            raise PromptError("not Unicode text", field=part.name, value=part.text, allowed="text that UTF-8 can hold")
        if is_required and not part.text.strip():
            raise PromptError("the text is empty", field=part.name, value=part.text, allowed="at least one word")
        return part.text
    if isinstance(part, ImagePart):
        from fastvideo_core.request.media.images import load_image

        return load_image(part.path if part.path is not None else part.pixels, field=part.name)
    if isinstance(part, VideoPart):
        return _read_video(part)
    if isinstance(part, ActionPart):
        return _read_actions(part)
    return part


def _read_video(part: VideoPart) -> Any:
    from fastvideo_core.request.media.pixels import as_frames
    from fastvideo_core.request.media.rates import as_fps
    from fastvideo_core.request.media.videos import VideoClip, load_video

    if part.path is not None:
        return load_video(part.path, field=part.name)
    frames = as_frames(part.frames, field=part.name)
    if len(frames) == 0:
        raise MediaError("has no frames", field=part.name, value=0, allowed="at least one frame")
    if part.fps is None:
        raise MediaError("has no frame rate", field=part.name, value=None, allowed="fps beside the frames")
    return VideoClip(frames, as_fps(part.fps))


def _read_actions(part: ActionPart) -> Any:
    """Return actions as float32 (steps, width).

    Raises:
        InputError: They are no numbers in rows of one width.
    """
    import numpy as np

    allowed = "finite numbers, (steps, width), at least one step"
    try:
        array = np.array(part.values, dtype=np.float32)
    except (TypeError, ValueError):
        raise InputError("not actions", field=part.name, value=part.values, allowed=allowed) from None
    if array.ndim != 2 or 0 in array.shape or not np.isfinite(array).all():
        raise InputError("not actions", field=part.name, value=f"{list(array.shape)}", allowed=allowed)
    return array
