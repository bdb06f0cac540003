"""What sessions are made with, the states that they are in, and what is written down of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Literal

from fastvideo_core.errors import ParameterError
from fastvideo_core.loop.chunks import Push, PushAction, PushImage, PushText

__all__ = ["Cut", "LoggedPush", "SessionLimits", "SessionOptions", "SessionState", "kind_of"]


class SessionState(StrEnum):
    """Where a session is.

    Source: the runtime's three session states of TurboServe, section 3.1.
    """

    EXECUTION = "execution"
    """It has its place on the device, and makes chunks, or waits for its viewer or the caller."""
    SUSPEND = "suspend"
    """Its state is kept elsewhere, and its place on the device is free for others."""
    TERMINATE = "terminate"
    """It has ended, and nothing of it is held."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Begin the chunk in progress anew, with what has been pushed since it began."""


@dataclass(frozen=True, slots=True)
class LoggedPush:
    """A push, and when it was applied: the same pushes at the same steps give the same stream.

    Attributes:
        step: Steps of the stream that had been committed; None for one that is to be applied as soon as may be.
        push: What was pushed, or that the chunk was begun anew.
    """

    step: int | None
    push: Push | Cut


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """How a session runs.

    Attributes:
        num_chunks: Its horizon: it ends after so many chunks; None for an endless stream.
        buffer_s: Most seconds of video that wait for its viewer; one chunk may always wait.
        is_paced: Whether the viewer watches in real time from the first chunk that it reads on; else it has seen what
            it has read.
        chunk_deadline_s: Seconds in which a chunk is to be made; calls are shared by no more sessions than keep it.
        history_chunks: Past chunks from which it can be forked, besides the one in progress.
        suspend_after_s: Seconds after which a held session is suspended; None never does.
        offload: Where the state of a suspended session goes.
        folder: Folder for states on disk; needed for `disk`.
        replay: Pushes of another session's log, applied at the same steps.
    """

    num_chunks: int | None = None
    buffer_s: float = 5.0
    is_paced: bool = False
    chunk_deadline_s: float | None = None
    history_chunks: int = 0
    suspend_after_s: float | None = None
    offload: Literal["host", "disk"] = "host"
    folder: Path | None = None
    replay: Sequence[LoggedPush] = ()

    def __post_init__(self) -> None:
        for name, least in (("num_chunks", 1), ("history_chunks", 0)):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
                allowed = f"{least} or more"
                raise ParameterError("not such a number", field=name, value=value, allowed=allowed, nearest=least)
        for name in ("buffer_s", "chunk_deadline_s", "suspend_after_s"):
            value = getattr(self, name)
            if value is not None and not value >= 0:
                raise ParameterError("not a time", field=name, value=value, allowed="0 or more seconds", nearest=0)
        if self.offload not in ("host", "disk"):
            raise ParameterError("no such place", field="offload", value=self.offload, allowed="host, disk")
        if self.offload == "disk" and self.folder is None:
            raise ParameterError("states on disk need one", field="folder", value=None, allowed="a folder")


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """How many sessions an engine takes.

    Attributes:
        max_live: Most that are in execution.
        max_suspended: Most that are suspended.
        max_total: Most that have not ended.
    """

    max_live: int = 16
    max_suspended: int = 64
    max_total: int = 64

    def __post_init__(self) -> None:
        for name in ("max_live", "max_suspended", "max_total"):
            if getattr(self, name) < 0:
                raise ParameterError("too few", field=name, value=getattr(self, name), allowed="0 or more", nearest=0)


def kind_of(push: Push) -> Literal["text", "image", "action"]:
    """Return what kind of push it is, as inputs of tasks are called."""
    match push:
        case PushText():
            return "text"
        case PushImage():
            return "image"
        case PushAction():
            return "action"
