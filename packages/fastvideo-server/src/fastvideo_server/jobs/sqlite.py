"""The table of jobs in a file: SQLite with a write-ahead log."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fastvideo_core.errors import ResourceError, StateError
from fastvideo_server.jobs.database import SCHEMA, SCHEMA_VERSION, JobDatabase

__all__ = ["SqliteDatabase"]


class SqliteDatabase(JobDatabase):
    """Keeps jobs in one file.

    Args:
        path: The file; made if missing.

    Raises:
        StateError: It is no such database, or one of another version.
        ResourceError: It cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        with _translated(path):
            self._connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
            try:
                self._prepare()
            except BaseException:
                self._connection.close()
                raise

    def close(self) -> None:
        """Let go of the file."""
        with self._lock:
            self._connection.close()

    def _prepare(self) -> None:
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        version = self._connection.execute("PRAGMA user_version").fetchone()[0]
        if version == SCHEMA_VERSION:
            return
        if version or self._connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            raise StateError(f"{self.path} is another program's database, or one of version {version}")
        schema = ";".join(SCHEMA).format(number="INTEGER PRIMARY KEY AUTOINCREMENT")
        self._connection.executescript(f"BEGIN IMMEDIATE; {schema}; PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;")

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock, _translated(self.path):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.OperationalError | sqlite3.ProgrammingError):
            raise ResourceError(f"{path} cannot be used: {error}") from error
        raise StateError(f"{path} is no database of jobs: {error}") from error
