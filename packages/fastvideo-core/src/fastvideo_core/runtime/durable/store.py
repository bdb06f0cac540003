"""The store: which requests have been accepted and have not ended, and how far each has come.

    FOLDER/
        lock            held by the process that uses the folder
        store.json      says what the folder is
        run.json        what the front end wrote down about all of its jobs
        jobs/           one folder a job, see `job`
        outcomes/       how jobs have ended, as far as the front end wants to know
        refused/        folders and files that could not be read

A name that begins with a dot is a thing half done; it is removed when the folder is opened next.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from fastvideo_core.card import ModelCard
from fastvideo_core.errors import FastVideoError, InputError, ResourceError, StateError, describe_failure
from fastvideo_core.request.media.faults import writing
from fastvideo_core.runtime.durable.base import Identity, NodeState, RefusedJob, SavedJob
from fastvideo_core.runtime.durable.checkpoint import (
    Snapshot,
    TensorLedger,
    capture,
    load_checkpoint,
    write_checkpoint,
)
from fastvideo_core.runtime.durable.disk import STALE_PREFIX, Disk
from fastvideo_core.runtime.durable.job import folder_name, parse_folder_name, read_job, write_job
from fastvideo_core.runtime.durable.lock import FolderLock
from fastvideo_core.runtime.durable.policy import CheckpointAccount, CheckpointPolicy, CheckpointTotals
from fastvideo_core.runtime.durable.sealed import seal, unseal
from fastvideo_core.runtime.durable.writer import BackgroundWriter
from fastvideo_core.runtime.instance import ModelInstance
from fastvideo_core.runtime.prepare import PreparedRequest

__all__ = ["StateStore"]

_LOG = logging.getLogger(__name__)
_STORE_FORMAT = "fastvideo-store/1"
_RUN_FORMAT = "fastvideo-run/1"
_OUTCOME_FORMAT = "fastvideo-outcome/1"
_FOLDERS = ("jobs", "outcomes", "refused")
_MAX_WRITING = 2
_ACCEPT_FACTOR = 8.0
"""How many times as long as to accept a job the first checkpoint of it is taken to last: it brings as many files to the
disk, larger ones, beside busy steps."""
_PAUSE_S = 60.0
"""Seconds for which no checkpoint is tried after the disk has refused one."""


@dataclass(slots=True)
class _Job:
    """An accepted job.

    Attributes:
        folder: Its folder.
        card: Its card.
        ledger: What is on the disk of it.
        account: What has been spent on it.
        num_writing: Checkpoints of it that are under way.
        is_broken: Whether its states cannot be stored, so that it is not tried again.
        is_ending: Whether it is being removed.
    """

    folder: Path
    card: ModelCard
    ledger: TensorLedger
    account: CheckpointAccount
    num_writing: int = 0
    is_broken: bool = False
    is_ending: bool = False

    @property
    def can_write(self) -> bool:
        """Whether a checkpoint may be begun: beside the one that is being written, one more waits at most."""
        return self.num_writing < _MAX_WRITING and not (self.is_broken or self.is_ending)


class StateStore:
    """Keeps accepted requests in a folder; one process at a time. All methods may be called from any thread.

    Args:
        folder: The folder; made with its parents if missing.
        policy: When a checkpoint is worth writing.
        on_problem: Told, on any thread, of checkpoints that could not be written; by default they are logged.
        disk: Where to write.

    Raises:
        StateError: Another process uses the folder, or it holds something else.
        OutputError: It cannot be written.
        ResourceError: The disk is full.
    """

    def __init__(
        self,
        folder: Path | str,
        *,
        policy: CheckpointPolicy | None = None,
        on_problem: Callable[[FastVideoError], None] | None = None,
        disk: Disk | None = None,
    ) -> None:
        self.folder = Path(folder).absolute()
        self._policy = policy or CheckpointPolicy()
        self._on_problem = on_problem or (lambda error: _LOG.warning("%s", error))
        self._disk = disk or Disk()
        self._jobs: dict[str, _Job] = {}
        self._outcomes: dict[str, Mapping[str, Any]] = {}
        self._unloaded: set[str] = set()
        self._folder_lock = threading.RLock()  # for what takes as long as the disk does
        self._changed = threading.Condition()  # for the jobs' flags
        self._writer = BackgroundWriter()
        self._paused_until_s = 0.0
        self._recent_write_s = 0.0
        self._compute_s, self._written_s, self._num_written = 0.0, 0.0, 0
        with self._writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock: FolderLock | None = FolderLock(self.folder)
            try:
                self._prepare_folder()
            except BaseException:
                self.close()
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Finish what is being written and let go of the folder; what is in it stays. Again, it does nothing."""
        self._writer.close()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    @property
    def unfinished(self) -> tuple[str, ...]:
        """Ids of the jobs in the folder, as their folders are named; whether they can be read shows in `load`."""
        return tuple(job_id for _, job_id in self._numbered("jobs").values())

    def holds(self, job_id: str) -> bool:
        """Tell whether a job has been accepted, or taken up again, and has not ended."""
        return job_id in self._jobs

    @property
    def totals(self) -> CheckpointTotals:
        """What has been spent on checkpoints, and on what they save."""
        return CheckpointTotals(self._compute_s, self._written_s, self._num_written)

    def accept(
        self, prepared: PreparedRequest, instance: ModelInstance, *, note: Mapping[str, Any] | None = None
    ) -> None:
        """Take a request into the folder; it is there for good when this returns.

        Args:
            prepared: The request, which is not changed any more.
            instance: The model that it is going to run on.
            note: What the front end wants to know when the request is taken up again; plain data.

        Raises:
            InputError: There is a job of this id.
            StateError: Something in it cannot be stored.
            ResourceError: The disk is full. Other jobs are not harmed.
        """
        job_id = prepared.request.request_id
        with self._folder_lock:
            if job_id in self._jobs or job_id in self._outcomes or job_id in self._unloaded:
                raise InputError("the state directory has a job of this id", field="request_id", value=job_id)
            folder = self.folder / "jobs" / folder_name(self._next_number, job_id)
            self._next_number += 1
            started_at = time.perf_counter()
            with self._writing(folder):
                write_job(self._disk, folder, prepared, Identity.of(instance, prepared.request.task), note or {})
            accept_s = time.perf_counter() - started_at
            self._jobs[job_id] = _Job(folder, prepared.card, TensorLedger(), self._new_account(accept_s))

    def is_due(self, job_id: str, compute_s: float) -> bool:
        """Note compute that went into a job, and tell whether its checkpoint is to be written now.

        Args:
            job_id: The job; nothing is ever due of one that is not held.
            compute_s: Device-seconds of the steps that were committed since the last call.
        """
        job = self._jobs.get(job_id)
        if job is None:
            return False
        job.account.worked(compute_s)
        self._compute_s += compute_s
        can_write = job.can_write and not job.num_writing and time.monotonic() >= self._paused_until_s
        return can_write and self._policy.should_write(job.account)

    def checkpoint(self, job_id: str, nodes: Mapping[str, NodeState]) -> bool:
        """Write down how far a job has come: its nodes now, its tensors in the background.

        Never raises for what goes wrong with the disk or a state: the job goes on, and the checkpoint before stays.

        Args:
            job_id: The job.
            nodes: Its nodes; those that have not started are left out.

        Returns:
            Whether it is going to be written; not if the job is not held, or two of it are under way.
        """
        with self._changed:
            job = self._jobs.get(job_id)
            if job is None or not job.can_write:
                return False
            started_at = time.perf_counter()
            try:
                # What the one under way is going to leave on the disk is not known yet.
                snapshot = capture(nodes, job.card, job.ledger, is_incremental=not job.num_writing)
            except FastVideoError as error:
                job.is_broken = True
                self._on_problem(StateError(f"job {job_id} cannot be saved, and starts anew if interrupted: {error}"))
                return False
            job.num_writing += 1
        capture_s, saved_s = time.perf_counter() - started_at, job.account.at_risk_s
        self._writer.submit(lambda: self._write(job_id, job, snapshot, capture_s, saved_s))
        return True

    def finish(self, job_id: str, outcome: Mapping[str, Any] | None = None) -> None:
        """Remove a job: whatever came of it is safe elsewhere. Does nothing for a job that is not held.

        Args:
            job_id: The job.
            outcome: What the front end wants to know of it later, kept before the job is removed; plain data.

        Raises:
            ResourceError: The outcome cannot be written; the job is still held.
        """
        with self._folder_lock:
            job = self._jobs.get(job_id)
            if job is None:
                return
            with self._changed:
                job.is_ending = True
                self._changed.wait_for(lambda: not job.num_writing)
            try:
                with self._writing(job.folder):
                    if outcome is not None:
                        self._write_outcome(job.folder.name, job_id, outcome)
                    self._disk.discard(job.folder)
            except FastVideoError:
                job.is_ending = False
                raise
            del self._jobs[job_id]

    def record(self, job_id: str, outcome: Mapping[str, Any]) -> None:
        """Keep the outcome of something that is no job in the folder, for instance of a refused one.

        Raises:
            ResourceError: It cannot be written.
        """
        with self._folder_lock, self._writing(self.folder):
            name = folder_name(self._next_number, job_id)
            self._next_number += 1
            self._write_outcome(name, job_id, outcome)

    @property
    def outcomes(self) -> dict[str, Mapping[str, Any]]:
        """How jobs have ended, by id, since the front end began or last called `clear`."""
        return dict(self._outcomes)

    @property
    def run(self) -> dict[str, Any] | None:
        """What the front end wrote down about all its jobs; None if nothing.

        Raises:
            StateError: It is corrupt or of another version.
        """
        path = self.folder / "run.json"
        try:
            return unseal(_RUN_FORMAT, path.read_bytes())
        except FileNotFoundError:
            return None
        except StateError as error:
            raise StateError(f"{path} {error}") from error

    def describe(self, content: Mapping[str, Any]) -> None:
        """Write down what is to be known about all jobs; replaces what was there.

        Raises:
            ResourceError: The disk is full.
        """
        path = self.folder / "run.json"
        with self._writing(path):
            self._disk.replace(path, [seal(_RUN_FORMAT, content)])

    def clear(self) -> None:
        """Forget the outcomes and what was written down about all jobs; the jobs themselves stay."""
        with self._folder_lock, self._writing(self.folder):
            self._disk.remove(self.folder / "run.json")
            for path in sorted((self.folder / "outcomes").iterdir()):
                self._disk.remove(path)
            self._disk.sync_folder(self.folder)
            self._outcomes.clear()

    def load(self, instance: ModelInstance) -> list[SavedJob | RefusedJob]:
        """Take up the jobs that the folder holds, in the order in which they were accepted.

        Files that are corrupt, cut short, or of another job or version are put aside, and the job is refused. A job
        that began on another model than this is refused too, and stays where it is.

        Args:
            instance: The model to go on with.
        """
        with self._folder_lock:
            held = {job.folder.name for job in self._jobs.values()}
            entries = self._entries("jobs")
            return [self._load(entry, instance) for entry in entries if entry.name not in held]

    def reload(self, job_id: str, instance: ModelInstance) -> SavedJob | RefusedJob | None:
        """Return a job that is held as it was at its last checkpoint, for when what came after it is lost.

        Args:
            job_id: The job.
            instance: The model to go on with.

        Returns:
            The job; None if it is not held. A refused one is still held, and its files are left where they are.
        """
        with self._folder_lock:
            job = self._jobs.get(job_id)
            if job is None:
                return None
            with self._changed:
                self._changed.wait_for(lambda: not job.num_writing)
            try:
                file = read_job(job.folder, job_id)
                file.identity.check(Identity.of(instance, file.task))
                nodes, ledger = load_checkpoint(self._disk, job.folder, job_id, instance.card, instance.device)
                prepared = file.request(job.folder, instance.card)
            except StateError as error:
                return RefusedJob(job_id, StateError(f"job {job_id}: {error}"), None, is_aside=False)
            with self._changed:
                job.ledger = ledger
            return SavedJob(job_id, prepared, nodes, file.note)

    def flush(self) -> None:
        """Wait until every checkpoint that was begun is on the disk."""
        self._writer.flush()

    def _prepare_folder(self) -> None:
        marker = self.folder / "store.json"
        if not marker.exists():
            if foreign := [path.name for path in self._entries("") if path.name not in ("lock", *_FOLDERS)]:
                raise StateError(
                    f"{self.folder} is no state directory: it holds {foreign[0]!r}; choose an empty or a new folder"
                )
            for name in _FOLDERS:
                self._disk.make_folder(self.folder / name)
            self._disk.replace(marker, [seal(_STORE_FORMAT, {})])
        try:
            unseal(_STORE_FORMAT, marker.read_bytes())
        except StateError as error:
            raise StateError(f"{marker} {error}") from error
        for place in (self.folder, *(self.folder / name for name in _FOLDERS)):
            self._disk.make_folder(place)
            for path in place.iterdir():
                if path.name.startswith(STALE_PREFIX):
                    self._disk.sweep(path)
        numbers = [number for name in _FOLDERS for number, _ in self._numbered(name).values()]
        self._next_number = max(numbers, default=0) + 1
        self._load_outcomes()
        self._unloaded = set(self.unfinished)

    def _load_outcomes(self) -> None:
        """Read the outcomes, and finish removing the jobs that have one."""
        jobs = {path.name: path for path in self._entries("jobs")}
        for path in self._entries("outcomes"):
            try:
                content = unseal(_OUTCOME_FORMAT, path.read_bytes())
                job_id, outcome = content["job_id"], content["outcome"]
            except (StateError, LookupError) as error:
                self._put_aside(path)
                self._on_problem(StateError(f"{path} {describe_failure(error)}; it was put aside"))
                continue
            self._outcomes[job_id] = outcome
            if path.stem in jobs:
                self._disk.discard(jobs[path.stem])

    def _load(self, folder: Path, instance: ModelInstance) -> SavedJob | RefusedJob:
        number_and_id = parse_folder_name(folder.name)
        if number_and_id is None:
            return self._refuse(folder, folder.name, StateError(f"{folder} is no job"), None)
        _, job_id = number_and_id
        self._unloaded.discard(job_id)
        try:
            job = read_job(folder, job_id)
        except StateError as error:
            return self._refuse(folder, job_id, error, None)
        try:
            job.identity.check(Identity.of(instance, job.task))
        except StateError as error:
            return RefusedJob(job_id, StateError(f"job {job_id} {error}"), job.note, is_aside=False)
        try:
            prepared = job.request(folder, instance.card)
            nodes, ledger = load_checkpoint(self._disk, folder, job_id, instance.card, instance.device)
        except StateError as error:
            return self._refuse(folder, job_id, error, job.note)
        self._jobs[job_id] = _Job(folder, instance.card, ledger, self._new_account())
        return SavedJob(job_id, prepared, nodes, job.note)

    def _new_account(self, accept_s: float = 0.0) -> CheckpointAccount:
        """Return the account of a new job: its first checkpoint is taken to cost more than it probably will."""
        usual = CheckpointAccount()
        first_write_s = max(usual.first_write_s, 2 * self._recent_write_s, _ACCEPT_FACTOR * accept_s)
        return CheckpointAccount(first_write_s=first_write_s)

    def _refuse(self, folder: Path, job_id: str, error: StateError, note: Mapping[str, Any] | None) -> RefusedJob:
        try:
            told = f"job {job_id}: {error}; what there is of it was put into {self._put_aside(folder)}"
        except FastVideoError as trouble:
            return RefusedJob(job_id, StateError(f"job {job_id}: {error}; {trouble}"), note, is_aside=False)
        return RefusedJob(job_id, StateError(told), note, is_aside=True)

    def _put_aside(self, path: Path) -> Path:
        target = self.folder / "refused" / path.name
        count = 1
        while target.exists():
            count += 1
            target = target.with_name(f"{path.name}.{count}")
        with self._writing(target):
            self._disk.rename(path, target)
        return target

    def _write(self, job_id: str, job: _Job, snapshot: Snapshot, capture_s: float, saved_s: float) -> None:
        """Bring a snapshot to the disk; on the writer's thread."""
        started_at = time.perf_counter()
        try:
            with self._writing(job.folder):
                write_checkpoint(self._disk, job.folder, job_id, snapshot, job.ledger)
            self._num_written += 1
        except (ResourceError, InputError) as error:
            saved_s = 0.0
            self._paused_until_s = time.monotonic() + _PAUSE_S
            self._on_problem(
                ResourceError(f"{error}; job {job_id} goes on, and checkpoints are tried again in {_PAUSE_S:.0f} s")
            )
        except Exception as error:  # noqa: BLE001 - whatever is wrong with one job's state must not end the thread
            saved_s = 0.0
            job.is_broken = True
            self._on_problem(
                StateError(f"job {job_id} is not saved any more, and goes on from its last checkpoint if interrupted: "
                           f"{describe_failure(error)}")
            )  # fmt: skip
        finally:
            seconds = capture_s + time.perf_counter() - started_at
            with self._changed:
                job.account.wrote(seconds, saved_s=saved_s)
                self._recent_write_s = seconds
                self._written_s += seconds
                job.num_writing -= 1
                self._changed.notify_all()

    def _write_outcome(self, name: str, job_id: str, outcome: Mapping[str, Any]) -> None:
        path = self.folder / "outcomes" / f"{name}.json"
        self._disk.replace(path, [seal(_OUTCOME_FORMAT, {"job_id": job_id, "outcome": dict(outcome)})])
        self._outcomes[job_id] = dict(outcome)

    def _entries(self, name: str) -> list[Path]:
        return sorted(path for path in (self.folder / name).iterdir() if not path.name.startswith(STALE_PREFIX))

    def _numbered(self, name: str) -> dict[str, tuple[int, str]]:
        parsed = {path.name: parse_folder_name(path.name) for path in self._entries(name)}
        return {entry: found for entry, found in parsed.items() if found is not None}

    @contextmanager
    def _writing(self, path: Path) -> Iterator[None]:
        with writing(path, field="state_dir"):
            yield
