"""Who owns which session, and the last state of each that was brought to the disk; shared by workers of one machine.

One database says it all: a session is whose row says so, and its state is what the row holds, but for the tensors: they
are in the file that it names. A row changes whole or not at all, whatever is killed when.
"""

from __future__ import annotations

import secrets
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from fastvideo_core.errors import SessionEndedError, StateError
from fastvideo_core.runtime.durable.disk import Disk
from fastvideo_core.runtime.sessions.parked import ParkedState, describe_parked, parse_parked

__all__ = ["SessionVault"]

_DATABASE = "sessions.sqlite"
_TIMEOUT_S = 30.0


class SessionVault:
    """The sessions of a machine. May be used from any thread; each process, a fork too, makes its own.

    Args:
        folder: Where they are kept; made if it is missing.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._disk = Disk()
        self._lock = threading.Lock()
        # One for good: to close the last one of a file costs as much as a change.
        self._database = sqlite3.connect(
            folder / _DATABASE, timeout=_TIMEOUT_S, isolation_level=None, check_same_thread=False
        )
        with self._open() as database:
            database.execute("PRAGMA journal_mode = WAL")
            columns = "session_id TEXT PRIMARY KEY, owner TEXT NOT NULL, file TEXT NOT NULL, state TEXT NOT NULL"
            database.execute(f"CREATE TABLE IF NOT EXISTS sessions ({columns})")

    def add(self, session_id: str, packed: ParkedState, *, owner: str) -> None:
        """Take a session that is not there yet.

        Raises:
            StateError: It is.
        """
        path, state = self._write(session_id, packed)
        try:
            with self._open() as database:
                database.execute("INSERT INTO sessions VALUES (?, ?, ?, ?)", (session_id, owner, path.name, state))
        except sqlite3.IntegrityError as error:
            self._disk.remove(path)
            raise StateError(f"session {session_id} is in {self._folder} already") from error

    def save(self, session_id: str, packed: ParkedState, *, owner: str) -> None:
        """Replace the state of a session; durable when this returns.

        Raises:
            SessionEndedError: It is not the owner's.
        """
        before = self._row(session_id)
        path, state = self._write(session_id, packed)
        with self._open() as database:
            changed = database.execute(
                "UPDATE sessions SET file = ?, state = ? WHERE session_id = ? AND owner = ?",
                (path.name, state, session_id, owner),
            ).rowcount
        if not changed:
            self._disk.remove(path)
            raise SessionEndedError(f"session {session_id} is {'gone' if before is None else before[0] + 's'}")
        if before is not None:
            self._disk.remove(self._folder / before[1])

    def hand_over(self, session_id: str, *, owner: str, to: str) -> bool:
        """Give a session to somebody else; returns whether it was the owner's to give.

        All processes of the machine see it when it returns, whichever of them is killed. It is not waited for until it
        is on the disk: if the machine itself stops, both owners do, and whoever the row names goes on from the same
        state. What the new owner saves is on the disk only together with this.
        """
        with self._open(is_durable=False) as database:
            return bool(
                database.execute(
                    "UPDATE sessions SET owner = ? WHERE session_id = ? AND owner = ?", (to, session_id, owner)
                ).rowcount
            )

    def owner_of(self, session_id: str) -> str | None:
        """Return whose a session is; None if there is none of that id."""
        row = self._row(session_id)
        return None if row is None else row[0]

    def owned_by(self, owner: str) -> tuple[str, ...]:
        """Return the sessions of an owner."""
        with self._open() as database:
            rows = database.execute("SELECT session_id FROM sessions WHERE owner = ? ORDER BY session_id", (owner,))
            return tuple(row[0] for row in rows.fetchall())

    def load(self, session_id: str) -> ParkedState:
        """Return what was saved last of a session.

        Raises:
            StateError: There is no such session, or its file is corrupt.
        """
        with self._open() as database:
            row = database.execute("SELECT state FROM sessions WHERE session_id = ?", (session_id,)).fetchone()
        if row is None:
            raise StateError(f"no session {session_id} is in {self._folder}")
        return parse_parked(row[0].encode(), self._folder)

    def remove(self, session_id: str, *, owner: str) -> None:
        """Forget a session that has ended; nothing is done if it is not the owner's."""
        row = self._row(session_id)
        with self._open() as database:
            gone = database.execute("DELETE FROM sessions WHERE session_id = ? AND owner = ?", (session_id, owner))
        if row is not None and gone.rowcount:
            self._disk.remove(self._folder / row[1])

    def _write(self, session_id: str, packed: ParkedState) -> tuple[Path, str]:
        """Bring the tensors of a session to the disk; returns their file, and what a row holds of the rest."""
        path = self._folder / f"{session_id}.{secrets.token_hex(8)}.safetensors"
        return path, describe_parked(packed, path, self._disk)

    def _row(self, session_id: str) -> tuple[str, str] | None:
        with self._open() as database:
            row = database.execute("SELECT owner, file FROM sessions WHERE session_id = ?", (session_id,)).fetchone()
        return None if row is None else (row[0], row[1])

    def close(self) -> None:
        """Close the database; what is in it stays. Again, it does nothing."""
        with self._lock:
            self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _open(self, *, is_durable: bool = True) -> Iterator[sqlite3.Connection]:
        """Use the database; what is changed is on the disk afterwards, or at the latest when the next change is."""
        with self._lock:
            self._database.execute(f"PRAGMA synchronous = {'FULL' if is_durable else 'NORMAL'}")
            yield self._database
