"""`fastvideo cards`: the installed model cards."""

from __future__ import annotations

import json
from argparse import Namespace
from typing import TYPE_CHECKING, Any

from fastvideo_core.cli.parser import Parser
from fastvideo_core.cli.shell import Shell
from fastvideo_core.cli.table import format_table

if TYPE_CHECKING:
    from fastvideo_core.card import ModelCard

__all__ = ["DESCRIPTION", "EPILOG", "add_arguments", "run"]

DESCRIPTION = "List the cards that the installed packages bring."
EPILOG = "A folder in diffusers layout, and a hub repository of a known family, can be used without being listed."


def add_arguments(parser: Parser) -> None:
    """Add the command's flags."""
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: Namespace, shell: Shell) -> int:
    """Print the list."""
    from fastvideo_core.runtime.catalog import Catalog

    catalog = Catalog.installed()
    cards = [_describe(card) for card in catalog.cards.values()]
    if args.json:
        shell.say(json.dumps({"cards": cards}, indent=2))
    elif cards:
        shell.say(
            format_table([_row(card) for card in cards], header=("id", "tasks", "size", "from", "licence", "title"))
        )
    for plugin in catalog.registry.failed:
        shell.tell(f"warning: {plugin.name} ({plugin.distribution} {plugin.version}) failed to load: {plugin.error}")
    if not cards:
        shell.tell("no cards: install a package that brings some, such as fastvideo-wan")
    return 0


def _describe(card: ModelCard) -> dict[str, Any]:
    source = card.checkpoint.source
    return {
        "id": card.model_id,
        "title": card.title,
        "family": card.family,
        "tasks": list(card.capabilities.tasks),
        "source": source.kind,
        "location": source.location,
        "revision": source.revision,
        "is_gated": any(one.is_gated for one in card.checkpoint.sources),
        "size_bytes": _size_bytes(card),
        "license": card.license,
    }


def _size_bytes(card: ModelCard) -> int | None:
    """Return the bytes of the weights: on disk where they ship with a package, else those of the download."""
    if any(source.kind == "hub" for source in card.checkpoint.sources):
        return card.checkpoint.download_bytes
    from fastvideo_core.runtime.weights.needs import find_weights

    found = find_weights(card)
    return None if found is None or found.problems else found.disk_bytes


def _row(card: dict[str, Any]) -> tuple[str, ...]:
    from fastvideo_core.runtime.weights.text import format_bytes

    size = "?" if card["size_bytes"] is None else format_bytes(card["size_bytes"])
    place = f"{card['source']} {card['location']}" + (" (gated)" if card["is_gated"] else "")
    return (card["id"], ", ".join(card["tasks"]), size, place, card["license"] or "?", card["title"])
