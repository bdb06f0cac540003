"""`fastvideo batch`: the requests of a JSON Lines file, run together on one model."""

from __future__ import annotations

import json
import time
from argparse import Namespace
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from fastvideo_core.cli.jobs import (
    Job,
    check_engine_options,
    known_formats,
    needed_bytes,
    prepare_ask,
    usual_suffix,
)
from fastvideo_core.cli.lines import Line, read_lines
from fastvideo_core.cli.options import add_engine_options, add_quiet_option, is_config_key
from fastvideo_core.cli.parser import Parser, count
from fastvideo_core.cli.progress import open_display
from fastvideo_core.cli.records import Record, exit_code, make_summary
from fastvideo_core.cli.running import Ended, EngineOptions, run_jobs, save_result
from fastvideo_core.cli.setup import Setup, add_assignments, add_config_option, has_config, read_setup
from fastvideo_core.cli.shell import Shell
from fastvideo_core.errors import FastVideoError, InputError, OutputError, ResourceError
from fastvideo_core.request.media.output import OutputTarget, check_output
from fastvideo_core.request.media.publish import save_bytes

if TYPE_CHECKING:
    from fastvideo_core.card import ModelCard
    from fastvideo_core.cli.batch_state import BatchState
    from fastvideo_core.runtime.durable import StateStore

__all__ = ["DESCRIPTION", "EPILOG", "add_arguments", "run"]

DESCRIPTION = """\
Run the requests of a JSON Lines file together on one model. Each line is an object with `prompt`, and, where wanted,
`id` (else the line's number), `task`, `image`, `video`, `actions` (a .json file, or lists of numbers), `exact`,
`latency_class` (interactive, standard or batch), `deadline_s` and any parameter of the card, in snake_case:

    {"id": "circle", "prompt": "a red circle moving right", "seed": 7, "num_inference_steps": 12}
"""
EPILOG = """\
Writes DIR/ID.FORMAT and DIR/ID.json for each request, and DIR/summary.json. Without --format, FORMAT is mp4, or what a
line's task makes: txt for an answer, png for an image. Nothing that exists is written over. A bad line fails alone; the
summary says which and why. Ctrl-C once cancels at the next step boundary and keeps what is done.

With --state-dir, a batch that was interrupted in whatever way goes on with --resume, each request from its last
checkpoint, and the summary is written when all have ended.

The exit code is 0 if every line became a file, 1 if a request failed while it ran, and 2 if none did but a line was
bad."""

SUMMARY = "summary.json"
DEFAULT_RUNNING = 4


def add_arguments(parser: Parser) -> None:
    """Add the command's flags."""
    parser.add_argument("file", metavar="FILE", nargs="?", help="JSON Lines, one request a line; - is stdin")
    parser.add_argument("-o", "--output", metavar="DIR", help="folder for the results")
    parser.add_argument(
        "--format", help="mp4, webm, gif, png, txt or safetensors (default: mp4, or what a line's task makes)"
    )
    parser.add_argument(
        "--max-running", type=count, metavar="N", help=f"requests in progress at a time (default: {DEFAULT_RUNNING})"
    )
    group = parser.add_argument_group("interruption")
    group.add_argument(
        "--state-dir", metavar="DIR", help="keep accepted requests and their progress there, whatever happens"
    )
    group.add_argument(
        "--resume", metavar="DIR", help="go on with the batch of a state directory; no other flags needed"
    )
    add_engine_options(parser)
    add_config_option(parser)
    add_assignments(parser)
    add_quiet_option(parser)


def run(args: Namespace, shell: Shell) -> int:
    """Check all lines, run the good ones, write the summary; or go on with a batch that was interrupted."""
    _check_flags(args)
    if args.resume is not None:
        from fastvideo_core.cli.batch_state import open_store

        with open_store(args.resume, shell) as store:
            return _run(_resume(args, store, shell), args, shell)
    batch, lines = _plan_batch(args, shell)
    if args.state_dir is None or not batch.jobs:
        return _run(batch, args, shell)
    from fastvideo_core.cli.batch_state import begin, card_name, open_store

    with open_store(args.state_dir, shell) as store:
        description = {
            "card": card_name(args.card),
            "output": str(batch.folder.absolute()),
            "format": batch.suffix,
            **asdict(batch.options),
        }
        pairs = list(zip(lines, batch.records, strict=True))
        batch.state = begin(store, batch.card, pairs, [job for job, _ in batch.jobs], description, shell)
        return _run(batch, args, shell)


