"""`fastvideo chat`: questions to a card that reasons, one or a conversation, the answer shown as it is written."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from fastvideo_core.cli.jobs import check_engine_options, find_card
from fastvideo_core.cli.parser import Parser, assignment, count, number
from fastvideo_core.cli.shell import Shell
from fastvideo_core.errors import CancelledError, InputError

if TYPE_CHECKING:
    from fastvideo_core.card import ModelCard
    from fastvideo_core.request.base import Request
    from fastvideo_core.runtime.engine import Engine

__all__ = ["DESCRIPTION", "EPILOG", "add_arguments", "run"]

DESCRIPTION = """\
Ask a card that reasons. With a PROMPT, the answer is printed and that is all; without one, each line of the input is a
question, and the answers before it are remembered."""
EPILOG = "The image or the video is shown with the first question."

TASK = "reasoning_text"
_NUMBERS = {
    "max_tokens": "most tokens of an answer",
    "temperature": "spread of what is drawn; 0 takes the likeliest token (default)",
    "top_p": "probability of the tokens that are drawn from",
    "top_k": "tokens that are drawn from",
    "seed": "seed of what is drawn",
}


def add_arguments(parser: Parser) -> None:
    """Add the command's flags."""
    parser.add_argument("prompt", metavar="PROMPT", nargs="?", help="a question; without one, lines are read")
    parser.add_argument("--card", metavar="ID|FOLDER|HUB_REPO", required=True, help="a card that reasons")
    parser.add_argument("--image", metavar="FILE", help="an image to look at")
    parser.add_argument("--video", metavar="FILE", help="a video to look at")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:INDEX (default: auto)")
    parser.add_argument("--precision", help="float32, bfloat16 or float16 (default: the card's)")
    for name, text in _NUMBERS.items():
        kind = count if name == "max_tokens" else number
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, metavar="N", help=text)
    parser.add_argument("--stop", action="append", default=[], metavar="TEXT", help="ends an answer; may be repeated")
    parser.add_argument(
        "--set", action="append", default=[], type=assignment, metavar="NAME=VALUE", help="any other parameter"
    )


def run(args: Namespace, shell: Shell) -> int:
    """Check the question, load the model, print the answers."""
    card = find_card(args.card)
    check_engine_options(card, device=args.device, precision=args.precision)
    if args.image is not None and args.video is not None:
        raise InputError(
            "a conversation shows one thing", field="video", value=args.video, allowed="an image or a video"
        )
    parameters = _parameters(args)
    # A first question is needed to check all else before anything is loaded.
    questions = iter([args.prompt]) if args.prompt is not None else _lines()
    first = next(questions, None)
    if first is None:
        return 0
    _check(card, _request(card, first, [], args, parameters), args)
    from fastvideo_core.runtime.engine import Engine

    history: list[dict[str, Any]] = []
    with Engine.open(card, device=args.device, precision=args.precision, tasks=(TASK,)) as engine:
        question: str | None = first
        while question is not None:
            code, answer = _answer(engine, _request(card, question, history, args, parameters), shell)
            if code:
                return code
            history += [_turn("user", question, args if not history else None), _turn("assistant", answer, None)]
            question = next(questions, None)
    return 0


def _lines() -> Iterator[str]:
    return (line.rstrip("\n") for line in sys.stdin if line.strip())


def _parameters(args: Namespace) -> dict[str, Any]:
    given = {name: value for name in _NUMBERS if (value := getattr(args, name)) is not None}
    return {**given, **({"stop": args.stop} if args.stop else {}), **dict(args.set)}


def _request(
    card: ModelCard, question: str, history: list[dict[str, Any]], args: Namespace, parameters: dict[str, Any]
) -> Request:
    from fastvideo_core.request.build import build_request

    inputs = {"history": json.dumps(history)} if history else {}
    if args.video is not None:
        inputs["video"] = args.video
    return build_request(card, question, task=TASK, image=args.image, inputs=inputs, parameters=parameters)


def _check(card: ModelCard, request: Request, args: Namespace) -> None:
    """Refuse what can be refused before weights are there."""
    from fastvideo_core.runtime.host import load_host
    from fastvideo_core.runtime.prepare import prepare_request

    prepared = prepare_request(card, request)
    load_host(card, tasks=(TASK,), device=args.device, precision=args.precision).check(prepared)


def _turn(role: str, text: str, shown: Namespace | None) -> dict[str, Any]:
    parts = [{"type": "text", "text": text}]
    if shown is not None and (shown.image or shown.video):
        parts.insert(0, {"type": "image" if shown.image else "video"})
    return {"role": role, "content": parts}


def _answer(engine: Engine, request: Request, shell: Shell) -> tuple[int, str]:
    """Show an answer as it is written; return the exit code and the answer."""
    handle = engine.submit(request)
    with shell.cancels(lambda: handle.cancel("interrupted")):
        for event in handle.events():
            if event.type == "text.delta":
                shell.say_part(event.text)
    shell.say("")
    try:
        return 0, handle.result().artifacts["text"].text  # type: ignore[attr-defined]
    except CancelledError:
        return shell.interrupted(), ""
