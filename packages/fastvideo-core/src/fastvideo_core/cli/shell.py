"""What a command has of the terminal: results on stdout, messages on stderr, and Ctrl-C that first only cancels."""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self, TextIO

from fastvideo_core.errors import FastVideoError, describe_failure

__all__ = ["Shell", "Terminated"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Terminated(KeyboardInterrupt):
    """SIGTERM, treated as Ctrl-C."""


class Shell:
    """The surroundings of one command; a context manager that handles Ctrl-C and SIGTERM while it is open.

    Outside `cancels`, a signal raises `KeyboardInterrupt`. Inside, the first one calls for cancellation and the
    command goes on to its own end; only a second one raises.

    Args:
        is_debug: Whether errors come with a traceback.
        owns_process: Whether the process is there for this command alone.
    """

    def __init__(self, *, is_debug: bool = False, owns_process: bool = False) -> None:
        self.is_debug = is_debug
        self.owns_process = owns_process
        self.is_impatient = False
        """Whether a second signal came: then nothing more is waited for."""
        self._signal: int | None = None
        self._lost: OSError | None = None
        self._print_above: Callable[[str], None] | None = None
        self._cancel: Callable[[], None] | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if self.owns_process:
            _fill_closed()
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._handle) for number in _SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._flush()

    @property
    def is_interrupted(self) -> bool:
        """Whether a signal has come."""
        return self._signal is not None

    @property
    def interrupt_code(self) -> int:
        """The exit code after a signal, as shells have it: 130 for Ctrl-C, 143 for SIGTERM."""
        return 128 + (self._signal or signal.SIGINT)

    @contextmanager
    def cancels(self, cancel: Callable[[], None]) -> Iterator[None]:
        """Let the first signal call `cancel` instead of raising, for as long as the context is open."""
        self._cancel = cancel
        try:
            yield
        finally:
            self._cancel = None

    @contextmanager
    def prints_above(self, print_above: Callable[[str], None]) -> Iterator[None]:
        """Let text for the terminal go through `print_above`, which keeps a progress bar below it."""
        self._print_above = print_above
        try:
            yield
        finally:
            self._print_above = None

    def interrupted(self) -> int:
        """Say that the command was interrupted and return its exit code; after a second signal, end the process."""
        self.tell("error: interrupted")
        if self.is_impatient and self.owns_process:
            # A step that still runs cannot be stopped from outside, and leaving in order would wait for it.
            self._flush()
            os._exit(self.interrupt_code)
        return self.interrupt_code

    def ended(self, code: int) -> int:
        """Return the exit code of a command that ended with `code`, once all that it said has been written or not."""
        self._lost = self._lost or _write(sys.stdout, "", end="")
        if self._lost is None:
            return code
        self.tell(f"error: stdout cannot be written: {self._lost.strerror or self._lost}")
        return code or 1

    def say(self, text: str) -> None:
        """Print a result; does nothing once nobody reads any more, and does not stop the work if it cannot."""
        self._lost = self._lost or self._write(sys.stdout, text)

    def say_part(self, text: str) -> None:
        """Print a part of a result, without a line break after it; otherwise as `say`."""
        self._lost = self._lost or _write(sys.stdout, text, end="")

    def tell(self, text: str) -> None:
        """Print a message for the person at the terminal, if that is possible."""
        self._write(sys.stderr, text)

    def report(self, error: Exception, *, where: str = "") -> int:
        """Tell of an error in one line, with a traceback before it if that is asked for, and return its exit code."""
        if self.is_debug:
            self.tell("".join(traceback.format_exception(error)).rstrip())
        if isinstance(error, FastVideoError):
            self.tell(f"error: {where}{describe_failure(error)}")
            return error.exit_code
        hint = "" if self.is_debug else "; --debug shows where"
        self.tell(f"error: {where}unexpected {describe_failure(error)}{hint}")
        return 1

    def _write(self, stream: TextIO | None, text: str) -> OSError | None:
        if self._print_above is not None and stream is not None and stream.isatty():
            self._print_above(text)
            return None
        return _write(stream, text)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        is_first = self._signal is None
        self._signal = self._signal or number
        if is_first and self._cancel is not None:
            self._cancel()
            return
        self.is_impatient = not is_first
        raise Terminated if number == signal.SIGTERM else KeyboardInterrupt

    def _flush(self) -> None:
        for stream in (sys.stdout, sys.stderr):
            _write(stream, "", end="")


def _write(stream: TextIO | None, text: str, end: str = "\n") -> OSError | None:
    """Print a text; return why it could not be printed, unless it is only that nobody reads any more."""
    if stream is None:
        return None
    try:
        print(text, end=end, file=stream, flush=True)
    except UnicodeEncodeError:
        encoding = stream.encoding or "ascii"
        return _write(stream, text.encode(encoding, "backslashreplace").decode(encoding), end)
    except OSError as error:
        # Whatever is still in the buffer goes nowhere, without another complaint when the interpreter ends.
        sink = os.open(os.devnull, os.O_WRONLY)
        os.dup2(sink, stream.fileno())
        os.close(sink)
        return None if isinstance(error, BrokenPipeError) else error
    return None


def _fill_closed() -> None:
    """Put the null device where stdin, stdout or stderr is closed: the next file opened would take its place.

    A library that prints a warning would then print it into a video.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
