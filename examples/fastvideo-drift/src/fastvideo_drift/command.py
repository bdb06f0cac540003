"""`fastvideo drift train FOLDER`: make the weights. Imports no torch before it runs."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

from fastvideo_core.errors import InputError, OutputError

__all__ = ["DESCRIPTION", "EPILOG", "add_arguments", "run"]

DESCRIPTION = "Train a checkpoint of the drift family into a new folder; about a minute on two processor cores."
EPILOG = "The folder can then be used as a card: fastvideo generate PROMPT --card FOLDER."

_TELL_EVERY = 100


def add_arguments(parser: Any) -> None:
    """Add the command's flags."""
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="where it is written")
    parser.add_argument("--steps", type=int, default=600, metavar="N", help="optimizer steps; 0 trains nothing")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="decides weights and data")


def run(args: Namespace, shell: Any) -> int:
    """Train, and say where the weights are.

    Raises:
        InputError: A number of steps that makes no sense.
        OutputError: The folder exists.
    """
    if args.steps < 0:
        raise InputError("cannot be", field="steps", value=args.steps, allowed="0 or more", nearest=0)
    if args.folder.exists():
        raise OutputError("exists already", field="folder", value=str(args.folder), allowed="a new folder")
    from fastvideo_drift.training import train

    def tell(step: int, error: float) -> None:
        if step % _TELL_EVERY == 0:
            shell.tell(f"step {step} of {args.steps}: error {error:.4f}")

    train(args.folder, num_steps=args.steps, seed=args.seed, on_step=tell)
    shell.say(str(args.folder))
    return 0
