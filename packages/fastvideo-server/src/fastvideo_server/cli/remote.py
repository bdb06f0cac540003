"""What the commands share that speak to a server: where it is, and the key for it."""

from __future__ import annotations

import os
from argparse import Namespace
from typing import TYPE_CHECKING, Any

from fastvideo_core.cli.parser import Parser

if TYPE_CHECKING:
    from fastvideo_server.client import Client

__all__ = ["DEFAULT_URL", "KEY_VARIABLE", "URL_VARIABLE", "add_server_options", "open_client", "video_line"]

DEFAULT_URL = "http://127.0.0.1:8000"
URL_VARIABLE = "FASTVIDEO_URL"
KEY_VARIABLE = "FASTVIDEO_API_KEY"


def add_server_options(parser: Parser) -> None:
    """Add the flag that says where the server is."""
    parser.add_argument(
        "--url", metavar="URL", help=f"the server (default: the variable {URL_VARIABLE}, or {DEFAULT_URL})"
    )


def open_client(args: Namespace) -> Client:
    """Return a client; the key is in the environment, since other users can read command lines."""
    from fastvideo_server.client import Client

    url = args.url or os.environ.get(URL_VARIABLE) or DEFAULT_URL
    return Client(url, key=os.environ.get(KEY_VARIABLE) or None)


def video_line(video: dict[str, Any]) -> str:
    """Return one line about a job."""
    error = "" if video["error"] is None else f"  {video['error']['message']}"
    return f"{video['id']}  {video['status']:<11}  {video['progress']:>3} %  {video['prompt'][:60]!r}{error}"
