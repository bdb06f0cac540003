"""`fastvideo serve`: one card over HTTP, until a signal comes."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING, Any

from fastvideo_core.cli.jobs import check_engine_options
from fastvideo_core.cli.parser import Parser
from fastvideo_core.cli.setup import Setup, add_assignments, add_config_option, read_setup
from fastvideo_core.cli.shell import Shell
from fastvideo_core.errors import ConfigError, ResourceError

if TYPE_CHECKING:
    from fastvideo_server.config import ServerConfig

__all__ = ["DESCRIPTION", "EPILOG", "add_arguments", "run"]

DESCRIPTION = "Serve a card over HTTP: an API that OpenAI clients speak, and a page at /. Prints its address."
EPILOG = """\
Jobs, their states and their files are in the folder `fastvideo-server` (server.folder). A server that is killed goes on
with its jobs when it is started again there. SIGTERM and Ctrl-C let running jobs end first (server.drain_s)."""


def add_arguments(parser: Parser) -> None:
    """Add the command's flags."""
    parser.add_argument("--card", metavar="ID|FOLDER|HUB_REPO", help="card (default: the config's, or wan-shapes)")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:INDEX (default: auto)")
    parser.add_argument("--precision", help="float32, bfloat16 or float16 (default: the card's)")
    parser.add_argument("--host", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, help="port, 0 for a free one (default: 8000)")
    parser.add_argument("--folder", metavar="DIR", help="folder of jobs (default: fastvideo-server)")
    add_config_option(parser)
    add_assignments(parser)


def run(args: Namespace, shell: Shell) -> int:
    """Serve until a signal comes."""
    setup = read_setup(args)
    setup.tell_failures(shell)
    config = _server_config(args, setup)
    card = setup.find_card(args.card)
    check_engine_options(card, device=args.device, precision=args.precision)
    from fastvideo_server import logs, tracing
    from fastvideo_server.http.app import create_app
    from fastvideo_server.protocol import DrainingServer, uvicorn_config
    from fastvideo_server.serve import open_parts

    logs.configure(config.log_format)
    tracing.configure(config.traces)
    device, precision = setup.device(card, args.device), setup.precision(card, args.precision)
    with open_parts(config, card, setup=setup, device=device, precision=precision) as parts:
        server = DrainingServer(uvicorn_config(create_app(parts), config), parts.service.drain, shell.say)
        with shell.cancels(server.stop):
            try:
                server.run()
            except SystemExit as error:  # how uvicorn says that it cannot listen
                raise ResourceError(f"cannot listen on {config.host}:{config.port}: is the port taken?") from error
    return 0


def _server_config(args: Namespace, setup: Setup) -> ServerConfig:
    """Return the settings: flags over the deploy config's section."""
    from pydantic import ValidationError

    from fastvideo_server.config import ServerConfig

    section: dict[str, Any] = {}
    if setup.deployment is not None:
        from fastvideo_core.deploy.deployment import check_sections

        checked = check_sections(setup.deployment.resolved, setup.deployment.extensions.registry).get("server")
        section = {} if checked is None else checked.model_dump(exclude_unset=True)
    flags = {name: getattr(args, name) for name in ("host", "port", "folder")}
    section |= {name: value for name, value in flags.items() if value is not None}
    try:
        return ServerConfig.model_validate(section)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(("server", *(str(part) for part in first["loc"])))
        raise ConfigError(first["msg"], field=place, value=first["input"]) from None
