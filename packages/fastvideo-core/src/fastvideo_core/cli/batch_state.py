"""A batch in a state directory: what is written down about it, and how another process goes on with it."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastvideo_core.cli.jobs import DEFAULT_SUFFIX, Ask, Job, find_card, needed_bytes, suffix_for
from fastvideo_core.cli.records import Record
from fastvideo_core.cli.running import EngineOptions
from fastvideo_core.cli.shell import Shell
from fastvideo_core.errors import FastVideoError, OutputError, StateError, describe_failure
from fastvideo_core.request.media.output import check_output, frame_path, sidecar_path
from fastvideo_core.request.media.staging import remove_stale

if TYPE_CHECKING:
    from fastvideo_core.card import ModelCard
    from fastvideo_core.cli.lines import Line
    from fastvideo_core.runtime.durable import RefusedJob, SavedJob, StateStore
    from fastvideo_core.runtime.instance import ModelInstance
    from fastvideo_core.runtime.prepare import PreparedRequest

__all__ = ["BatchState", "Description", "begin", "card_name", "open_store", "resume"]


@dataclass(frozen=True, slots=True)
class Description:
    """What is written down about a batch before its first request runs.

    Attributes:
        card: Name under which the card is found again.
        output: The folder of the results.
        format: Extension of the results; empty if each has the usual one of its task.
        device: Device, or "auto".
        precision: Number format; None takes the card's.
        max_running: Most requests in progress at a time.
        tasks: Tasks whose components are loaded: the same ones, so that files tell of the same weights.
        began_at_s: Wall-clock time, seconds since the epoch.
        processes: Processes that have worked on it.
        lines: Every line: its number, its id, what it asks for, and what became of it if it was refused.
    """

    card: str
    output: str
    format: str
    device: str
    precision: str | None
    max_running: int
    tasks: tuple[str, ...]
    began_at_s: float
    processes: tuple[int, ...]
    lines: tuple[Mapping[str, Any], ...]

    @classmethod
    def read(cls, store: StateStore) -> Description:
        """Return what is written down in a state directory.

        Raises:
            StateError: Nothing, or something else.
        """
        content = store.run
        if content is None:
            what = f"{len(store.unfinished)} requests, but no batch" if store.unfinished else "no unfinished batch"
            raise StateError(f"{store.folder} holds {what} that could go on")
        try:
            lists = {name: tuple(content[name]) for name in ("tasks", "processes", "lines")}
            return cls(**{**content, **lists})
        except (TypeError, LookupError) as error:
            raise StateError(f"{store.folder} holds no batch that this version knows: {error}") from error

    @property
    def options(self) -> EngineOptions:
        """How the model is loaded."""
        return EngineOptions(self.device, self.precision, self.max_running)

    @property
    def duration_s(self) -> float:
        """Seconds since it began, pauses included."""
        return max(0.0, time.time() - self.began_at_s)


class BatchState:
    """The state directory of one batch.

    Args:
        store: The directory.
        card: The card.
        description: What is to be, or was, written down.
        records: Lines that may go on, by id.
        shell: Told what cannot go on.
    """

    def __init__(
        self, store: StateStore, card: ModelCard, description: Description, records: Mapping[str, Record], shell: Shell
    ) -> None:
        self.store = store
        self.card = card
        self.description = description
        self._records = records
        self._shell = shell

    @property
    def tasks(self) -> tuple[str, ...]:
        """Tasks of all requests."""
        return self.description.tasks

    @property
    def has_saved(self) -> bool:
        """Whether there may be requests to take up."""
        return bool(self.store.unfinished)

    def take_up(self, instance: ModelInstance) -> list[Job]:
        """Write down what is to be known, and return the requests that another process has begun."""
        saved = self.store.load(instance)
        jobs = [job for one in saved if (job := self._take_up(one)) is not None]
        processes = dict.fromkeys((*self.description.processes, os.getpid()))
        self.description = replace(self.description, processes=tuple(processes))
        self.store.describe(asdict(self.description))
        return jobs

    def record(self, request_id: str) -> Record:
        """Return the record of a request that goes on."""
        return self._records[request_id]

    def ended(self, record: Record) -> None:
        """Write down what became of a request, which is then forgotten.

        A request that was cancelled, or whose result could not be saved for want of space, stays.
        """
        if not record.has_ended:
            return
        try:
            if self.store.holds(record.request_id):
                self.store.finish(record.request_id, record.to_json())
            else:
                self.store.record(record.request_id, record.to_json())
        except FastVideoError as error:
            record.is_kept = True
            self._shell.tell(f"warning: {describe_failure(error)}")

    def _take_up(self, saved: SavedJob | RefusedJob) -> Job | None:
        record = self._records.get(saved.job_id)
        if record is None:
            self._shell.tell(
                f"warning: job {saved.job_id} in {self.store.folder} belongs to no line, and is left alone"
            )
            return None
        try:
            return self._resume(saved, record)
        except FastVideoError as error:
            record.fail(error)
            record.is_kept = self.store.holds(saved.job_id) or not getattr(saved, "is_aside", True)
            self._shell.report(error, where=f"line {record.line}: ")
            self.ended(record)
            return None

    def _resume(self, saved: SavedJob | RefusedJob, record: Record) -> Job | None:
        from fastvideo_core.runtime.durable import RefusedJob

        if isinstance(saved, RefusedJob):
            raise saved.error
        request = saved.prepared.request
        suffix = self.description.format or suffix_for(self.card.task(request.task), DEFAULT_SUFFIX)
        path = Path(self.description.output) / f"{saved.job_id}{suffix}"
        files = _reclaim(path, saved.prepared)
        if files:
            record.status, record.files, record.seed = "done", files, saved.prepared.parameters.get("seed")
            self.ended(record)
            return None
        needed = needed_bytes(saved.prepared, suffix)
        target = check_output(path, allowed=(suffix,), needed_bytes=needed, field="id")
        return Job(saved.prepared, saved.note["artifact"], target, saved)


def open_store(folder: str, shell: Shell) -> StateStore:
    """Open a state directory; what cannot be written to it later is told.

    Raises:
        StateError: Another process uses it, or it is something else.
        OutputError: No such name, or it cannot be written.
        ResourceError: The disk is full.
    """
    if not folder.strip():
        raise OutputError("not a folder's name", field="state_dir", value=folder, allowed="a folder")
    from fastvideo_core.runtime.durable import StateStore

    return StateStore(folder, on_problem=lambda error: shell.tell(f"warning: {describe_failure(error)}"))


def begin(
    store: StateStore,
    card: ModelCard,
    lines: Sequence[tuple[Line, Record]],
    jobs: Sequence[Job],
    description: Mapping[str, Any],
    shell: Shell,
) -> BatchState:
    """Return the state of a new batch; nothing is written down before its model is loaded.

    Raises:
        StateError: The directory holds another one that has not ended.
    """
    if store.run is not None or store.unfinished:
        raise StateError(
            f"{store.folder} holds a batch that has not ended; go on with `fastvideo batch --resume {store.folder}`, "
            "or choose another folder"
        )
    store.clear()
    entries = tuple(
        {
            "line": record.line,
            "id": record.request_id,
            "ask": None if line.ask is None else _plain(line.ask),
            "record": record.to_json() if record.has_ended else None,
        }
        for line, record in lines
    )
    tasks = tuple(dict.fromkeys(job.prepared.request.task for job in jobs))
    written = Description(**description, tasks=tasks, began_at_s=time.time(), processes=(), lines=entries)
    return BatchState(store, card, written, {record.request_id: record for _, record in lines}, shell)


def resume(store: StateStore, max_running: int | None, shell: Shell) -> tuple[BatchState, list[Record], list[Line]]:
    """Return the state of a batch that another process has begun, all its lines, and those that have yet to begin.

    Raises:
        StateError: The directory holds none.
        UnknownCardError: Its card is not there any more.
    """
    from fastvideo_core.cli.lines import Line

    description = Description.read(store)
    if max_running is not None:
        description = replace(description, max_running=max_running)
    card = find_card(description.card)
    for process in description.processes:
        remove_stale(Path(description.output), process)
    outcomes, unfinished = store.outcomes, set(store.unfinished)
    records: list[Record] = []
    may_go_on: dict[str, Record] = {}
    waiting: list[Line] = []
    for entry in description.lines:
        told = entry["record"] or (outcomes.get(entry["id"]) if entry["ask"] is not None else None)
        record = Record(entry["line"], entry["id"]) if told is None else Record.from_json(told)
        records.append(record)
        if told is None:
            may_go_on[record.request_id] = record
            if record.request_id not in unfinished:
                waiting.append(Line(record.line, record.request_id, Ask(**entry["ask"])))
    return BatchState(store, card, description, may_go_on, shell), records, waiting


def card_name(name: str | None) -> str:
    """Return a name under which a card is found again from any folder."""
    from fastvideo_core.defaults import DEFAULT_CARD

    chosen = DEFAULT_CARD if name is None else name
    return str(Path(chosen).absolute()) if Path(chosen).is_dir() else chosen


def _plain(ask: Ask) -> dict[str, Any]:
    """Return an ask as plain data, which means the same from any folder."""
    image = None if ask.image is None else str(Path(ask.image).absolute())
    inputs = dict(ask.inputs)
    if "video" in inputs:
        inputs["video"] = str(Path(inputs["video"]).absolute())
    return {**asdict(ask), "image": image, "inputs": inputs, "parameters": dict(ask.parameters)}


def _reclaim(path: Path, prepared: PreparedRequest) -> tuple[str, ...]:
    """Return the names of a request's files, if a process that was killed had written all of them.

    If it had written only some of them, these are removed. A file that is not the request's is left alone.
    """
    num_frames = int(prepared.parameters.get("num_frames", 0))
    candidates = [path, *(frame_path(path, index) for index in range(num_frames))]
    media = [one for one in candidates if one.exists() and _is_of(one, prepared)]
    sidecar = sidecar_path(path, allow_long=False)
    # The sidecar is published last.
    if media and sidecar.exists() and _is_of(sidecar, prepared):
        return tuple(one.name for one in media)
    for one in media:
        one.unlink()
    return ()


def _is_of(path: Path, prepared: PreparedRequest) -> bool:
    """Whether a file says that it was made by a request, with the same parameters."""
    from fastvideo_core.request.media.embedded import read_provenance

    try:
        provenance = read_provenance(path)
    except FastVideoError:
        return False
    if provenance is None:
        return False
    request, card = prepared.request, prepared.card
    texts = {name: value for name, value in prepared.inputs.items() if isinstance(value, str)}
    expected = {**texts, **prepared.parameters, "exact": request.exact}
    values = {name: record.value for name, record in provenance.parameters.items()}
    whose = (provenance.request_id, provenance.task, provenance.card_id, provenance.card_version)
    is_request = whose == (request.request_id, request.task, card.model_id, card.version)
    return is_request and all(name in values and values[name] == value for name, value in expected.items())
