"""`fastvideo status`: jobs of a server."""

from __future__ import annotations

import json
from argparse import Namespace
from itertools import islice

from fastvideo_core.cli.parser import Parser, count
from fastvideo_core.cli.shell import Shell
from fastvideo_server.cli.remote import add_server_options, open_client, video_line

__all__ = ["DESCRIPTION", "EPILOG", "add_arguments", "run"]

DESCRIPTION = "Print a server's newest jobs, one a line, or one of them."
EPILOG = "The key, where the server needs one, is in the variable FASTVIDEO_API_KEY."


def add_arguments(parser: Parser) -> None:
    """Add the command's flags."""
    parser.add_argument("id", metavar="ID", nargs="?", help="one job")
    parser.add_argument("-n", "--num", type=count, default=20, metavar="N", help="most jobs (default: 20)")
    parser.add_argument("--json", action="store_true", help="print JSON, one job a line")
    add_server_options(parser)


def run(args: Namespace, shell: Shell) -> int:
    """Print them."""
    with open_client(args) as client:
        videos = islice(client.list(limit=min(args.num, 100)), args.num) if args.id is None else [client.get(args.id)]
        for video in videos:
            shell.say(json.dumps(video) if args.json else video_line(video))
    return 0
