"""`fastvideo rl compare`."""

from __future__ import annotations

import json
from argparse import Namespace

from fastvideo_core.cli.parser import Parser, count
from fastvideo_core.cli.shell import Shell
from fastvideo_core.cli.table import format_table
from fastvideo_rl.cli.common import add_config_option, read_run, sheet_path

__all__ = ["DESCRIPTION", "EPILOG", "add_arguments", "run"]

DESCRIPTION = """\
Score two cards on the same prompts and seeds, and print their rewards side by side; with a sheet, their samples stand
beside each other."""
EPILOG = ""


def add_arguments(parser: Parser) -> None:
    """Add the command's flags."""
    parser.add_argument("cards", nargs=2, metavar="CARD", help="id of a card, or a folder")
    add_config_option(parser)
    parser.add_argument("--num-samples", type=count, metavar="N", help="how many (default: the config's)")
    parser.add_argument("-o", "--output", metavar="FILE", help=".png with the samples of both")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: Namespace, shell: Shell) -> int:
    """Make the samples of both, score them, print the table."""
    from fastvideo_rl.evaluation import compare
    from fastvideo_rl.train.assemble import make_plan

    plan = make_plan(read_run(args))
    num_samples = args.num_samples or plan.config.evaluation.num_samples
    sheet = sheet_path(args.output)
    one, other, better = compare(plan, args.cards, num_samples, sheet=sheet)
    if args.json:
        found = {name: {one.card: one.means[name], other.card: other.means[name]} for name in one.means}
        shell.say(json.dumps({"num_samples": num_samples, "second_is_better": better, **found}, indent=2))
        return 0
    rows = [
        (name, f"{mean:.4f}", f"{other.means[name]:.4f}", f"{other.means[name] - mean:+.4f}", f"{better[name]:.0%}")
        for name, mean in one.means.items()
    ]
    shell.say(format_table(rows, header=("reward", one.card, other.card, "difference", "second is better")))
    return 0
