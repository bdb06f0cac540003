"""`fastvideo config check`: whether a deploy config means something on this machine."""

from __future__ import annotations

from argparse import Namespace

from fastvideo_core.cli.parser import Parser
from fastvideo_core.cli.setup import add_assignments
from fastvideo_core.cli.shell import Shell

__all__ = ["DESCRIPTION", "EPILOG", "add_arguments", "run"]

DESCRIPTION = """\
Check a deploy config: its keys and values, that the plugins that it names are installed, load, take their options and
can be together, and that its cards can be run so. Reads no weights."""
EPILOG = "The exit code is 0 for a good config, 2 for a bad one, and 1 if only a plugin fails."


def add_arguments(parser: Parser) -> None:
    """Add the command's flags."""
    parser.add_argument("file", metavar="FILE", help="the config")
    add_assignments(parser)


def run(args: Namespace, shell: Shell) -> int:
    """Check the file; the first thing that is wrong ends it."""
    from fastvideo_core.deploy import deploy, resolve_config

    deployment = deploy(resolve_config(args.file, assignments=args.set))
    config, failed = deployment.resolved.config, deployment.extensions.failed
    cards = list(dict.fromkeys([config.card, *config.cards]))
    for name in cards:
        deployment.check(deployment.find_card(name))
    for plugin in failed:
        shell.tell(f"error: {plugin} failed: {plugin.error}")
    named = ", ".join(deployment.extensions.named) or "no plugins besides models and commands"
    shell.say(f"{args.file} is valid: {named}; {len(cards)} card{'s' if len(cards) > 1 else ''}: {', '.join(cards)}")
    return 1 if failed else 0
