"""`fastvideo plugins new`: the beginning of a plugin package."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from fastvideo_core.cli.parser import Parser
from fastvideo_core.cli.shell import Shell

__all__ = ["DESCRIPTION", "EPILOG", "add_arguments", "run"]

DESCRIPTION = """\
Write a package with a plugin that works: pyproject.toml, hook module, implementation, a test that runs the contract
suite, README and changelog. It passes the suite as it is; change it from there."""
EPILOG = """\
    fastvideo plugins new interceptor skip-two
    pip install -e './fastvideo-skip-two[test]' && pytest fastvideo-skip-two"""


def add_arguments(parser: Parser) -> None:
    """Add the command's flags."""
    parser.add_argument("kind", metavar="KIND", help="model, interceptor, observer or transport")
    parser.add_argument("name", metavar="NAME", help="the plugin's name: lower case letters, digits and hyphens")
    parser.add_argument("-o", "--output", metavar="DIR", help="new folder of the package (default: fastvideo-NAME)")


def run(args: Namespace, shell: Shell) -> int:
    """Write the package and print its files."""
    from fastvideo_core.extend.scaffold import write_plugin

    folder = Path(f"fastvideo-{args.name}" if args.output is None else args.output)
    for path in write_plugin(args.kind, args.name, folder):
        shell.say(str(path))
    return 0
