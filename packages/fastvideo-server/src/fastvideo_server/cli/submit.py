"""`fastvideo submit`: hand a prompt to a server."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from fastvideo_core.cli.options import add_parameter_options, given_parameters
from fastvideo_core.cli.parser import Parser
from fastvideo_core.cli.shell import Shell
from fastvideo_server.cli.remote import add_server_options, open_client
from fastvideo_server.cli.watch import follow

__all__ = ["DESCRIPTION", "EPILOG", "add_arguments", "run"]

DESCRIPTION = "Hand a prompt to a server. Prints the job's id, or with -o waits for the video and prints its path."
EPILOG = "The key, where the server needs one, is in the variable FASTVIDEO_API_KEY."


def add_arguments(parser: Parser) -> None:
    """Add the command's flags."""
    parser.add_argument("prompt", metavar="PROMPT", help="what to show")
    parser.add_argument("-o", "--output", metavar="FILE.mp4", help="wait, and write the video there")
    parser.add_argument("--image", metavar="FILE", help="input image, for tasks that take one")
    parser.add_argument("--task", help="task of the card")
    parser.add_argument("--idempotency-key", metavar="TEXT", help="the same key makes no second job")
    add_server_options(parser)
    add_parameter_options(parser)


def run(args: Namespace, shell: Shell) -> int:
    """Hand it in, and wait for it where a file is wanted."""
    from fastvideo_core.request.media.output import check_output

    target = None if args.output is None else check_output(Path(args.output), allowed=(".mp4",))
    given = given_parameters(args) | ({} if args.task is None else {"task": args.task})
    with open_client(args) as client:
        video = client.create(args.prompt, image=args.image, idempotency_key=args.idempotency_key, **given)
        for warning in video["warnings"]:
            shell.tell(f"warning: {warning}")
        if target is None:
            shell.say(video["id"])
            return 0
        code = follow(client, video["id"], shell, is_quiet=True)
        if code == 0:
            shell.say(str(client.save(video["id"], target.path)))
        return code
