"""`fastvideo stream`: a stream that takes new prompts while it runs, to a file or a pipe."""

from __future__ import annotations

import sys
import threading
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

from fastvideo_core.cli.jobs import check_engine_options
from fastvideo_core.cli.options import add_engine_options, add_parameter_options, add_quiet_option, given_parameters
from fastvideo_core.cli.parser import Parser, count
from fastvideo_core.cli.setup import Setup, add_config_option, read_setup
from fastvideo_core.cli.shell import Shell
from fastvideo_core.defaults import DEFAULT_STREAM_CARD
from fastvideo_core.errors import FastVideoError
from fastvideo_core.request.build import build_request
from fastvideo_core.request.media.output import check_output, default_output

if TYPE_CHECKING:
    from fastvideo_core.card import ModelCard
    from fastvideo_core.runtime.engine import Engine
    from fastvideo_core.runtime.prepare import PreparedRequest
    from fastvideo_core.runtime.sessions import Session

__all__ = ["DESCRIPTION", "EPILOG", "add_arguments", "run"]

DESCRIPTION = (
    "Make a stream from a prompt, chunk by chunk, until Ctrl-C or for --chunks. Each line on stdin is a new prompt, "
    "which the stream follows from the next chunk on."
)
EPILOG = """\
What is written is fragmented MP4, which players take while it grows: `-o - | ffplay -` shows it at once. A chunk is
written as soon as it is decoded. On stderr each chunk comes with its latency, from its first step to its last frame,
and its lag, by how much it came too late for somebody who watches from the first chunk on."""

PIPE = "-"


def add_arguments(parser: Parser) -> None:
    """Add the command's flags."""
    parser.add_argument("prompt", metavar="PROMPT", help="what to show first")
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="an .mp4 file, or - for stdout (default: outputs/PROMPT-SEED.mp4)"
    )
    parser.add_argument("-n", "--chunks", type=count, metavar="N", help="end after so many chunks (default: endless)")
    parser.add_argument(
        "--paced", action="store_true", help="make no more than somebody needs who watches while it is made"
    )
    parser.add_argument("--image", metavar="FILE", help="input image, for tasks that take one")
    parser.add_argument("--task", help="task of the card (default: the first that makes streams)")
    add_engine_options(parser, default_card=DEFAULT_STREAM_CARD)
    add_config_option(parser)
    add_parameter_options(parser)
    add_quiet_option(parser)


def run(args: Namespace, shell: Shell) -> int:
    """Check everything, load the model, write the stream.

    Returns:
        The exit code.
    """
    setup = read_setup(args)
    setup.tell_failures(shell)
    card = setup.find_card(args.card, default=DEFAULT_STREAM_CARD)
    check_engine_options(card, device=args.device, precision=args.precision)
    prepared = _prepare(args, card, setup)
    path = _output(args, prepared, setup)
    with _engine(args, prepared, setup) as engine, _sink(path) as sink:
        _stream(args, engine, prepared, sink, shell)
    if path is not None:
        shell.say(str(path))
    return shell.interrupted() if shell.is_interrupted else 0


def _prepare(args: Namespace, card: ModelCard, setup: Setup) -> PreparedRequest:
    """Check what can be checked without weights."""
    from fastvideo_core.runtime.prepare import prepare_request
    from fastvideo_core.runtime.sessions.host import stream_task

    task = args.task or stream_task(card, has_image=args.image is not None)
    request = build_request(
        card, args.prompt, task=task, image=args.image, exact=args.exact, parameters=given_parameters(args),
        latency_class="interactive",
    )  # fmt: skip
    return prepare_request(card, request, deploy=setup.parameters(card, task), extensions=setup.extensions(card))


def _output(args: Namespace, prepared: PreparedRequest, setup: Setup) -> Path | None:
    """Return where the stream goes; None for stdout.

    Raises:
        OutputError: It cannot be written there.
    """
    if args.output == PIPE:
        return None
    if args.output is not None:
        return check_output(args.output, allowed=(".mp4",)).path
    return default_output(args.prompt, prepared.parameters.get("seed", 0), folder=setup.folder).path


def _engine(args: Namespace, prepared: PreparedRequest, setup: Setup) -> Engine:
    from fastvideo_core.runtime.engine import Engine

    card = prepared.card
    return Engine.open(
        card,
        device=setup.device(card, args.device),
        precision=setup.precision(card, args.precision),
        tasks=[prepared.request.task],
        options=setup.runtime_options(),
        extensions=setup.extensions(card),
    )


@contextmanager
def _sink(path: Path | None) -> Iterator[IO[bytes]]:
    if path is None:
        yield sys.stdout.buffer
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as file:
        yield file


def _stream(args: Namespace, engine: Engine, prepared: PreparedRequest, sink: IO[bytes], shell: Shell) -> None:
    """Write chunks until the session ends, or nobody reads any more."""
    from fastvideo_core.runtime.sessions import SessionOptions

    options = SessionOptions(num_chunks=args.chunks, is_paced=args.paced)
    with engine.session_prepared(prepared, options) as session:
        threading.Thread(target=_read_prompts, args=(session, shell), daemon=True).start()
        # Not where the signal comes in: the thread that it interrupts may hold what closing waits for.
        with shell.cancels(lambda: threading.Thread(target=session.close).start()):
            try:
                _write_events(session, sink, shell, is_quiet=args.quiet)
            except BrokenPipeError:
                return  # whoever has watched has seen enough
    if session.error is not None:
        raise session.error


def _write_events(session: Session, sink: IO[bytes], shell: Shell, *, is_quiet: bool) -> None:
    from fastvideo_core.request.media.fragments import FragmentEncoder

    encoder: FragmentEncoder | None = None
    num_frames = 0
    for event in session.events():
        if event.type == "media.init":
            encoder = FragmentEncoder(height=event.height, width=event.width, fps=event.fps)
        elif event.type == "media.chunk" and encoder is not None and not event.is_preview:
            fragment = encoder.encode(event.data.numpy())
            sink.write(fragment if num_frames else encoder.init + fragment)
            sink.flush()
            num_frames += len(event.data)
        elif event.type == "session.chunk" and not is_quiet:
            shell.tell(
                f"chunk {event.chunk}: {num_frames} frames, latency {event.latency_s:.3f} s, lag {event.lag_s:.3f} s"
            )
        elif event.type in ("session.refused", "request.warning"):
            shell.tell(f"warning: {event.message}")


def _read_prompts(session: Session, shell: Shell) -> None:
    """Push each line of stdin, until there is none any more, or the session has ended."""
    for line in sys.stdin:
        text = line.strip()
        if not text:
            continue
        try:
            session.push_text(text)
        except FastVideoError as error:
            if session.state == "terminate":
                return
            shell.tell(f"warning: {error}")
