"""`fastvideo card show`: what a card can be asked for, what it was made with, what it is held to."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from fastvideo_core.cli.jobs import find_card
from fastvideo_core.cli.parser import Parser
from fastvideo_core.cli.shell import Shell
from fastvideo_core.cli.table import format_table

if TYPE_CHECKING:
    from fastvideo_core.card import InputSpec, ModelCard, ParameterSpec, ParityTestSpec, TaskSpec

__all__ = ["DESCRIPTION", "EPILOG", "add_arguments", "run"]

DESCRIPTION = "Show a card: its tasks with inputs and parameters, its recipe, its parity, its figures."
EPILOG = "A parameter's flag has hyphens for underscores where there is one; `--set NAME=VALUE` reaches all of them."


def add_arguments(parser: Parser) -> None:
    """Add the command's flags."""
    parser.add_argument("card", metavar="ID|FOLDER|HUB_REPO", help="the card")
    parser.add_argument("--json", action="store_true", help="print the whole card as JSON")


def run(args: Namespace, shell: Shell) -> int:
    """Print the card."""
    card = find_card(args.card)
    shell.say(card.model_dump_json(indent=2) if args.json else "\n".join(_lines(card)))
    return 0


def _lines(card: ModelCard) -> Iterator[str]:
    precision = card.precision
    yield f"{card.model_id}  {card.title}".rstrip()
    facts = {
        "family": f"{card.family}, card version {card.version}",
        "licence": card.license or "not stated",
        "weights": "; ".join(_places(card)),
        "precision": f"{', '.join(precision.allowed)} (default {precision.default}, on a CPU {precision.default_cpu})",
        "components": ", ".join(card.components),
    }
    yield format_table(list(facts.items()), indent="  ")
    for name, task in card.capabilities.tasks.items():
        is_default = name == card.capabilities.default_task
        yield f"\ntask {name}{' (default)' if is_default else ''}  {task.description}".rstrip()
        yield from _task_lines(card, task)
    yield "\nrecipe"
    yield format_table(_recipe(card), indent="  ")
    yield "\nparity"
    yield from _parity_lines(card)
    if card.figures:
        yield "\nfigures"
        yield format_table([(name, _text(value)) for name, value in card.figures.items()], indent="  ")


def _places(card: ModelCard) -> Iterator[str]:
    """Yield where the weights are; of those that are elsewhere than the others, which they are."""
    for source, held in card.checkpoint.sources.items():
        place = f"{source.kind} {source.location}" + (f" at {source.revision}" if source.revision else "")
        yield place if source == card.checkpoint.source else f"{', '.join(held)}: {place}"


def _task_lines(card: ModelCard, task: TaskSpec) -> Iterator[str]:
    yield format_table([_input_row(name, spec) for name, spec in task.inputs.items()], indent="  ")
    yield f"  makes {', '.join(f'{name} ({kind})' for name, kind in task.outputs.items())}"
    pinned = {name: value for loop in card.loops.values() for name, value in loop.pinned.items()}
    rows = [_parameter_row(name, spec, pinned) for name, spec in task.parameters.items()]
    if rows:
        yield format_table(rows, header=("parameter", "default", "allowed", ""), indent="  ")


def _input_row(name: str, spec: InputSpec) -> tuple[str, str, str]:
    limit = f", at most {spec.max_length}" if spec.max_length else ""
    return f"takes {name}", f"{spec.modality}{'' if spec.required else ', optional'}{limit}", spec.description


def _parameter_row(name: str, spec: ParameterSpec, pinned: dict[str, Any]) -> tuple[str, str, str, str]:
    allowed = f"only {_text(pinned[name])}: the weights assume it" if name in pinned else spec.allowed_text()
    about = "; ".join(part for part in (spec.unit, spec.description) if part)
    return name, _text(spec.default), allowed, about


def _recipe(card: ModelCard) -> list[tuple[str, str]]:
    recipe = card.recipe
    rows = [
        ("method", recipe.method),
        ("made from", ", ".join(recipe.parents) or "nothing else"),
        ("data", " ".join(part for part in (recipe.data_contract.name, recipe.data_contract.version) if part)),
        ("assumes", f"loop {recipe.assumes_loop}, precision {recipe.assumes_precision}"),
        ("holds from", recipe.consistency_required.value),
    ]
    return [*rows, *((name, _text(value)) for name, value in recipe.settings.items())]


def _parity_lines(card: ModelCard) -> Iterator[str]:
    if not card.parity.tests:
        yield "  no comparison declared"
    else:
        yield format_table([_parity_row(test) for test in card.parity.tests], indent="  ")
    bound = card.parity.batch_max_relative_error
    same = "the same bits" if card.parity.batch_invariant else f"within {bound:g} relative"
    yield f"  in a batch: {same}"


def _parity_row(test: ParityTestSpec) -> tuple[str, ...]:
    exact = "to the bit with --exact, " if test.exact_bits else ""
    bound = f"{exact}within {test.max_relative_error:g} relative"
    return test.level.value, test.test_id, f"{test.subject} against {test.reference}", bound


def _text(value: Any) -> str:
    if isinstance(value, str) and len(value) > 48:
        value = f"{value[:47]}…"
    return json.dumps(value, ensure_ascii=False)
