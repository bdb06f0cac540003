"""Every error that FastVideo raises on purpose.

    FastVideoError                 exit code 1
    ├── InputError                 exit code 2: what the caller gave is wrong
    │   ├── ParameterError         a value out of range, off the grid, of a wrong type, or unknown
    │   ├── PromptError            an empty or over-long prompt
    │   ├── MediaError             an input file that cannot be read as what it should be
    │   ├── OutputError            an output path or format that cannot be used
    │   ├── UnknownCardError       a card that is not installed, no folder, and no hub repository
    │   ├── UnknownTaskError       a task that the card does not have
    │   ├── ConfigError            a deploy config that is wrong; says in which line
    │   └── CardError              a card that contradicts itself
    │       ├── LoopMismatchError       weights asked to run under a loop that they do not assume
    │       └── PrecisionMismatchError  weights asked to run in a precision that they do not assume
    ├── CheckpointError            weights that are missing, broken, or do not fit the card
    │   ├── UnsafeFormatError      pickle files and other formats that run code when read
    │   └── DownloadError          the hub did not give the files: offline, gated, or absent
    ├── ResourceError              the machine cannot do it: memory, disk, device
    │   ├── OutOfMemoryError       a step, alone in its call, found no memory
    │   ├── ComponentAsleepError   a component's weights are not on the device now; says which to wake
    │   ├── CacheFullError         a pool of cache blocks has no free one
    │   ├── SessionLimitError      as many sessions as are allowed are there
    │   └── QueueFullError         too many requests wait; says when to come back
    ├── ExecutionError             a step failed while a request ran
    │   ├── NonFiniteError         NaN or infinity in a step's result
    │   ├── WorkerLostError        a worker or its device is gone, with all that was on it
    │   └── CancelledError         the request was cancelled
    ├── TransportError             a transfer between workers failed
    │   ├── PeerLostError          the other end is closed or dead
    │   └── TransferTimeoutError   it did not happen in time
    ├── SessionError               a session is not in a state in which that can be done
    │   ├── SessionEndedError      it has ended, or is another's now
    │   └── ChunkGoneError         a chunk of its past that is kept no longer, or that it never had
    ├── StateError                 a saved state that is corrupt, foreign, or of another version
    ├── PluginError                a plugin that could not be loaded or breaks its contract
    └── ParityError                a parity check that failed or could not run

A message is one line: what was got, what is allowed, and what to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

MAX_VALUE_LENGTH = 300
"""Most characters of a value that a message repeats."""


class InputWarning(UserWarning):
    """What a caller gave is allowed and yet will not give what was asked for."""


class FastVideoError(Exception):
    """Base of all errors raised on purpose; `exit_code` is what the command line ends with.

    Attributes:
        artifacts: What a request had made when this error ended it, by name; a request that fails while it decodes has
            its latents here.
    """

    exit_code: ClassVar[int] = 1
    artifacts: Mapping[str, Any] = MappingProxyType({})


class InputError(FastVideoError):
    """The caller's input is wrong; nothing has been run.

    Args:
        message: What is wrong, in one line, without the parts that the other arguments give.
        field: Name of the offending field, as the caller spells it.
        value: What was got.
        allowed: What is allowed, in words.
        nearest: The nearest valid value, if there is one.
    """

    exit_code: ClassVar[int] = 2

    def __init__(
        self,
        message: str,
        *,
        field: str | None = None,
        value: Any = None,
        allowed: str | None = None,
        nearest: Any = None,
    ) -> None:
        self.reason = message
        self.field = field
        self.value = value
        self.allowed = allowed
        self.nearest = nearest
        parts = [f"{field}={_shown(value)}: {message}" if field is not None else message]
        if allowed is not None:
            parts.append(f"allowed: {allowed}")
        if nearest is not None:
            parts.append(f"nearest: {nearest}")
        super().__init__("; ".join(parts))


class ParameterError(InputError):
    """A parameter is unknown, of a wrong type, out of range, or off the card's grid."""


class PromptError(InputError):
    """A prompt is empty or longer than the text encoder takes."""


class MediaError(InputError):
    """An input image or video cannot be read as what it should be."""


class OutputError(InputError):
    """An output path cannot be written or its format is not known."""


