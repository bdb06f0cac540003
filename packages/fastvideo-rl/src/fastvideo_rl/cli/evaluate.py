"""`fastvideo rl eval`."""

from __future__ import annotations

import json
from argparse import Namespace
from typing import TYPE_CHECKING

from fastvideo_core.cli.parser import Parser, count
from fastvideo_core.cli.shell import Shell
from fastvideo_core.cli.table import format_table
from fastvideo_rl.cli.common import add_config_option, read_run, sheet_path

if TYPE_CHECKING:
    from fastvideo_rl.evaluation import Difference, Scores

__all__ = ["DESCRIPTION", "EPILOG", "add_arguments", "run"]

DESCRIPTION = """\
Score what a run has made by the rewards of its config's `evaluation`, beside the card that it began with or its
teacher: what both make of the same prompts with the seeds 0, 1, and so on, as anybody's requests are made. The table
says how much of what was missing to a reward's maximum was gained, and whether the config's bars are met. Where there
is no result yet, the card that the run begins with is scored alone."""
EPILOG = ""


def add_arguments(parser: Parser) -> None:
    """Add the command's flags."""
    add_config_option(parser)
    parser.add_argument("--card", metavar="CARD", help="id of a card, or a folder (default: the run's result)")
    parser.add_argument("--alone", action="store_true", help="score the card alone, beside no other")
    parser.add_argument("--num-samples", type=count, metavar="N", help="how many (default: the config's)")
    parser.add_argument("-o", "--output", metavar="FILE", help=".png with the samples")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: Namespace, shell: Shell) -> int:
    """Make the samples, score them, print the table."""
    from fastvideo_rl.evaluation import compare, differences, evaluate, find_baseline, find_result
    from fastvideo_rl.train.assemble import make_plan

    plan = make_plan(read_run(args))
    card = find_result(plan) if args.card is None else args.card
    baseline, sheet = find_baseline(plan), sheet_path(args.output)
    num_samples = args.num_samples or plan.config.evaluation.num_samples
    if args.alone or card == baseline:
        _say_alone(evaluate(plan, card, num_samples, sheet=sheet), args, shell)
        return 0
    before, after, _ = compare(plan, (baseline, card), num_samples, sheet=sheet)
    _say_difference(before, after, differences(plan, before, after), args, shell)
    return 0


def _say_alone(scores: Scores, args: Namespace, shell: Shell) -> None:
    if args.json:
        shell.say(json.dumps({"card": scores.card, "num_samples": scores.num_samples, **scores.means}, indent=2))
        return
    rows = [(name, f"{mean:.4f}", f"{scores.errors[name]:.4f}") for name, mean in scores.means.items()]
    shell.say(format_table(rows, header=(scores.card, "mean", "standard error")))


def _say_difference(before: Scores, after: Scores, found: list[Difference], args: Namespace, shell: Shell) -> None:
    if args.json:
        rows = {
            one.name: {
                before.card: one.before, after.card: one.after, "standard_error": one.error, "gained": one.gained,
                "bar": one.bar, "is_met": one.is_met,
            }
            for one in found
        }  # fmt: skip
        head = {"card": after.card, "beside": before.card, "num_samples": after.num_samples}
        shell.say(json.dumps({**head, "rewards": rows}, indent=2))
        return
    lines = [
        (
            one.name, f"{one.before:.4f}", f"{one.after:.4f}", f"{one.after - one.before:+.4f}", f"{one.error:.4f}",
            "" if one.gained is None else f"{one.gained:.0%}",
            "" if one.is_met is None else f"{'met' if one.is_met else 'missed'}: {one.bar}",
        )
        for one in found
    ]  # fmt: skip
    header = ("reward", before.card, after.card, "difference", "standard error", "gained of what is missing", "bar")
    shell.say(format_table(lines, header=header))
