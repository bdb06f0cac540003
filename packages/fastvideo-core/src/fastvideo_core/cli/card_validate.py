"""`fastvideo card validate`: whether a card keeps its word, and whether its files are whole."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from fastvideo_core.cli.jobs import find_card
from fastvideo_core.cli.parser import Parser
from fastvideo_core.cli.shell import Shell
from fastvideo_core.errors import CardError

if TYPE_CHECKING:
    from fastvideo_core.card import ModelCard

__all__ = ["DESCRIPTION", "EPILOG", "add_arguments", "run"]

DESCRIPTION = """\
Check a card: that it does not contradict itself, that everything it names can be imported, that its programs fit, and
that its files, where they are on this machine, are whole. Reads no weights."""
EPILOG = "The exit code is 0 for a good card, 2 for a bad one, and 1 if only its files are missing or broken."

_MAX_BYTES = 16 << 20


def add_arguments(parser: Parser) -> None:
    """Add the command's flags."""
    parser.add_argument("card", metavar="FILE|FOLDER|ID", help="a card's JSON file, a checkpoint folder, or an id")


def run(args: Namespace, shell: Shell) -> int:
    """Check the card and tell of every problem."""
    from fastvideo_core.runtime.validate import card_problems, checkpoint_problems

    card = _read(args.card)
    problems = list(card_problems(card))
    broken_files = list(checkpoint_problems(card))
    for problem in [*problems, *broken_files]:
        shell.tell(f"error: {card.model_id}: {problem}")
    if problems or broken_files:
        return 2 if problems else 1
    tasks = ", ".join(card.capabilities.tasks)
    shell.say(f"{card.model_id} is valid: {len(card.components)} components, {len(card.loops)} loops, tasks {tasks}")
    return 0


def _read(name: str) -> ModelCard:
    path = _existing_file(name)
    if path is None:
        return find_card(name)
    from fastvideo_core.card import ModelCard

    try:
        if path.stat().st_size > _MAX_BYTES:
            raise CardError(f"{path} is too large for a card: more than {_MAX_BYTES >> 20} MiB")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CardError(f"{path} cannot be read as text: {error}") from error
    return ModelCard.from_json(text, origin=str(path))


def _existing_file(name: str) -> Path | None:
    """Return the file of a name, or None if it names none, or cannot name any."""
    try:
        path = Path(name).expanduser()
        return path if path.is_file() else None
    except (OSError, RuntimeError, ValueError):  # too long, no such user, a NUL
        return None
