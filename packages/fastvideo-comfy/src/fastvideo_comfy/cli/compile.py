"""`fastvideo comfy compile`: a program out of a workflow, as JSON."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from fastvideo_comfy.cli.common import add_workflow_arguments, examine_file
from fastvideo_comfy.product import make_product, parse_parameters, write_new
from fastvideo_core.cli.parser import Parser
from fastvideo_core.cli.shell import Shell

__all__ = ["DESCRIPTION", "EPILOG", "add_arguments", "run"]

DESCRIPTION = "Compile a ComfyUI workflow to a program: typed nodes, one request for each output."
EPILOG = """\
Without -o the program is printed. With -o it is saved as a product: with its version, the parameters that --parameter
makes public and their schema. `fastvideo comfy run` runs it."""


def add_arguments(parser: Parser) -> None:
    """Add the command's flags."""
    add_workflow_arguments(parser)
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="file to save it to; not written over")
    parser.add_argument("--name", help="name of the product (default: the output file's, without .json)")
    parser.add_argument("--version", default="1", help="version of the product (default: 1)")
    parser.add_argument(
        "--parameter",
        action="append",
        default=[],
        metavar="NAME=NODE.INPUT",
        help="an input that callers of the product may set, under this name; may be repeated",
    )


def run(args: Namespace, shell: Shell) -> int:
    """Compile, and print or save the program."""
    compiled = examine_file(args)
    if compiled.program is None:
        shell.tell(compiled.report.table(is_full=False))
        return 2
    if args.output is None:
        shell.say(compiled.program.model_dump_json(indent=1))
        return 0
    product = make_product(
        compiled, name=args.name or args.output.stem, version=args.version, models=tuple(args.model),
        parameters=parse_parameters(args.parameter),
    )  # fmt: skip
    write_new(args.output, product.model_dump_json(indent=1))
    shell.say(str(args.output))
    return 0
