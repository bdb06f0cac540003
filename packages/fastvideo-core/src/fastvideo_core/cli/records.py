"""What becomes of the lines of a batch, and the summary of it all."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from fastvideo_core.errors import CancelledError, InputError, describe_failure

__all__ = ["Record", "Status", "exit_code", "make_summary"]

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
        duration_s: Seconds from acceptance to the last artifact; None if another process made it.
        is_kept: Whether it can still go on, from a state directory.
        entry: What an earlier process has told of it.
    """

    line: int
    request_id: str
    status: Status = "cancelled"
    error: Exception | None = None
    files: tuple[str, ...] = ()
    seed: int | None = None
    duration_s: float | None = None
    is_kept: bool = False
    entry: Mapping[str, Any] | None = None

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> Record:
        """Return the record of a line that an earlier process has told of."""
        return cls(entry["line"], entry["id"], entry["status"], entry=dict(entry))

    @property
    def has_ended(self) -> bool:
        """Whether nothing more will become of it."""
        return self.status != "cancelled" and not self.is_kept

    def fail(self, error: Exception) -> None:
        """Note why there is no file."""
        self.error = error
        if isinstance(error, InputError):
            self.status = "refused"
        elif not isinstance(error, CancelledError):
            self.status = "failed"

    def to_json(self) -> dict[str, Any]:
        """Return the summary's entry."""
        if self.entry is not None:
            return dict(self.entry)
        entry: dict[str, Any] = {"line": self.line, "id": self.request_id, "status": self.status}
        if self.status == "done":
            return {**entry, "files": list(self.files), "seed": self.seed, "duration_s": self.duration_s}
        if self.error is not None:
            entry["error"] = {"type": type(self.error).__name__, "message": describe_failure(self.error)}
            if isinstance(self.error, InputError):
                entry["error"]["field"] = self.error.field
        return entry


def make_summary(card_id: str, records: Sequence[Record], duration_s: float) -> bytes:
    """Return the summary's file.

    Args:
        card_id: The card.
        records: All lines, in order.
        duration_s: Seconds from the beginning to the end.
    """
    counts = Counter(record.status for record in records)
    content = {
        "schema_version": 1,
        "card": card_id,
        "duration_s": round(duration_s, 3),
        "counts": {status: counts[status] for status in get_args(Status)},
        "requests": [record.to_json() for record in records],
    }
    return (json.dumps(content, ensure_ascii=False, indent=2) + "\n").encode()


def exit_code(records: Sequence[Record]) -> int:
    """Return the exit code of a batch: a failure counts for more than a bad line."""
    statuses = {record.status for record in records}
    if statuses & {"failed", "cancelled"} or any(record.is_kept for record in records):
        return 1
    return 2 if "refused" in statuses else 0
