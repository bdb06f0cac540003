"""`fastvideo eval`: make a card's videos of held-out prompts and let the judge of the shapes world look at them."""

from __future__ import annotations

import json
import time
from argparse import Namespace
from typing import TYPE_CHECKING, Any

from fastvideo_core.cli.jobs import check_engine_options, find_card
from fastvideo_core.cli.options import add_quiet_option
from fastvideo_core.cli.parser import Parser, assignment, count, number
from fastvideo_core.cli.progress import Display, Tally, open_display
from fastvideo_core.cli.shell import Shell
from fastvideo_core.cli.table import format_table
from fastvideo_core.errors import ParameterError

if TYPE_CHECKING:
    from fastvideo_core.card import ModelCard
    from fastvideo_core.request.media.output import OutputTarget
    from fastvideo_wan.shapes.evaluation import Row
    from fastvideo_wan.shapes.measure import Judged

__all__ = ["DESCRIPTION", "EPILOG", "add_arguments", "run"]

DESCRIPTION = """\
Make a card's videos of prompts about coloured shapes whose wording was never trained on, and say in how many of them
colour, shape and direction are right, and the object whole, of one size and alone. The judge is image processing that
knows nothing of the model."""
EPILOG = """\
Intervals are 95 % (Wilson). Prompts and noise follow from --evaluation-seed alone, so that figures can be compared
and repeated. The card may be any that makes videos from prompts; it is judged by the shapes' world."""

NUM_PROMPTS = 300
EVALUATION_SEED = 20_000
MAX_SHEET_CLIPS = 60
_PARAMETERS = {
    "num_frames": "frames of the videos",
    "height": "height in pixels",
    "width": "width in pixels",
    "guidance_scale": "how strongly the prompt is followed",
}


def add_arguments(parser: Parser) -> None:
    """Add the command's flags."""
    parser.add_argument("card", metavar="CARD", help="id of a card, a checkpoint folder, or a hub repository")
    parser.add_argument("--json", action="store_true", help="print the table as JSON")
    parser.add_argument(
        "--num-prompts", type=count, default=NUM_PROMPTS, metavar="N", help=f"how many (default: {NUM_PROMPTS})"
    )
    parser.add_argument(
        "--evaluation-seed", type=count, default=EVALUATION_SEED, metavar="N", help=f"default: {EVALUATION_SEED}"
    )
    parser.add_argument(
        "--world", choices=("plain", "wide", "pairs"), default="plain",
        help="plain: 6 colours, 3 shapes, 4 directions; wide: 8, 5 and 8; pairs: so, two objects (default: plain)",
    )  # fmt: skip
    parser.add_argument("-o", "--output", metavar="FILE", help=f".png with the first {MAX_SHEET_CLIPS} videos")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:INDEX (default: auto)")
    parser.add_argument("--precision", help="float32, bfloat16 or float16 (default: the card's)")
    parser.add_argument(
        "--steps", "--num-inference-steps", dest="num_inference_steps", type=number, metavar="N",
        help="denoising steps (default: the card's)",
    )  # fmt: skip
    for name, text in _PARAMETERS.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=number, metavar="N", help=text)
    parser.add_argument(
        "--set", action="append", default=[], type=assignment, metavar="NAME=VALUE", help="any other parameter"
    )
    add_quiet_option(parser)


def run(args: Namespace, shell: Shell) -> int:
    """Check everything, load the card, make and judge the videos, print the table."""
    card = find_card(args.card)
    check_engine_options(card, device=args.device, precision=args.precision)
    parameters = _given(args)
    resolved = _check_parameters(card, parameters)
    target = _check_sheet(args.output)
    with open_display(shell, is_quiet=args.quiet or args.json) as display:
        judged = _judge(card, args, parameters, display)
    if target is not None:
        _save_sheet(judged, target)
    from fastvideo_wan.shapes.evaluation import summarise

    table = summarise([item.scores for item in judged])
    shell.say(_as_json(card, args, resolved, table) if args.json else _as_text(table))
    return 0


def _given(args: Namespace) -> dict[str, Any]:
    names = ("num_inference_steps", *_PARAMETERS)
    given = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    for name, value in args.set:
        if name in given or name == "seed":
            raise ParameterError(
                "not to be set", field=name, value=value, allowed="once, and no seed: every video's own"
            )
        given[name] = value
    return given


def _check_parameters(card: ModelCard, parameters: dict[str, Any]) -> dict[str, Any]:
    """Refuse, before anything is loaded, what the card does not take; return what the videos are made with."""
    from fastvideo_core.request.build import build_request
    from fastvideo_core.runtime.prepare import prepare_request

    request = build_request(card, "a red circle", task=None, image=None, outputs=(), exact=False, parameters=parameters)
    values = prepare_request(card, request).parameters
    return {name: values[name] for name in values if name != "seed"}


def _check_sheet(path: str | None) -> OutputTarget | None:
    if path is None:
        return None
    from fastvideo_core.request.media.output import check_output

    return check_output(path, allowed=(".png",))


def _judge(card: ModelCard, args: Namespace, parameters: dict[str, Any], display: Display) -> list[Judged]:
    display.phase(f"loading {card.model_id}")
    from fastvideo_core.runtime.engine import Engine
    from fastvideo_wan.shapes.evaluation import held_out_cases
    from fastvideo_wan.shapes.measure import MAX_WAITING, make_and_judge
    from fastvideo_wan.shapes.scenes import PAIRS, PLAIN, WIDE

    world = {"plain": PLAIN, "wide": WIDE, "pairs": PAIRS}[args.world]
    cases, tally = held_out_cases(args.num_prompts, args.evaluation_seed, world), Tally(args.num_prompts)

    def note(event: Any) -> None:
        tally.note(event, time.monotonic())
        if tally.num_ended < tally.num_requests:
            display.refresh()

    engine = Engine.open(
        card, device=args.device, precision=args.precision, max_running=MAX_WAITING, on_progress=display.transfer
    )
    with engine:
        display.begin(tally)
        return list(make_and_judge(engine, cases, parameters, on_event=note))


def _save_sheet(judged: list[Judged], target: OutputTarget) -> None:
    import torch

    from fastvideo_core.request.artifacts import ImageArtifact
    from fastvideo_wan.shapes.sheets import from_frames, sheet_image

    image_CHW = sheet_image(torch.stack([from_frames(item.frames) for item in judged[:MAX_SHEET_CLIPS]]))
    ImageArtifact(image_CHW.permute(1, 2, 0).contiguous().numpy()).save(target)


def _as_text(table: dict[str, Row]) -> str:
    rows = [(name, f"{row['right']}/{row['n']}", f"{row['part']:.1%}", _interval(row)) for name, row in table.items()]
    return format_table(rows, header=("attribute", "right", "part", "95 % interval"))


def _interval(row: Row) -> str:
    low, high = row["interval_95"]
    return f"{low:.1%} to {high:.1%}"


def _as_json(card: ModelCard, args: Namespace, parameters: dict[str, Any], table: dict[str, Row]) -> str:
    head = {
        "card": card.model_id, "world": args.world, "num_prompts": args.num_prompts,
        "evaluation_seed": args.evaluation_seed,
    }  # fmt: skip
    return json.dumps({**head, "parameters": parameters, **table}, indent=2)
