"""`fastvideo plugins hooks`: every hook that a plugin may implement."""

from __future__ import annotations

import json
from argparse import Namespace
from dataclasses import asdict
from typing import TYPE_CHECKING

from fastvideo_core.cli.parser import Parser
from fastvideo_core.cli.shell import Shell
from fastvideo_core.cli.table import format_table
from fastvideo_core.errors import InputError

if TYPE_CHECKING:
    from fastvideo_core.extend.hooks import HookInfo

__all__ = ["DESCRIPTION", "EPILOG", "add_arguments", "run"]

DESCRIPTION = "List the hooks: since which version of the surface each is there, what it gives; with a name, all of it."
EPILOG = "A plugin's module states the versions that it was written for as HOOK_VERSIONS, for instance '>=1.0,<2'."


def add_arguments(parser: Parser) -> None:
    """Add the command's flags."""
    parser.add_argument("hook", nargs="?", metavar="HOOK", help="show its whole documentation")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: Namespace, shell: Shell) -> int:
    """Print the hooks."""
    from fastvideo_core.extend.hooks import hook_infos
    from fastvideo_core.extend.hookspecs import HOOK_VERSION

    infos = {info.name: info for info in hook_infos()}
    if args.hook is not None and args.hook not in infos:
        from difflib import get_close_matches

        near = get_close_matches(args.hook, infos, n=1, cutoff=0.4)
        raise InputError(
            "no such hook", field="hook", value=args.hook, allowed=", ".join(infos), nearest=next(iter(near), None)
        )
    chosen = list(infos.values()) if args.hook is None else [infos[args.hook]]
    if args.json:
        shell.say(json.dumps({"version": HOOK_VERSION, "hooks": [asdict(info) for info in chosen]}, indent=2))
    elif args.hook is None:
        rows = [(info.name, info.since, info.returns, _summary(info)) for info in chosen]
        shell.say(format_table(rows, header=("hook", "since", "returns", f"hooks of version {HOOK_VERSION}")))
    else:
        info = chosen[0]
        shell.say(f"{info.name}({', '.join(info.arguments)}) -> {info.returns}\n\n{info.documentation}")
        if info.deprecated is not None:
            shell.say(f"\nDeprecated: {info.deprecated}")
    return 0


def _summary(info: HookInfo) -> str:
    return info.summary if info.deprecated is None else f"deprecated: {info.deprecated}"
