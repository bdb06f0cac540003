"""`fastvideo generate`: one prompt, one video or several."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastvideo_core.cli.jobs import (
    Ask,
    Job,
    beside,
    check_engine_options,
    known_formats,
    needed_bytes,
    numbered_outputs,
    prepare_ask,
    usual_suffix,
)
from fastvideo_core.cli.options import (
    add_engine_options,
    add_parameter_options,
    add_plugin_options,
    add_quiet_option,
    given_parameters,
    given_plugins,
)
from fastvideo_core.cli.parser import Parser, count
from fastvideo_core.cli.progress import open_display
from fastvideo_core.cli.reading import read_actions
from fastvideo_core.cli.running import Ended, EngineOptions, run_jobs, save_result
from fastvideo_core.cli.setup import Setup, add_config_option, read_setup
from fastvideo_core.cli.shell import Shell
from fastvideo_core.errors import CancelledError, InputError
from fastvideo_core.request.media.output import check_output, default_output

if TYPE_CHECKING:
    from fastvideo_core.card import ModelCard
    from fastvideo_core.runtime.prepare import PreparedRequest

__all__ = ["DESCRIPTION", "EPILOG", "add_arguments", "run"]

DESCRIPTION = "Make a video, or several, from a prompt. Prints the path of each file that it has written."
EPILOG = """\
Files are never written over. Beside each stands a .json with every parameter and where its value came from; the same
is in the file's own metadata. The seeds of several videos follow each other, so that each can be made again alone."""

MAX_VIDEOS = 1000
MAX_RUNNING = 4


def add_arguments(parser: Parser) -> None:
    """Add the command's flags."""
    parser.add_argument("prompt", metavar="PROMPT", help="what to show")
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="what the task makes, by extension: .mp4, .webm, .gif or .png (video), .png or .jpg (image), .wav, .txt, "
        ".safetensors (latents, actions); default outputs/PROMPT-SEED.mp4, or what the task makes in its place",
    )
    parser.add_argument("-n", "--num-videos", type=count, default=1, metavar="N", help="how many (default: 1)")
    parser.add_argument("--image", metavar="FILE", help="input image, for tasks that take one")
    parser.add_argument("--video", metavar="FILE", help="input video, for tasks that take one")
    parser.add_argument(
        "--actions", metavar="FILE", help="actions, for tasks that take some: .json with a list of lists of numbers"
    )
    parser.add_argument("--task", help="task of the card (default: the card's, or one that takes the image)")
    add_engine_options(parser)
    add_config_option(parser)
    add_parameter_options(parser)
    add_plugin_options(parser)
    add_quiet_option(parser)


def run(args: Namespace, shell: Shell) -> int:
    """Check everything, load the model, make the videos.

    Returns:
        The exit code: the greatest of all videos'.
    """
    setup = read_setup(args)
    setup.tell_failures(shell)
    jobs = _plan(args, setup)
    card = jobs[0].prepared.card
    options = EngineOptions(
        setup.device(card, args.device),
        setup.precision(card, args.precision),
        max_running=min(len(jobs), setup.max_running(MAX_RUNNING)),
    )
    with open_display(shell, is_quiet=args.quiet) as display:
        codes = [_finish(ended, shell) for ended in run_jobs(jobs, options, display, shell, setup=setup)]
    return shell.interrupted() if shell.is_interrupted else max(codes)


def _finish(ended: Ended, shell: Shell) -> int:
    """Save a result, or tell why there is none; return the exit code that this would be."""
    if isinstance(ended.error, CancelledError) and shell.is_interrupted:
        return shell.interrupt_code
    try:
        saved = save_result(ended)
    except Exception as error:  # noqa: BLE001 - other videos are still being made
        return shell.report(error)
    for path in saved.paths:
        shell.say(str(path))
    return 0


def _plan(args: Namespace, setup: Setup) -> list[Job]:
    """Check all that can be checked without weights, what costs least first."""
    if args.num_videos > MAX_VIDEOS:
        raise InputError(
            "too many", field="num_videos", value=args.num_videos, allowed=f"1 to {MAX_VIDEOS}", nearest=MAX_VIDEOS
        )
    given = given_parameters(args)
    paths = _named_outputs(args)
    card = setup.find_card(args.card)
    check_engine_options(card, device=args.device, precision=args.precision)
    ask = Ask(args.prompt, args.task, args.image, _inputs(args), args.exact, given, given_plugins(args))
    suffix = paths[0].suffix.lower() if paths else usual_suffix(card, ask, setup.suffix)
    requests = _prepare_all(card, ask, suffix, args.num_videos, setup)
    space = sum(needed_bytes(prepared, suffix) for prepared, _ in requests)
    targets = [check_output(path, allowed=(suffix,), needed_bytes=space) for path in paths] or [
        default_output(
            args.prompt,
            prepared.parameters.get("seed", 0),
            folder=setup.folder,
            suffix=suffix,
            needed_bytes=space,
        )
        for prepared, _ in requests
    ]
    jobs = [Job(*request, target) for request, target in zip(requests, targets, strict=True)]
    for job in jobs:
        _check_beside(job)
    return jobs


def _inputs(args: Namespace) -> dict[str, Any]:
    """Return the inputs that are files, besides the image; of actions their content."""
    inputs = {} if args.video is None else {"video": args.video}
    return inputs if args.actions is None else {**inputs, "actions": read_actions(args.actions)}


def _check_beside(job: Job) -> None:
    """Refuse names that are taken for what is written beside the result."""
    outputs = job.prepared.card.task(job.prepared.request.task).outputs
    for name in job.prepared.request.outputs.artifacts:
        if name != job.artifact and job.target.on_conflict == "error":
            path = beside(job.target.path, name, outputs[name])
            check_output(path, allowed=(path.suffix,))


def _named_outputs(args: Namespace) -> list[Path]:
    """Return the paths that `-o` stands for, checked; none without it."""
    if args.output is None:
        return []
    formats = known_formats()
    path = check_output(args.output, allowed=formats).path
    return [check_output(one, allowed=formats).path for one in numbered_outputs(path, args.num_videos)]


def _prepare_all(
    card: ModelCard, ask: Ask, suffix: str, num_videos: int, setup: Setup
) -> list[tuple[PreparedRequest, str]]:
    """Check a request for each video; the seeds follow the first one's, given or drawn."""
    first = prepare_ask(card, ask, suffix, setup=setup)
    seed = first[0].parameters.get("seed")
    others = [
        ask if seed is None else replace(ask, parameters={**ask.parameters, "seed": seed + index})
        for index in range(1, num_videos)
    ]
    return [first, *(prepare_ask(card, other, suffix, setup=setup) for other in others)]
