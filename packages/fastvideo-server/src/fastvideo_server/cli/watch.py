"""`fastvideo watch`: follow a job to its end."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

from fastvideo_core.cli.parser import Parser
from fastvideo_core.cli.shell import Shell
from fastvideo_server.cli.remote import add_server_options, open_client

if TYPE_CHECKING:
    from fastvideo_server.client import Client

__all__ = ["DESCRIPTION", "EPILOG", "add_arguments", "follow", "run"]

DESCRIPTION = "Follow a server's job to its end. Prints its events, one a line."
EPILOG = "Ends with 0 if the job completes, else with 1. Ctrl-C ends only the watching."


def add_arguments(parser: Parser) -> None:
    """Add the command's flags."""
    parser.add_argument("id", metavar="ID", help="the job")
    parser.add_argument("--json", action="store_true", help="print events as JSON")
    add_server_options(parser)


def run(args: Namespace, shell: Shell) -> int:
    """Follow it."""
    with open_client(args) as client:
        return follow(client, args.id, shell, is_json=args.json)


def follow(client: Client, video_id: str, shell: Shell, *, is_json: bool = False, is_quiet: bool = False) -> int:
    """Print the events of a job, and return the exit code that its end stands for."""
    last = ""
    for event in client.events(video_id):
        last = event.type
        if is_json:
            shell.say(event.model_dump_json())
        elif last in ("request.failed", "request.cancelled"):
            shell.tell(f"error: {getattr(event, 'message', '') or getattr(event, 'reason', '')}")
        elif not is_quiet:
            percent = f" {event.fraction:4.0%} {event.node} {event.step}" if last == "request.progress" else ""
            shell.say(f"{last}{percent}")
    return 0 if last == "request.completed" or (not last and client.get(video_id)["status"] == "completed") else 1
