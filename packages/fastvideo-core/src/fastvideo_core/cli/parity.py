"""`fastvideo parity`: run the comparisons that a card declares against independent implementations."""

from __future__ import annotations

import json
from argparse import Namespace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from fastvideo_core.cli.jobs import find_card
from fastvideo_core.cli.parser import Parser
from fastvideo_core.cli.shell import Shell
from fastvideo_core.cli.table import format_table
from fastvideo_core.errors import InputError, ParityError
from fastvideo_core.request.parameters import resolve_parameters

if TYPE_CHECKING:
    from fastvideo_core.card import ModelCard
    from fastvideo_core.parity import CheckReport, ParityReport

__all__ = ["DESCRIPTION", "EPILOG", "add_arguments", "run"]

DESCRIPTION = """\
Measure how far a card is from its references: its parts one by one (C0) and the whole loop with a fixed seed (C1), in
the exact mode, which must give equal bits, and in the default mode, which must keep the card's bound."""
EPILOG = """\
The reference must be installed (pip install diffusers). Requests are small unless --num-frames, --height and --width
say otherwise. The exit code is 0 if every declared comparison ran and passed, else 1."""

_SIZES = ("num_frames", "height", "width", "num_inference_steps", "seed")


def add_arguments(parser: Parser) -> None:
    """Add the command's flags."""
    parser.add_argument("card", metavar="CARD", help="id of a card, a checkpoint folder, or a hub repository")
    parser.add_argument("--reference", metavar="NAME", help="only comparisons with this reference, such as diffusers")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    for name in _SIZES:
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, type=int, metavar="N", help=f"{name} of the requests that the loop checks make")


def run(args: Namespace, shell: Shell) -> int:
    """Load the card and run its comparisons."""
    card = find_card(args.card)
    _check_reference(card, args.reference)
    parameters = {name: value for name in _SIZES if (value := getattr(args, name)) is not None}
    _check_parameters(card, parameters)
    report = _measure(card, args, parameters, shell)
    if args.json:
        shell.say(json.dumps(report.to_json(), indent=2))
    else:
        shell.say(_summary(report))
    return 0 if report.is_passed else 1


def _check_reference(card: ModelCard, reference: str | None) -> None:
    known = sorted({spec.reference for spec in card.parity.tests})
    if not known:
        raise ParityError(f"card {card.model_id} declares no comparisons")
    if reference is not None and reference not in known:
        near = get_close_matches(reference, known, n=1, cutoff=0.4)
        raise InputError(
            f"card {card.model_id} declares no comparison with it",
            field="reference",
            value=reference,
            allowed=", ".join(known),
            nearest=next(iter(near), None),
        )


def _check_parameters(card: ModelCard, parameters: dict[str, Any]) -> None:
    """Refuse what no task of the card takes, or one that has it does not, before anything is loaded."""
    loop = card.loops[card.recipe.assumes_loop]
    tasks = card.capabilities.tasks.values()
    known = {name for task in tasks for name in task.parameters}
    for task in tasks:
        # What no task has is each one's to refuse; where only some have it, checks give it to these.
        own = {name: value for name, value in parameters.items() if name in task.parameters or name not in known}
        resolve_parameters(task, own, loops={loop.loop_id: loop})


def _measure(card: ModelCard, args: Namespace, parameters: dict[str, Any], shell: Shell) -> ParityReport:
    from fastvideo_core.parity import run_ladder
    from fastvideo_core.runtime.loading import load_instance
    from fastvideo_core.runtime.weights.whole import whole_checkpoint

    # Declared comparisons are made in float32, on the CPU, where the references' bits can be reproduced.
    instance = load_instance(card, device="cpu", precision="float32")

    def show(check: CheckReport) -> None:
        if not args.json:
            shell.tell(f"{check.spec.level} {check.spec.test_id}: {check.status} ({check.duration_s:.1f} s)")

    with whole_checkpoint(card.checkpoint) as folder:
        return run_ladder(card, instance, folder, reference=args.reference, parameters=parameters, on_check=show)


def _summary(report: ParityReport) -> str:
    rows = [row for check in report.checks for row in _rows(check)]
    table = format_table(rows, header=("level", "check", "what", "mode", "max relative", "result"))
    reasons = [f"{check.spec.test_id}: {check.reason}" for check in report.checks if check.reason]
    verdict = f"{report.card_id}: {'passed' if report.is_passed else 'FAILED'}"
    return "\n".join([table, *reasons, verdict])


def _rows(check: CheckReport) -> list[tuple[str, ...]]:
    head = (check.spec.level.value, check.spec.test_id)
    if not check.measurements:
        return [(*head, check.spec.subject, "", "", check.status.replace("_", " "))]
    return [
        (*head, m.name, m.mode, "equal" if m.comparison.is_equal else f"{m.comparison.max_relative:.2e}", check.status)
        for m in check.measurements
    ]
