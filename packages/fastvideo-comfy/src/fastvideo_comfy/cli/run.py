"""`fastvideo comfy run`: run a workflow, or a product made of one."""

from __future__ import annotations

import time
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastvideo_comfy.assign import parse_value
from fastvideo_comfy.cli.common import add_workflow_arguments, examine_file
from fastvideo_comfy.compiler import Compiled, installed_cards
from fastvideo_comfy.fold.brought import configured_nodes
from fastvideo_comfy.folders import ModelFolders, read_extra_paths
from fastvideo_comfy.product import call_product, load_product
from fastvideo_core.cli.options import add_quiet_option
from fastvideo_core.cli.parser import Parser
from fastvideo_core.cli.progress import Display, Tally, open_display
from fastvideo_core.cli.shell import Shell
from fastvideo_core.errors import CancelledError, ParameterError

if TYPE_CHECKING:
    from fastvideo_comfy.program import OutputRequest
    from fastvideo_comfy.running import Done, Planned

__all__ = ["DESCRIPTION", "EPILOG", "add_arguments", "run"]

DESCRIPTION = "Run a ComfyUI workflow: one file for each output. Prints the path of each file that it has written."
EPILOG = """\
FILE may also be a product that `fastvideo comfy compile -o` has saved; --set then takes its public parameters,
NAME=VALUE. Without --models or --extra-model-paths the cards' own weights are taken, whatever number format the
workflow's files have; with them the very files that the workflow names."""


def add_arguments(parser: Parser) -> None:
    """Add the command's flags."""
    add_workflow_arguments(parser)
    parser.add_argument("-o", "--output", type=Path, default=Path("outputs"), metavar="DIR", help="output folder")
    parser.add_argument(
        "--input", type=Path, default=Path("input"), metavar="DIR", help="folder of the workflow's images"
    )
    parser.add_argument("--models", type=Path, metavar="DIR", help="ComfyUI's models folder")
    parser.add_argument(
        "--extra-model-paths", type=Path, action="append", default=[], metavar="FILE", help="further folders, in YAML"
    )
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:INDEX (default: auto)")
    parser.add_argument("--precision", help="float32, bfloat16 or float16 (default: the card's)")
    add_quiet_option(parser)


def run(args: Namespace, shell: Shell) -> int:
    """Compile, check everything, run, save."""
    compiled = _compile(args)
    if compiled.program is None:
        shell.tell(compiled.report.table(is_full=False))
        return 2
    from fastvideo_comfy.running import RunSettings, plan_program, run_plan

    with open_display(shell, is_quiet=args.quiet) as display:
        settings = RunSettings(args.input, _folders(args), args.device, args.precision, display.phase)
        plan = plan_program(compiled.program, settings, installed_cards())
        _check_outputs(plan, args.output)
        tally = Tally(len(plan))
        note = _noter(tally, display)
        codes = [
            _finish(done, args.output, shell) for done in run_plan(plan, settings, on_event=note, cancels=shell.cancels)
        ]
    return shell.interrupted() if shell.is_interrupted else max(codes, default=1)


def _compile(args: Namespace) -> Compiled:
    product = load_product(args.workflow)
    if product is None:
        return examine_file(args)
    return call_product(
        product, _parameters(args.set), find_card=installed_cards(), models=tuple(args.model),
        nodes=configured_nodes(args.config),
    )  # fmt: skip


def _parameters(texts: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or name in found:
            raise ParameterError("not a parameter", field="set", value=text, allowed="NAME=VALUE, each name once")
        found[name] = parse_value(value)
    return found


def _folders(args: Namespace) -> ModelFolders | None:
    if args.models is None and not args.extra_model_paths:
        return None
    folders = ModelFolders() if args.models is None else ModelFolders.below(args.models)
    for path in args.extra_model_paths:
        folders = folders.joined(read_extra_paths(path))
    return folders


def _noter(tally: Tally, display: Display) -> Any:
    is_begun = False

    def note(event: Any) -> None:
        nonlocal is_begun
        if not is_begun:
            display.begin(tally)
            is_begun = True
        tally.note(event, time.monotonic())
        if tally.num_ended < tally.num_requests:
            display.refresh()

    return note


def _target(output: OutputRequest, folder: Path) -> Any:
    """Return where an output goes: the next free name of its prefix, below the output folder."""
    from fastvideo_core.request.media.output import OutputTarget

    return OutputTarget(folder / f"{output.file.prefix}.{output.file.format}", on_conflict="next")


def _check_outputs(plan: list[Planned], folder: Path) -> None:
    from fastvideo_core.request.media.output import check_output

    for planned in plan:
        file = planned.output.file
        probe = folder / f"{file.prefix}-{planned.prepared.request.request_id}.{file.format}"
        check_output(probe, allowed=(f".{file.format}",), root=folder)


def _finish(done: Done, folder: Path, shell: Shell) -> int:
    """Save a result, or tell why there is none; return the exit code that this would be."""
    if done.result is None:
        assert done.error is not None
        if isinstance(done.error, CancelledError) and shell.is_interrupted:
            return shell.interrupt_code
        return shell.report(done.error, where=f"node {done.planned.output.output}: ")
    try:
        saved = done.result.video.save(_target(done.planned.output, folder))
    except Exception as error:  # noqa: BLE001 - other outputs are still being made
        return shell.report(error)
    for path in saved.paths:
        shell.say(str(path))
    return 0
