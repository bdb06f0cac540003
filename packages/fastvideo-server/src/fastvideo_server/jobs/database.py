"""The table of jobs: what is written is there after a power cut. One SQL for every database."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Literal, Protocol

from fastvideo_server.jobs.records import JobRecord, JobStatus

__all__ = ["SCHEMA", "SCHEMA_VERSION", "Cursor", "JobDatabase", "Transaction"]

SCHEMA_VERSION = 1
SCHEMA = (
    """CREATE TABLE jobs (
    number {number},
    job_id TEXT NOT NULL UNIQUE,
    owner TEXT NOT NULL,
    status TEXT NOT NULL,
    idempotency_key TEXT,
    record TEXT NOT NULL,
    events TEXT
)""",
    "CREATE UNIQUE INDEX jobs_by_key ON jobs (owner, idempotency_key) WHERE idempotency_key IS NOT NULL",
    "CREATE INDEX jobs_by_owner ON jobs (owner, number)",
    "CREATE INDEX jobs_by_status ON jobs (status)",
)
"""Statements that make the table; `number` stands for the type of a column that counts up."""

_PAGE = "SELECT record FROM jobs WHERE owner = ? AND status IN ('queued', 'completed', 'failed') AND number"
_PAGES = {"asc": f"{_PAGE} > ? ORDER BY number ASC LIMIT ?", "desc": f"{_PAGE} < ? ORDER BY number DESC LIMIT ?"}
_BEYOND = 2**63 - 1


class Cursor(Protocol):
    """What a statement has found."""

    def fetchone(self) -> Any:
        """Return the next row, or None."""
        ...

    def fetchall(self) -> list[Any]:
        """Return the rows that are left."""
        ...


class Transaction(Protocol):
    """Statements that take effect together or not at all."""

    def execute(self, statement: str, values: Sequence[Any] = ()) -> Cursor:
        """Run a statement; a value stands in the place of each question mark."""
        ...


class JobDatabase(ABC):
    """Keeps jobs. All methods may be called from any thread; each is a transaction, durable when it returns.

    All of them raise `ResourceError` where the database cannot be used.
    """

    @abstractmethod
    def close(self) -> None:
        """Let go of it."""

    @abstractmethod
    def _transaction(self) -> AbstractContextManager[Transaction]:
        """Return a transaction, which ends with the context."""

    def check(self) -> None:
        """Raise unless something can be written.

        Raises:
            ResourceError: It cannot.
        """
        with self._transaction() as connection:
            connection.execute("DELETE FROM jobs WHERE number < 0")

    def insert(self, record: JobRecord) -> None:
        """Take a job in.

        Raises:
            StateError: There is a job of its id, or of its owner with its idempotency key.
        """
        with self._transaction() as connection:
            connection.execute(
                "INSERT INTO jobs (job_id, owner, status, idempotency_key, record) VALUES (?, ?, ?, ?, ?)",
                (record.job_id, record.owner, record.status, record.idempotency_key, _text(record)),
            )

    def by_key(self, owner: str, idempotency_key: str) -> JobRecord | None:
        """Return the job that an owner's idempotency key has made, or None."""
        with self._transaction() as connection:
            found = connection.execute(
                "SELECT record FROM jobs WHERE owner = ? AND idempotency_key = ?", (owner, idempotency_key)
            ).fetchone()
        return None if found is None else _record(found[0])

    def update(self, record: JobRecord, *, events: str | None = None) -> None:
        """Put a job in the place of what was known of it, its events too if they are given; a deleted one stays so."""
        with self._transaction() as connection:
            connection.execute(
                "UPDATE jobs SET status = ?, record = ?, events = COALESCE(?, events) "
                "WHERE job_id = ? AND status != 'deleted'",
                (record.status, _text(record), events, record.job_id),
            )

    def mark_deleted(self, record: JobRecord) -> None:
        """Let a job be gone for everybody; what its idempotency key needs stays."""
        gone = replace(record, status="deleted", prompt="", parameters={}, warnings=())
        with self._transaction() as connection:
            connection.execute(
                "UPDATE jobs SET status = ?, record = ?, events = NULL WHERE job_id = ?",
                (gone.status, _text(gone), record.job_id),
            )

    def remove(self, job_id: str) -> None:
        """Forget a job altogether."""
        with self._transaction() as connection:
            connection.execute("DELETE FROM jobs WHERE job_id = ?", (job_id,))

    def get(self, job_id: str) -> JobRecord | None:
        """Return a job in whatever state, or None if there is none of this id."""
        with self._transaction() as connection:
            found = connection.execute("SELECT record FROM jobs WHERE job_id = ?", (job_id,)).fetchone()
        return None if found is None else _record(found[0])

    def events(self, job_id: str) -> str:
        """Return the events of a job that has ended, one line of JSON each."""
        with self._transaction() as connection:
            found = connection.execute("SELECT events FROM jobs WHERE job_id = ?", (job_id,)).fetchone()
        return "" if found is None or found[0] is None else str(found[0])

    def page(
        self, owner: str, *, after: str | None, limit: int, order: Literal["asc", "desc"]
    ) -> tuple[list[JobRecord], bool]:
        """Return an owner's jobs in the order of their creation.

        Args:
            owner: Whose.
            after: The last job of the page before; one that is not there begins at the beginning.
            limit: Most jobs.
            order: Oldest or newest first.

        Returns:
            The jobs, and whether there are more.
        """
        with self._transaction() as connection:
            start = 0 if order == "asc" else _BEYOND
            if after is not None:
                found = connection.execute(
                    "SELECT number FROM jobs WHERE job_id = ? AND owner = ?", (after, owner)
                ).fetchone()
                start = start if found is None else found[0]
            rows = connection.execute(_PAGES[order], (owner, start, limit + 1)).fetchall()
        return [_record(row[0]) for row in rows[:limit]], len(rows) > limit

    def unfinished(self) -> list[JobRecord]:
        """Return the jobs that have not ended, in the order of their creation."""
        return [*self._with_status("accepting"), *self._with_status("queued")]

    def deleted(self) -> list[JobRecord]:
        """Return the jobs that somebody has deleted and whose keys are kept, or which a crash left half gone."""
        return self._with_status("deleted")

    def _with_status(self, status: JobStatus) -> list[JobRecord]:
        with self._transaction() as connection:
            rows = connection.execute("SELECT record FROM jobs WHERE status = ? ORDER BY number", (status,)).fetchall()
        return [_record(row[0]) for row in rows]


def _text(record: JobRecord) -> str:
    return json.dumps(record.to_json(), separators=(",", ":"))


def _record(text: str) -> JobRecord:
    content: Mapping[str, Any] = json.loads(text)
    return JobRecord.from_json(content)
