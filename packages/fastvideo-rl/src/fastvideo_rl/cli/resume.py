"""`fastvideo rl resume`."""

from __future__ import annotations

from argparse import Namespace

from fastvideo_core.cli.parser import Parser
from fastvideo_core.cli.shell import Shell
from fastvideo_rl.cli.common import add_config_options, train_and_ship

__all__ = ["DESCRIPTION", "EPILOG", "add_arguments", "run"]

DESCRIPTION = """\
Go on with a run from its newest checkpoint; what comes out is to the bit what it would have been without the stop. The
config must be the one that the run began with, but for the number of steps and what is written when."""
EPILOG = ""


def add_arguments(parser: Parser) -> None:
    """Add the command's flags."""
    add_config_options(parser)


def run(args: Namespace, shell: Shell) -> int:
    """Resume."""
    return train_and_ship(args, shell, is_resumed=True)
