"""What is shown while requests run: a bar on a terminal, a line now and then in a log, nothing if that is asked for."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from fastvideo_core.cli.shell import Shell

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

__all__ = ["Display", "Tally", "open_display"]

LOG_INTERVAL_S = 5.0
"""Seconds between two lines where there is no terminal."""


@dataclass(slots=True)
class Tally:
    """How far some requests are, all together.

    Attributes:
        num_requests: How many there are.
        num_ended: How many have ended, in whatever way.
        fractions: How far each one is that has begun, by id.
        now: What the newest step was, in words.
        started_at: When the first one began, in monotonic seconds.
    """

    num_requests: int
    num_ended: int = 0
    fractions: dict[str, float] = field(default_factory=dict)
    now: str = "waiting"
    started_at: float | None = None

    def note(self, event: Any, now_s: float) -> None:
        """Take note of an event of one of the requests."""
        if event.type == "request.progress":
            self.started_at = now_s if self.started_at is None else self.started_at
            self.fractions[event.request_id] = event.fraction
            steps = f"{event.step}" + (f"/{event.num_steps}" if event.num_steps else "")
            self.now = f"{event.node} {steps}"
        elif event.type in ("request.completed", "request.failed", "request.cancelled"):
            self.fractions[event.request_id] = 1.0
            self.num_ended += 1

    @property
    def fraction(self) -> float:
        """Share of the work that is done, from 0 to 1."""
        return sum(self.fractions.values()) / self.num_requests if self.num_requests else 1.0

    def remaining_s(self, now_s: float) -> float | None:
        """Return the seconds that are left if it goes on like this; None before anything is known."""
        if self.started_at is None or self.fraction == 0:
            return None
        return (now_s - self.started_at) * (1 - self.fraction) / self.fraction

    def text(self) -> str:
        """Return the state in words: the step of a single request, or how many of several have ended."""
        return self.now if self.num_requests == 1 else f"{self.num_ended} of {self.num_requests} done, {self.now}"


@dataclass(slots=True)
class _Transfer:
    """A download in words; the time left follows from what has come since the first report."""

    first_bytes: int | None = None
    began_at: float = 0.0

    def amounts(self, done_bytes: int, total_bytes: int) -> str:
        """Return how much has come, of how much."""
        from fastvideo_core.runtime.weights.text import format_bytes

        return f"downloading, {format_bytes(done_bytes)} of {format_bytes(total_bytes)}"

    def left(self, done_bytes: int, total_bytes: int, now_s: float) -> str:
        """Return the time left."""
        if self.first_bytes is None:
            self.first_bytes, self.began_at = done_bytes, now_s
        come = done_bytes - self.first_bytes
        seconds = (now_s - self.began_at) * (total_bytes - done_bytes) / come if come > 0 else None
        return f"{format_seconds(seconds)} left"

    def text(self, done_bytes: int, total_bytes: int, now_s: float) -> str:
        """Return all of it."""
        return f"{self.amounts(done_bytes, total_bytes)}, {self.left(done_bytes, total_bytes, now_s)}"


class Display(Protocol):
    """Shows progress. Events come from the engine's thread, so nothing here may block."""

    def phase(self, text: str) -> None:
        """Show what is done before the first step, for instance loading."""
        ...

    def note(self, text: str) -> None:
        """Tell something that stays to be read, for instance what was loaded."""
        ...

    def transfer(self, done_bytes: int, total_bytes: int) -> None:
        """Show how far a download is; comes from any thread."""
        ...

    def begin(self, tally: Tally) -> None:
        """Show the requests' progress from now on."""
        ...

    def refresh(self) -> None:
        """Show what has changed in the tally."""
        ...


class _Silent:
    def phase(self, text: str) -> None:
        """Show nothing."""

    def note(self, text: str) -> None:
        """Show nothing."""

    def transfer(self, done_bytes: int, total_bytes: int) -> None:
        """Show nothing."""

    def begin(self, tally: Tally) -> None:
        """Show nothing."""

    def refresh(self) -> None:
        """Show nothing."""


class _Log:
    """A line every few seconds."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._told_at = 0.0
        self._tally = Tally(0)
        self._transfer = _Transfer()

    def phase(self, text: str) -> None:
        """Tell of a phase at once."""
        self._tell(text)
        self._transfer = _Transfer()
        self._told_at = time.monotonic()

    def note(self, text: str) -> None:
        """Tell it."""
        self._tell(text)

    def transfer(self, done_bytes: int, total_bytes: int) -> None:
        """Tell, if it is time."""
        if self._is_due():
            self._tell(self._transfer.text(done_bytes, total_bytes, time.monotonic()))

    def begin(self, tally: Tally) -> None:
        """Remember what to tell; the interval begins here, not with the loading."""
        self._tally = tally
        self._told_at = time.monotonic()

    def refresh(self) -> None:
        """Tell, if it is time."""
        if self._is_due():
            left = format_seconds(self._tally.remaining_s(time.monotonic()))
            self._tell(f"{self._tally.text()}, {self._tally.fraction:.0%}, {left} left")

    def _is_due(self) -> bool:
        now_s = time.monotonic()
        is_due = now_s - self._told_at >= LOG_INTERVAL_S
        self._told_at = now_s if is_due else self._told_at
        return is_due


class _Bar:
    """A bar with the step, the share that is done and the time left."""

    def __init__(self, progress: RichProgress, tell: Callable[[str], None]) -> None:
        self._progress = progress
        self._tell = tell
        self._task: TaskID = progress.add_task("", total=None, left="")
        self._tally = Tally(0)
        self._transfer = _Transfer()

    def phase(self, text: str) -> None:
        """Show a pulse."""
        self._transfer = _Transfer()
        self._progress.update(self._task, description=text, total=None, left="")

    def note(self, text: str) -> None:
        """Print it above the bar."""
        self._tell(text)

    def transfer(self, done_bytes: int, total_bytes: int) -> None:
        """Move the bar by bytes."""
        now_s = time.monotonic()
        self._progress.update(
            self._task,
            description=self._transfer.amounts(done_bytes, total_bytes),
            completed=done_bytes / max(total_bytes, 1),
            total=1.0,
            left=self._transfer.left(done_bytes, total_bytes, now_s),
        )

    def begin(self, tally: Tally) -> None:
        """Begin the bar."""
        self._tally = tally
        self._progress.update(self._task, description=tally.text(), completed=0.0, total=1.0)

    def refresh(self) -> None:
        """Move the bar."""
        tally = self._tally
        left = f"{format_seconds(tally.remaining_s(time.monotonic()))} left"
        self._progress.update(self._task, description=tally.text(), completed=tally.fraction, left=left)


@contextmanager
def open_display(shell: Shell, *, is_quiet: bool) -> Iterator[Display]:
    """Open the display that fits where stderr leads; it is gone when the context ends."""
    if is_quiet:
        yield _Silent()
    elif sys.stderr is None or not sys.stderr.isatty():
        yield _Log(shell.tell)
    else:
        with _open_bar() as progress, shell.prints_above(lambda text: progress.console.out(text, highlight=False)):
            yield _Bar(progress, shell.tell)


@contextmanager
def _open_bar() -> Iterator[RichProgress]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[left]}"),
    )
    # Redirected, results would go where the bar is drawn: to stderr.
    with Progress(
        *columns, console=Console(stderr=True), transient=True, redirect_stdout=False, redirect_stderr=False
    ) as progress:
        yield progress


def format_seconds(seconds: float | None) -> str:
    """Return a duration in words: `12 s`, `3 min 05 s`, `2 h 10 min`."""
    if seconds is None:
        return "?"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"
