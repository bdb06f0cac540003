"""Whether a card keeps its word: everything that it names is there, its programs fit, its files are whole.

Reading a card checks that it does not contradict itself. This goes further and imports what the card names, so it needs
the family's package; it still reads no weight, only the headers of the files.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fastvideo_core.card import LoopSpec, ModelCard, TaskSpec, object_refs, resolve_ref
from fastvideo_core.errors import FastVideoError, describe_failure
from fastvideo_core.loop.state import LoopState
from fastvideo_core.program.base import ArtifactNode, InlineProgram
from fastvideo_core.request.parameters import resolve_parameters

__all__ = ["card_problems", "checkpoint_problems"]


def card_problems(card: ModelCard) -> Iterator[str]:
    """Yield what is wrong with a card, one line each; nothing if all is well."""
    broken = dict(_broken_refs(card))
    yield from broken.values()
    for loop in card.loops.values():
        yield from _loop_problems(loop, broken)
    for name, task in card.capabilities.tasks.items():
        if task.program not in broken:
            yield from (f"task {name}: {problem}" for problem in _task_problems(card, task))


def checkpoint_problems(card: ModelCard) -> Iterator[str]:
    """Yield what is wrong with a card's files on this machine; a checkpoint that is not on it is not a problem.

    Names and shapes of all tensors are compared with those of the modules that they are for; no tensor is read.
    """
    from fastvideo_core.runtime.weights.needs import find_weights

    found = find_weights(card)
    if found is None:
        return
    yield from found.problems
    for name in found.files:
        yield from _component_problems(card, name, found.folders[name])


def _component_problems(card: ModelCard, name: str, folder: Path) -> Iterator[str]:
    import torch

    from fastvideo_core.runtime.instance import ComponentSource

    spec = card.components[name]
    files = card.checkpoint.components[spec.load_id]
    source = ComponentSource(spec, files, folder, torch.float32, torch.device("cpu"), is_check=True)
    try:
        resolve_ref(spec.factory)(source)
    except Exception as error:  # noqa: BLE001 - a factory is the family's own code
        yield f"component {name}: {describe_failure(error)}"


def _broken_refs(card: ModelCard) -> Iterator[tuple[str, str]]:
    """Yield each reference that leads nowhere, with the place and the reason."""
    seen = set()
    for place, ref in object_refs(card):
        if ref in seen:
            continue
        seen.add(ref)
        try:
            resolve_ref(ref)
        except FastVideoError as error:
            yield ref, f"{place} names {ref!r}: {describe_failure(error.__cause__ or error)}"


def _loop_problems(loop: LoopSpec, broken: dict[str, str]) -> Iterator[str]:
    if loop.state_schema not in broken:
        state = resolve_ref(loop.state_schema)
        is_state = isinstance(state, type) and LoopState in state.__mro__ and dataclasses.is_dataclass(state)
        if not is_state:
            yield f"loop {loop.loop_id}: state_schema {loop.state_schema!r} is no dataclass derived from LoopState"
        elif "__slots__" not in vars(state):
            yield f"loop {loop.loop_id}: state_schema {loop.state_schema!r} has no slots, so it could hold hidden state"
    if loop.outputs_schema is not None and loop.outputs_schema not in broken:
        yield from _outputs_problems(loop, resolve_ref(loop.outputs_schema))
    for ref in (loop.loop, loop.step, loop.step_cost_model, loop.check, loop.estimate):
        if ref is not None and ref not in broken and not callable(resolve_ref(ref)):
            yield f"loop {loop.loop_id}: {ref!r} cannot be called"


def _outputs_problems(loop: LoopSpec, schema: Any) -> Iterator[str]:
    if not (isinstance(schema, type) and dataclasses.is_dataclass(schema) and "__slots__" in vars(schema)):
        yield f"loop {loop.loop_id}: outputs_schema {loop.outputs_schema!r} is no dataclass with slots"
        return
    names = {field.name for field in dataclasses.fields(schema)}
    # What a rollout captures is handed on beside the outputs, to no other node.
    captured = set() if loop.behavior_schema is None else {"behavior"}
    if names - captured != set(loop.outputs):
        fields, outputs = ", ".join(sorted(names)) or "none", ", ".join(sorted(loop.outputs)) or "none"
        place = f"loop {loop.loop_id}: outputs_schema {loop.outputs_schema!r}"
        yield f"{place} has fields {fields}; its outputs are {outputs}"


def _task_problems(card: ModelCard, task: TaskSpec) -> Iterator[str]:
    program = resolve_ref(task.program)
    if not isinstance(program, InlineProgram):
        yield f"{task.program!r} is no program"
        return
    try:
        program.check_against(card)
        loops = {loop_id: card.loops[loop_id] for loop_id in program.loop_ids()}
        resolve_parameters(task, {}, loops=loops)
    except FastVideoError as error:
        yield describe_failure(error)
    made = {node.node_id: node.modality for node in program.nodes if isinstance(node, ArtifactNode)}
    for name, modality in task.outputs.items():
        if made.get(name) != modality:
            yield f"output {name!r} is declared as {modality}; the program makes {made.get(name, 'no such artifact')}"
