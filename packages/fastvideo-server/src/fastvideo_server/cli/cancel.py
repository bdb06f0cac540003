"""`fastvideo cancel`: cancel a job and delete it."""

from __future__ import annotations

from argparse import Namespace

from fastvideo_core.cli.parser import Parser
from fastvideo_core.cli.shell import Shell
from fastvideo_server.cli.remote import add_server_options, open_client

__all__ = ["DESCRIPTION", "EPILOG", "add_arguments", "run"]

DESCRIPTION = "Cancel jobs of a server at their next step, and delete all that there is of them."
EPILOG = "The key, where the server needs one, is in the variable FASTVIDEO_API_KEY."


def add_arguments(parser: Parser) -> None:
    """Add the command's flags."""
    parser.add_argument("ids", metavar="ID", nargs="+", help="the jobs")
    add_server_options(parser)


def run(args: Namespace, shell: Shell) -> int:
    """Cancel them."""
    with open_client(args) as client:
        for video_id in args.ids:
            client.delete(video_id)
            shell.say(video_id)
    return 0