class UnknownCardError(InputError):
    """No card, folder or hub repository of that name."""


class UnknownTaskError(InputError):
    """The card does not have that task."""


class ConfigError(InputError):
    """A deploy config is wrong.

    Args:
        message: What is wrong, with the place.
        file: The file; None if it is not in one.
        line: Its line, from 1.
        **details: As of `InputError`.
    """

    def __init__(self, message: str, *, file: Any = None, line: int | None = None, **details: Any) -> None:
        self.file = file
        self.line = line
        super().__init__(message, **details)


class CardError(InputError):
    """A card contradicts itself."""


class LoopMismatchError(CardError):
    """The weights assume another loop than the one asked for."""


class PrecisionMismatchError(CardError):
    """The weights assume another precision than the one asked for."""


class CheckpointError(FastVideoError):
    """Weights are missing, broken, or do not fit the card.

    `missing`, `unexpected` and `mismatched` name the keys, where keys are the trouble.
    """

    def __init__(
        self,
        message: str,
        *,
        missing: tuple[str, ...] = (),
        unexpected: tuple[str, ...] = (),
        mismatched: tuple[str, ...] = (),
    ) -> None:
        self.missing = missing
        self.unexpected = unexpected
        self.mismatched = mismatched
        super().__init__(message)


class UnsafeFormatError(CheckpointError):
    """A weight file in a format that can run code when it is read."""


class DownloadError(CheckpointError):
    """The hub did not give the files: offline, gated, or absent."""


class ResourceError(FastVideoError):
    """The machine cannot do it: memory, disk or device."""


class OutOfMemoryError(ResourceError):
    """A step, alone in its call, found no memory on its device."""


class ComponentAsleepError(ResourceError):
    """Something needs components whose weights were put to sleep.

    Args:
        message: Who needs them.
        components: The components to wake.
    """

    def __init__(self, message: str, *, components: tuple[str, ...]) -> None:
        self.components = components
        super().__init__(f"{message}: {', '.join(components)} asleep; wake them first")


class CacheFullError(ResourceError):
    """A pool of cache blocks has no free one."""


class SessionLimitError(ResourceError):
    """As many sessions of a kind as are allowed are there."""


class QueueFullError(ResourceError):
    """Too many requests wait.

    Args:
        message: What is full, in one line.
        retry_after_s: Seconds after which a place is expected to be free.
    """

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        self.retry_after_s = retry_after_s
        super().__init__(message)


class ExecutionError(FastVideoError):
    """A step failed while a request ran."""


class NonFiniteError(ExecutionError):
    """A step's result holds NaN or infinity."""


class WorkerLostError(ExecutionError):
    """A worker or its device is gone, with all that was on it."""


class CancelledError(ExecutionError):
    """The request was cancelled at a step boundary."""


class TransportError(FastVideoError):
    """A transfer between workers failed."""


class PeerLostError(TransportError):
    """The other end of a channel is closed or dead."""


class TransferTimeoutError(TransportError):
    """A transfer did not happen in time."""


class SessionError(FastVideoError):
    """A session is not in a state in which that can be done."""


class SessionEndedError(SessionError):
    """A session has ended, or is another's now."""


class ChunkGoneError(SessionError):
    """A chunk of a session's past is kept no longer, or never was.

    Args:
        message: Which one, in one line.
        kept: Chunks that there are.
    """

    def __init__(self, message: str, *, kept: tuple[int, ...]) -> None:
        self.kept = kept
        super().__init__(message)


class StateError(FastVideoError):
    """A saved state is corrupt, foreign, or of another schema version."""


class PluginError(FastVideoError):
    """A plugin could not be loaded or breaks its contract."""


class ParityError(FastVideoError):
    """A parity check failed or could not run."""


def _shown(value: Any) -> str:
    """Return a value as the caller would write it, on one line, cut where it is long (a text, an array)."""
    text = " ".join(repr(value).split())
    return text if len(text) <= MAX_VALUE_LENGTH else f"{text[:MAX_VALUE_LENGTH]}… ({len(text)} characters)"


def describe_failure(error: BaseException) -> str:
    """Return one line for an error of any kind."""
    text = " ".join(str(error).split())
    return text if isinstance(error, FastVideoError) else f"{type(error).__name__}: {text}".removesuffix(": ")
