"""Sessions: streams that live across idle times, are steered while they run, forked, suspended and moved.

A session is a view over the loops and the scheduler that run requests: while it makes chunks it is a request in
progress, and between two such legs it is the state of one loop. Nothing here iterates over steps.
"""

from fastvideo_core.runtime.sessions.base import LoggedPush, SessionLimits, SessionOptions, SessionState
from fastvideo_core.runtime.sessions.parked import ParkedState
from fastvideo_core.runtime.sessions.session import Session
from fastvideo_core.runtime.sessions.waiting import AsyncSession

__all__ = [
    "AsyncSession",
    "LoggedPush",
    "ParkedState",
    "Session",
    "SessionLimits",
    "SessionOptions",
    "SessionState",
]
