"""`fastvideo config show`: every value that would be used, and where it comes from."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from fastvideo_core.cli.options import is_config_key
from fastvideo_core.cli.parser import Parser
from fastvideo_core.cli.setup import add_assignments, add_config_option, config_assignments
from fastvideo_core.cli.shell import Shell
from fastvideo_core.cli.table import format_table

if TYPE_CHECKING:
    from fastvideo_core.card import ModelCard
    from fastvideo_core.deploy import Deployment

__all__ = ["DESCRIPTION", "EPILOG", "add_arguments", "run"]

DESCRIPTION = """\
Show every value of the deploy config, and every parameter of a card as requests get it, with where each comes from: the
request (here --set), the environment, the file with its line, the card, or the default."""
EPILOG = "A name in --set that is no key of the config is a parameter of the card."

Row = tuple[str, Any, str]


def add_arguments(parser: Parser) -> None:
    """Add the command's flags."""
    add_config_option(parser)
    parser.add_argument(
        "--card", metavar="ID|FOLDER|HUB_REPO", help="card whose parameters are shown (default: the config's)"
    )
    parser.add_argument("--task", help="task of the card (default: the card's)")
    add_assignments(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: Namespace, shell: Shell) -> int:
    """Resolve everything and print it."""
    from fastvideo_core.deploy import deploy, resolve_config

    deployment = deploy(resolve_config(args.config, assignments=config_assignments(args)))
    card = deployment.find_card(args.card)
    task = card.capabilities.default_task if args.task is None else args.task
    given = {name: value for name, value in args.set if not is_config_key(name)}
    rows = [*_config_rows(deployment), *_parameter_rows(deployment, card, task, given)]
    if args.json:
        values = [{"key": key, "value": value, "source": source} for key, value, source in rows]
        shell.say(json.dumps({"card": card.model_id, "task": task, "values": values}, indent=2))
    else:
        table = [(key, json.dumps(value, ensure_ascii=False), source) for key, value, source in rows]
        shell.say(format_table(table, header=("key", "value", "from")))
    return 0


def _config_rows(deployment: Deployment) -> Iterator[Row]:
    from fastvideo_core.deploy.resolve import place_text

    for place, value, origin in deployment.resolved.values():
        if place[0] != "cards" or len(place) < 3 or place[2] != "parameters":
            yield place_text(place), value, _source(origin.layer, origin.text)


def _parameter_rows(deployment: Deployment, card: ModelCard, task: str, given: dict[str, Any]) -> Iterator[Row]:
    from fastvideo_core.request.parameters import resolve_parameters

    spec = card.task(task)
    resolved = resolve_parameters(spec, given, deploy=deployment.parameters(card, task))
    for name, value in resolved.items():
        source: str = resolved.source(name)
        if source == "deploy":
            origin = deployment.parameter_origin(card, name)
            source = _source(origin.layer, origin.text)
        elif source == "card":
            source = f"card {card.model_id}"
        yield f"{task}.{name}", value, source


def _source(layer: str, text: str) -> str:
    return layer if layer == "default" else f"{layer}: {text}"
