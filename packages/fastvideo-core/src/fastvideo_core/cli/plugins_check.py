"""`fastvideo plugins check`: the contract suite on an installed plugin."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from argparse import Namespace

from fastvideo_core.cli.parser import Parser
from fastvideo_core.cli.plugins_info import find_entry
from fastvideo_core.cli.shell import Shell
from fastvideo_core.errors import PluginError

__all__ = ["DESCRIPTION", "EPILOG", "add_arguments", "run"]

DESCRIPTION = """\
Run the contract suite on all that an installed plugin brings: cards whose weights are on this machine, interceptors,
observers, transports. Needs fastvideo-testing, whose suite it is, and runs in a process of its own."""
EPILOG = "The exit code is 0 if every check passed, and 1 if one failed or there was nothing to check."


def add_arguments(parser: Parser) -> None:
    """Add the command's flags."""
    parser.add_argument("plugin", metavar="PLUGIN", help="its name, for instance interceptor.cachedit")
    parser.add_argument("--card", metavar="ID|FOLDER", help="card to check a model by, or to try a hook on")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: Namespace, shell: Shell) -> int:
    """Run the suite and hand its report and its exit code on."""
    entry = find_entry(args.plugin)
    if importlib.util.find_spec("fastvideo_testing") is None:
        raise PluginError("the contract suite is not installed; pip install fastvideo-testing")
    command = [sys.executable, "-m", "fastvideo_testing.check", entry.name]
    command += ["--card", args.card] if args.card is not None else []
    command += ["--json"] if args.json else []
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    shell.say(done.stdout.rstrip("\n"))
    return done.returncode
