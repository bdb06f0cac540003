"""What the commands share: the workflow's file, values to set, cards of model files."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from fastvideo_comfy.assign import parse_values
from fastvideo_comfy.compiler import Compiled, examine, installed_cards
from fastvideo_comfy.files import parse_assignments
from fastvideo_comfy.fold.brought import configured_nodes
from fastvideo_comfy.graph.document import read_document
from fastvideo_core.cli.parser import Parser

__all__ = ["add_model_option", "add_workflow_arguments", "examine_file"]


def add_workflow_arguments(parser: Parser) -> None:
    """Add the workflow and what may be said about it."""
    parser.add_argument("workflow", type=Path, metavar="FILE", help="workflow, in UI form or in API form")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NODE.INPUT=VALUE",
        help="an input in place of what stands or comes in there; may be repeated",
    )
    add_model_option(parser)


def add_model_option(parser: Parser) -> None:
    """Add `--model`, and `--config`."""
    parser.add_argument(
        "--model",
        action="append",
        default=[],
        metavar="FILE=CARD[:COMPONENT]",
        help="the card (id, folder or hub repository) that a model file of the workflow is; may be repeated",
    )
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="deploy config, whose plugins may bring node types (default: the one that FASTVIDEO_CONFIG names)",
    )


def examine_file(args: Namespace) -> Compiled:
    """Examine the workflow that a command was given.

    Raises:
        InputError: The file is no workflow, or something that is set is not there.
        PluginError: A plugin fails.
    """
    document = read_document(args.workflow)
    files, values = parse_assignments(args.model), parse_values(args.set)
    nodes = configured_nodes(args.config)
    return examine(document, find_card=installed_cards(), files=files, values=values, nodes=nodes)
