"""argparse with errors of one line that name the nearest flag, and values that the card's own checks judge."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, NoReturn

from fastvideo_core.errors import InputError, ParameterError

__all__ = ["Parser", "assignment", "count", "number"]


class Parser(argparse.ArgumentParser):
    """The parser of one command. Flags cannot be shortened: a shortened one changes its meaning with a new flag."""

    def __init__(self, *, prog: str, description: str, epilog: str) -> None:
        super().__init__(
            prog=prog,
            description=description,
            epilog=epilog,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Parse the arguments of the command.

        Raises:
            InputError: An unknown or incomplete flag, a missing or superfluous argument.
        """
        self._refuse_unknown_flags(arguments)
        parsed, extra = self.parse_known_args(list(arguments))
        if extra:
            raise InputError(f"{self.prog} takes no further argument {extra[0]!r}; quote a text that has spaces")
        return parsed

    def error(self, message: str) -> NoReturn:
        """Raise what argparse finds.

        Raises:
            InputError: Always.
        """
        raise InputError(f"{message.removeprefix('argument ')} ({self.prog} --help explains)")

    def _refuse_unknown_flags(self, arguments: Sequence[str]) -> None:
        known = list(self._option_string_actions)
        for argument in arguments:
            if argument == "--":
                return
            flag = argument.partition("=")[0]
            # What argparse takes for a flag: one word that begins with a hyphen and is no number.
            if not flag.startswith("-") or flag == "-" or " " in argument or _is_number(argument):
                continue
            is_short = flag[:2] in known and not flag.startswith("--")
            if flag not in known and not is_short:
                # `--steps` means --num-inference-steps; by letters alone it would be nearer to --set.
                near = [name for name in known if flag.strip("-") in name.split("-")]
                near += get_close_matches(flag, known, n=1, cutoff=0.5)
                raise InputError(
                    f"{self.prog} has no flag {flag}",
                    nearest=next(iter(near), None),
                )


def number(text: str) -> int | float | str:
    """Read a number; anything else stays text, for the card's parameter to refuse in its own words."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def count(text: str) -> int:
    """Read a whole number of at least one.

    Raises:
        argparse.ArgumentTypeError: It is none.
    """
    if text.isascii() and text.isdigit() and int(text) >= 1:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")


def assignment(text: str) -> tuple[str, Any]:
    """Read `name=value`, where the value is JSON, or text where it is no JSON.

    Raises:
        ParameterError: There is no name or no `=`.
    """
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise ParameterError("not an assignment", field="set", value=text, allowed="name=value")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
