"""`fastvideo batch`: the requests of a JSON Lines file, run together on one model."""

from __future__ import annotations

import json
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from fastvideo_core.cli.jobs import (
    Job,
    check_engine_options,
    find_card,
    known_formats,
    needed_bytes,
    prepare_ask,
)
from fastvideo_core.cli.lines import Line, read_lines
from fastvideo_core.cli.options import add_engine_options, add_quiet_option
from fastvideo_core.cli.parser import Parser, count
from fastvideo_core.cli.progress import open_display
from fastvideo_core.cli.running import Ended, EngineOptions, run_jobs, save_result
from fastvideo_core.cli.shell import Shell
from fastvideo_core.errors import CancelledError, FastVideoError, InputError, OutputError, describe_failure
from fastvideo_core.request.media.output import OutputTarget, check_output
from fastvideo_core.request.media.publish import save_bytes

if TYPE_CHECKING:
    from fastvideo_core.card import ModelCard

__all__ = ["DESCRIPTION", "EPILOG", "add_arguments", "run"]

DESCRIPTION = """\
Run the requests of a JSON Lines file together on one model. Each line is an object with `prompt`, and, where wanted,
`id` (else the line's number), `task`, `image`, `exact` and any parameter of the card, in snake_case:

    {"id": "circle", "prompt": "a red circle moving right", "seed": 7, "num_inference_steps": 12}
"""
EPILOG = """\
Writes DIR/ID.FORMAT and DIR/ID.json for each request, and DIR/summary.json. Nothing that exists is written over. A bad
line fails alone; the summary says which and why. Ctrl-C once cancels at the next step boundary and keeps what is done.

The exit code is 0 if every line became a file, 1 if a request failed while it ran, and 2 if none did but a line was
bad."""

SUMMARY = "summary.json"

Status = Literal["done", "refused", "failed", "cancelled"]


@dataclass(slots=True)
class Record:
    """What became of a line.

    Attributes:
        line: Its number.
        request_id: Its id.
        status: How it ended; a line that has not ended counts as cancelled.
        error: Why there is no file.
        files: What was written, as names within the folder.
        seed: The seed that ran.
        duration_s: Seconds from acceptance to the last artifact.
    """

    line: int
    request_id: str
    status: Status = "cancelled"
    error: Exception | None = None
    files: tuple[str, ...] = ()
    seed: int | None = None
    duration_s: float | None = None

    def fail(self, error: Exception) -> None:
        """Note why there is no file."""
        self.error = error
        if isinstance(error, InputError):
            self.status = "refused"
        elif not isinstance(error, CancelledError):
            self.status = "failed"

    def to_json(self) -> dict[str, Any]:
        """Return the summary's entry."""
        entry: dict[str, Any] = {"line": self.line, "id": self.request_id, "status": self.status}
        if self.status == "done":
            return {**entry, "files": list(self.files), "seed": self.seed, "duration_s": self.duration_s}
        if self.error is not None:
            entry["error"] = {"type": type(self.error).__name__, "message": describe_failure(self.error)}
            if isinstance(self.error, InputError):
                entry["error"]["field"] = self.error.field
        return entry


def add_arguments(parser: Parser) -> None:
    """Add the command's flags."""
    parser.add_argument("file", metavar="FILE", help="JSON Lines, one request a line; - is stdin")
    parser.add_argument("-o", "--output", metavar="DIR", required=True, help="folder for the results")
    parser.add_argument("--format", default="mp4", help="mp4, webm, gif, png or safetensors (default: mp4)")
    parser.add_argument(
        "--max-running", type=count, default=4, metavar="N", help="requests in progress at a time (default: 4)"
    )
    add_engine_options(parser)
    add_quiet_option(parser)


def run(args: Namespace, shell: Shell) -> int:
    """Check all lines, run the good ones, write the summary."""
    started_at = time.monotonic()
    folder, suffix = _folder(args.output), _suffix(args.format)
    summary = check_output(folder / SUMMARY, allowed=(".json",))
    lines = read_lines(args.file, is_exact=args.exact)
    card = find_card(args.card)
    check_engine_options(card, device=args.device, precision=args.precision)
    records = [Record(line.number, line.request_id) for line in lines]
    jobs = _plan(lines, records, card, folder, suffix)
    for record in records:
        _tell(record, shell)

    def write_summary() -> None:
        content = _summary(card, records, time.monotonic() - started_at)
        save_bytes(summary, content, provenance=None, facts={})

    options = EngineOptions(args.device, args.precision, args.max_running)
    try:
        with open_display(shell, is_quiet=args.quiet) as display:
            for ended in run_jobs([job for job, _ in jobs], options, display, shell):
                record = next(record for job, record in jobs if job is ended.job)
                _finish(ended, record, shell)
    except BaseException:
        # What has ended until then is kept, and told; a model that could not be loaded has ended nothing.
        if any(record.status == "done" for record in records):
            write_summary()
        raise
    write_summary()
    shell.say(str(summary.path))
    return shell.interrupted() if shell.is_interrupted else _exit_code(records)


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
    lines: Sequence[Line], records: Sequence[Record], card: ModelCard, folder: Path, suffix: str
) -> list[tuple[Job, Record]]:
    """Check every line against the card and its output; what is wrong goes into its record."""
    jobs = []
    for line, record in zip(lines, records, strict=True):
        try:
            jobs.append((_plan_line(line, card, folder, suffix), record))
        except FastVideoError as error:
            record.fail(error)
    return jobs


def _plan_line(line: Line, card: ModelCard, folder: Path, suffix: str) -> Job:
    if line.ask is None:
        assert line.error is not None
        raise line.error
    path = folder / f"{line.request_id}{suffix}"
    sidecar = path.with_suffix(".json")
    if sidecar.exists():
        raise OutputTarget(path, field="id").taken(sidecar)
    check_output(path, allowed=(suffix,), field="id")
    prepared, artifact = prepare_ask(card, line.ask, suffix)
    target = check_output(path, allowed=(suffix,), needed_bytes=needed_bytes(prepared, suffix), field="id")
    return Job(prepared, artifact, target)


def _finish(ended: Ended, record: Record, shell: Shell) -> None:
    """Save a result and note it, or note why there is none."""
    try:
        saved = save_result(ended)
    except Exception as error:  # noqa: BLE001 - one line's error, of whatever kind, ends that line alone
        record.fail(error)
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


def _summary(card: ModelCard, records: Sequence[Record], duration_s: float) -> bytes:
    counts = Counter(record.status for record in records)
    content = {
        "schema_version": 1,
        "card": card.model_id,
        "duration_s": round(duration_s, 3),
        "counts": {status: counts[status] for status in get_args(Status)},
        "requests": [record.to_json() for record in records],
    }
    return (json.dumps(content, ensure_ascii=False, indent=2) + "\n").encode()


def _exit_code(records: Sequence[Record]) -> int:
    statuses = {record.status for record in records}
    if statuses & {"failed", "cancelled"}:
        return 1
    return 2 if "refused" in statuses else 0
