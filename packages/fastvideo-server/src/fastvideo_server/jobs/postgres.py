"""The table of jobs in PostgreSQL, by URL. One server at a time uses a database: its jobs are its own to go on with."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from fastvideo_core.errors import ResourceError, StateError
from fastvideo_server.jobs.database import SCHEMA, SCHEMA_VERSION, Cursor, JobDatabase

if TYPE_CHECKING:
    import psycopg

__all__ = ["PostgresDatabase"]

_LOCK = 0x66617374  # "fast"
_LOCK_S = 10.0
"""Seconds for a server that was killed to be missed by the database."""


class PostgresDatabase(JobDatabase):
    """Keeps jobs in a database of a PostgreSQL server. A connection that breaks is opened again.

    Args:
        url: `postgresql://USER:PASSWORD@HOST:PORT/DATABASE`.

    Raises:
        ResourceError: It cannot be reached, another server uses it, or psycopg is not installed.
        StateError: There is a table of jobs of another version.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        parts = urlsplit(url)
        self.name = f"{parts.hostname or 'localhost'}{parts.path}"  # without the password
        self._psycopg = _library()
        self._lock = threading.Lock()
        self._connection = self._connect()
        try:
            with self._transaction() as transaction:
                self._prepare(transaction)
        except BaseException:
            self._connection.close()
            raise

    def close(self) -> None:
        """Let go of the connection."""
        with self._lock:
            self._connection.close()

    def _connect(self) -> psycopg.Connection[Any]:
        with self._translated():
            connection: psycopg.Connection[Any] = self._psycopg.connect(self._url, autocommit=True, connect_timeout=10)
            deadline = time.monotonic() + _LOCK_S
            while connection.execute("SELECT pg_try_advisory_lock(%s)", (_LOCK,)).fetchone() != (True,):
                if time.monotonic() > deadline:
                    connection.close()
                    raise ResourceError(f"the database {self.name} is used by another server")
                time.sleep(0.1)
            return connection

    def _prepare(self, transaction: _PostgresTransaction) -> None:
        found = transaction.execute("SELECT to_regclass('fastvideo_schema') IS NOT NULL").fetchone()
        if found[0]:
            version = transaction.execute("SELECT version FROM fastvideo_schema").fetchone()[0]
            if version != SCHEMA_VERSION:
                raise StateError(f"the table of jobs in {self.name} is of version {version}")
            return
        for statement in SCHEMA:
            transaction.execute(statement.format(number="BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY"))
        transaction.execute("CREATE TABLE fastvideo_schema (version INTEGER NOT NULL)")
        transaction.execute("INSERT INTO fastvideo_schema VALUES (?)", (SCHEMA_VERSION,))

    @contextmanager
    def _transaction(self) -> Iterator[_PostgresTransaction]:
        with self._lock, self._translated():
            self._begin()
            try:
                yield _PostgresTransaction(self._connection)
                self._connection.execute("COMMIT")
            except BaseException:
                with suppress(self._psycopg.Error):  # a connection that is gone has taken it back itself
                    self._connection.execute("ROLLBACK")
                raise

    def _begin(self) -> None:
        """Begin a transaction, over a new connection if the old one has broken meanwhile."""
        try:
            self._connection.execute("BEGIN")
        except self._psycopg.OperationalError:
            self._connection.close()
            self._connection = self._connect()
            self._connection.execute("BEGIN")

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except self._psycopg.IntegrityError as error:
            raise StateError(f"the table of jobs in {self.name}: {_line(error)}") from error
        except self._psycopg.Error as error:
            raise ResourceError(f"the database {self.name} cannot be used: {_line(error)}") from error


class _PostgresTransaction:
    """Runs statements with question marks, as the others have them."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    def execute(self, statement: str, values: Sequence[Any] = ()) -> Cursor:
        """Run a statement."""
        marked: Any = statement.replace("?", "%s")
        return self._connection.execute(marked, values)


def _library() -> Any:
    try:
        import psycopg
    except ImportError as error:
        raise ResourceError("a database by URL needs psycopg: pip install 'fastvideo-server[postgres]'") from error
    return psycopg


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
