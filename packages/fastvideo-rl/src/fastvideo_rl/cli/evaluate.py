"""`fastvideo rl eval`."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

from fastvideo_core.cli.parser import Parser, count
from fastvideo_core.cli.shell import Shell
from fastvideo_core.cli.table import format_table
from fastvideo_rl.cli.common import add_config_option, read_run

__all__ = ["DESCRIPTION", "EPILOG", "add_arguments", "run"]

DESCRIPTION = """\
Score a card by the rewards of a config: what it makes of the config's prompts with the seeds 0, 1, and so on, as
anybody's requests are made. Without a card, the run's own result, or the card that it begins with where there is none
yet."""
EPILOG = ""


def add_arguments(parser: Parser) -> None:
    """Add the command's flags."""
    add_config_option(parser)
    parser.add_argument("--card", metavar="CARD", help="id of a card, or a folder (default: the run's result)")
    parser.add_argument("--num-samples", type=count, default=32, metavar="N", help="how many (default: 32)")
    parser.add_argument("-o", "--output", metavar="FILE", help=".png with the samples")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: Namespace, shell: Shell) -> int:
    """Make the samples, score them, print the table."""
    from fastvideo_rl.evaluation import evaluate, find_result
    from fastvideo_rl.train.assemble import make_plan

    plan = make_plan(read_run(args))
    card = find_result(plan) if args.card is None else args.card
    scores = evaluate(plan, card, args.num_samples, sheet=None if args.output is None else Path(args.output))
    if args.json:
        shell.say(json.dumps({"card": scores.card, "num_samples": args.num_samples, **scores.means}, indent=2))
    else:
        rows = [(name, f"{mean:.4f}", f"{scores.errors[name]:.4f}") for name, mean in scores.means.items()]
        shell.say(format_table(rows, header=(scores.card, "mean", "standard error")))
    return 0