@dataclass(slots=True)
class _Batch:
    """What is going to run.

    Attributes:
        card: The card.
        folder: Where results go.
        suffix: Their extension; empty if each has the usual one of its task.
        options: How the model is loaded.
        records: All lines.
        jobs: Lines that have yet to begin, and their records.
        state: The state directory, if there is one.
        setup: What the deploy config says.
        started_at_s: When it began, on the clock of `time.monotonic`.
    """

    card: ModelCard
    folder: Path
    suffix: str
    options: EngineOptions
    records: list[Record]
    jobs: list[tuple[Job, Record]]
    state: BatchState | None = None
    setup: Setup = field(default_factory=Setup)
    started_at_s: float = 0.0

    @property
    def duration_s(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self.started_at_s if self.state is None else self.state.description.duration_s

    def record_of(self, job: Job) -> Record:
        """Return what becomes of a job. Bad lines may repeat its id; they never have a job."""
        begun = next((record for one, record in self.jobs if one is job), None)
        if begun is not None:
            return begun
        assert self.state is not None, "only a state directory gives further jobs"
        return self.state.record(job.request_id)


def _check_flags(args: Namespace) -> None:
    """Refuse flags that contradict each other.

    Raises:
        InputError: Which one.
    """
    if args.resume is None:
        missing = [name for name, value in (("FILE", args.file), ("-o/--output", args.output)) if value is None]
        if missing:
            raise InputError(
                f"the following arguments are required: {', '.join(missing)} (fastvideo batch --help explains)"
            )
        for name, value in args.set:
            if not is_config_key(name):
                raise InputError(
                    "lines have the parameters of their requests; here are keys of the deploy config", field=name,
                    value=value, allowed="keys such as limits.max_running or costs_file",
                )  # fmt: skip
        if args.state_dir is not None and has_config(args):
            raise InputError(
                "a batch that another process may go on with takes no deploy config", field="state_dir",
                value=args.state_dir, allowed="no --config, no --set, and no FASTVIDEO_CONFIG or FASTVIDEO__ variables",
            )  # fmt: skip
        return
    given = {name: getattr(args, name) for name in ("file", "output", "state_dir", "format", "card", "precision")}
    given |= {"device": None if args.device == "auto" else args.device, "exact": args.exact or None}
    given |= {"config": args.config, "set": [name for name, _ in args.set] or None}
    for name, value in given.items():
        if value is not None:
            raise InputError(
                "a batch goes on as it began", field=name, value=value,
                allowed="--resume DIR with no other flags than --max-running and --quiet",
            )  # fmt: skip


def _plan_batch(args: Namespace, shell: Shell) -> tuple[_Batch, list[Line]]:
    """Read and check everything that can be checked without weights."""
    started_at_s = time.monotonic()
    folder, suffix = _folder(args.output), "" if args.format is None else _suffix(args.format)
    check_output(folder / SUMMARY, allowed=(".json",))
    _check_apart(folder, args.state_dir)
    setup = read_setup(args)
    setup.tell_failures(shell)
    lines = read_lines(args.file, is_exact=args.exact)
    card = setup.find_card(args.card)
    check_engine_options(card, device=args.device, precision=args.precision)
    options = EngineOptions(
        setup.device(card, args.device),
        setup.precision(card, args.precision),
        args.max_running or setup.max_running(DEFAULT_RUNNING),
    )
    records = [Record(line.number, line.request_id) for line in lines]
    jobs = _plan(zip(lines, records, strict=True), card, folder, suffix, setup)
    for record in records:
        _tell(record, shell)
    return _Batch(card, folder, suffix, options, records, jobs, setup=setup, started_at_s=started_at_s), lines


def _resume(args: Namespace, store: StateStore, shell: Shell) -> _Batch:
    """Return what is left of a batch that was interrupted."""
    from fastvideo_core.cli.batch_state import resume

    state, records, waiting = resume(store, args.max_running, shell)
    description = state.description
    folder, suffix = Path(description.output), description.format
    by_id = {record.request_id: record for record in records if not record.has_ended}
    jobs = _plan([(line, by_id[line.request_id]) for line in waiting], state.card, folder, suffix, Setup())
    for line in waiting:
        _tell(by_id[line.request_id], shell)
        state.ended(by_id[line.request_id])
    return _Batch(state.card, folder, suffix, description.options, records, jobs, state)


def _run(batch: _Batch, args: Namespace, shell: Shell) -> int:
    """Run the jobs and write the summary."""
    jobs = [job for job, _ in batch.jobs]
    try:
        with open_display(shell, is_quiet=args.quiet) as display:
            for ended in run_jobs(jobs, batch.options, display, shell, batch.state, batch.setup):
                record = batch.record_of(ended.job)
                _finish(ended, record, shell, is_stored=batch.state is not None)
                if batch.state is not None:
                    batch.state.ended(record)
    except BaseException:
        # What has ended until then is kept, and told; a model that could not be loaded has ended nothing.
        if batch.state is None and any(record.status == "done" for record in batch.records):
            _write_summary(batch)
        raise
    if batch.state is not None and not all(record.has_ended for record in batch.records):
        count = sum(not record.has_ended for record in batch.records)
        shell.tell(f"{count} unfinished; to go on: fastvideo batch --resume {batch.state.store.folder}")
    else:
        shell.say(str(_write_summary(batch)))
    return shell.interrupted() if shell.is_interrupted else exit_code(batch.records)


def _write_summary(batch: _Batch) -> Path:
    """Write the summary, and forget what it sums up."""
    path = batch.folder / SUMMARY
    content = make_summary(batch.card.model_id, batch.records, batch.duration_s)
    # A process that was killed right after this may have written it already.
    if batch.state is None or not _is_summary_of(path, batch.records):
        save_bytes(check_output(path, allowed=(".json",)), content, provenance=None, facts={})
    if batch.state is not None:
        batch.state.store.clear()
    return path


def _is_summary_of(path: Path, records: Sequence[Record]) -> bool:
    try:
        requests = json.loads(path.read_bytes())["requests"]
    except (OSError, ValueError, LookupError, TypeError):
        return False
    return bool(requests == [record.to_json() for record in records])


def _check_apart(folder: Path, state_dir: str | None) -> None:
    """Refuse one folder for results and states.

    Raises:
        OutputError: They are the same.
    """
    if state_dir is not None and Path(state_dir).resolve() == folder.resolve():
        raise OutputError(
            "the folder of the results", field="state_dir", value=state_dir, allowed="a folder of its own"
        )


def _folder(name: str) -> Path:
    """Return the folder of a name; `Path("")` would be the current one, which nobody has asked for."""
    if not name.strip():
        raise OutputError("not a folder's name", field="output", value=name, allowed="a folder", nearest=".")
    return Path(name)


def _suffix(name: str) -> str:
    """Return the extension of a format's name."""
    formats = [suffix.removeprefix(".") for suffix in known_formats()]
    chosen = name.removeprefix(".").lower()
    if chosen not in formats:
        near = get_close_matches(chosen, formats, n=1, cutoff=0.4)
        raise OutputError(
            "not a known format", field="format", value=name, allowed=", ".join(formats), nearest=next(iter(near), None)
        )
    return f".{chosen}"


def _plan(
    lines: Iterable[tuple[Line, Record]], card: ModelCard, folder: Path, suffix: str, setup: Setup
) -> list[tuple[Job, Record]]:
    """Check every line against the card and its output; what is wrong goes into its record."""
    jobs = []
    for line, record in lines:
        try:
            jobs.append((_plan_line(line, card, folder, suffix, setup), record))
        except FastVideoError as error:
            record.fail(error)
    return jobs


def _plan_line(line: Line, card: ModelCard, folder: Path, suffix: str, setup: Setup) -> Job:
    if line.ask is None:
        assert line.error is not None
        raise line.error
    suffix = suffix or usual_suffix(card, line.ask, setup.suffix)
    path = folder / f"{line.request_id}{suffix}"
    sidecar = path.with_suffix(".json")
    if sidecar.exists():
        raise OutputTarget(path, field="id").taken(sidecar)
    check_output(path, allowed=(suffix,), field="id")
    prepared, artifact = prepare_ask(card, line.ask, suffix, setup=setup)
    target = check_output(path, allowed=(suffix,), needed_bytes=needed_bytes(prepared, suffix), field="id")
    return Job(prepared, artifact, target)


def _finish(ended: Ended, record: Record, shell: Shell, *, is_stored: bool) -> None:
    """Save a result and note it, or note why there is none."""
    try:
        saved = save_result(ended)
    except Exception as error:  # noqa: BLE001 - one line's error, of whatever kind, ends that line alone
        record.fail(error)
        # For want of space nothing that is stored is lost.
        record.is_kept = is_stored and ended.result is not None and isinstance(error, ResourceError)
        _tell(record, shell)
        return
    assert ended.result is not None
    record.status = "done"
    record.files = tuple(path.name for path in saved.paths)
    record.seed = ended.result.seed
    record.duration_s = round(ended.result.duration_s, 3)
    for path in saved.paths:
        shell.say(str(path))


def _tell(record: Record, shell: Shell) -> None:
    if record.error is not None and record.status != "cancelled":
        own_id = "" if record.request_id == str(record.line) else f" ({record.request_id})"
        shell.report(record.error, where=f"line {record.line}{own_id}: ")
