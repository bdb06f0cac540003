"""`fastvideo config schema`: the JSON schema of deploy configs, for editors."""

from __future__ import annotations

import json
from argparse import Namespace

from fastvideo_core.cli.parser import Parser
from fastvideo_core.cli.shell import Shell

__all__ = ["DESCRIPTION", "EPILOG", "add_arguments", "run"]

DESCRIPTION = """\
Print the JSON schema of deploy configs, with the plugins that are installed and the sections that models and commands
own. An editor that knows it completes keys, and marks what is not allowed."""
EPILOG = """\
For editors with yaml-language-server, write it beside the config and begin that with
    # yaml-language-server: $schema=fastvideo.schema.json"""


def add_arguments(parser: Parser) -> None:
    """Add no flags: there are none."""


def run(_: Namespace, shell: Shell) -> int:
    """Print the schema."""
    from fastvideo_core.deploy.schema import config_schema

    shell.say(json.dumps(config_schema(), indent=2))
    return 0
