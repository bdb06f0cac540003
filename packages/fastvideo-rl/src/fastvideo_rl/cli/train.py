"""`fastvideo rl train`."""

from __future__ import annotations

from argparse import Namespace

from fastvideo_core.cli.parser import Parser
from fastvideo_core.cli.shell import Shell
from fastvideo_rl.cli.common import add_config_options, train_and_ship

__all__ = ["DESCRIPTION", "EPILOG", "add_arguments", "run"]

DESCRIPTION = """\
Train a card as a config says: roll out on the engine that serves, score, update, hand the weights back. The whole
config is checked before anything is loaded. The run's folder gets checkpoints, metrics, TensorBoard's files, sheets of
samples, and at the end a card."""
EPILOG = "With several processes: torchrun --nproc-per-node N -m fastvideo_core.cli rl train --config FILE."


def add_arguments(parser: Parser) -> None:
    """Add the command's flags."""
    add_config_options(parser)


def run(args: Namespace, shell: Shell) -> int:
    """Train."""
    return train_and_ship(args, shell, is_resumed=False)
