"""Structured cancellation: a scope is cancelled with all scopes below it, at the next step boundary."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from fastvideo_core.errors import CancelledError

__all__ = ["CancelScope", "CancelState", "ScopeKind"]

ScopeKind = Literal["session", "request", "stream", "loop"]


@dataclass(frozen=True, slots=True)
class CancelScope:
    """What a cancellation is aimed at.

    Attributes:
        kind: Level of the scope.
        scope_id: Its name, unique within its parent.
        parent: The scope that contains it.
    """

    kind: ScopeKind
    scope_id: str
    parent: CancelScope | None = None

    def child(self, kind: ScopeKind, scope_id: str) -> CancelScope:
        """Return a scope inside this one."""
        return CancelScope(kind, scope_id, self)

    def is_within(self, other: CancelScope) -> bool:
        """Tell whether cancelling `other` cancels this scope."""
        scope: CancelScope | None = self
        while scope is not None:
            if scope == other:
                return True
            scope = scope.parent
        return False

    def path(self) -> str:
        """Return the scope with its parents, for messages: `request:a/loop:denoise`."""
        own = f"{self.kind}:{self.scope_id}"
        return own if self.parent is None else f"{self.parent.path()}/{own}"


class CancelState:
    """Which scopes of one request have been cancelled, and why. May be used from any thread."""

    __slots__ = ("_listeners", "_reasons")

    def __init__(self) -> None:
        self._reasons: list[tuple[CancelScope, str]] = []  # a list, since it may grow while another thread reads
        self._listeners: list[Callable[[], object]] = []

    def cancel(self, scope: CancelScope, reason: str = "cancelled by the caller") -> None:
        """Mark a scope, and wake whoever waits in it; the first reason stays."""
        self._reasons.append((scope, reason))
        for wake in tuple(self._listeners):
            wake()

    def listen(self, wake: Callable[[], object]) -> None:
        """Call `wake` at every cancellation from now on, in the thread that cancels."""
        self._listeners.append(wake)

    @property
    def is_cancelled(self) -> bool:
        """Whether any scope has been cancelled."""
        return bool(self._reasons)

    def ignore(self) -> None:
        """Wake nobody any more."""
        self._listeners.clear()

    def reason(self, scope: CancelScope) -> str | None:
        """Return why a scope is cancelled, or None if it is not."""
        return next((why for target, why in self._reasons if scope.is_within(target)), None)

    def error(self, scope: CancelScope) -> CancelledError | None:
        """Return the error that a cancelled scope ends with, or None if it is not cancelled."""
        why = self.reason(scope)
        return None if why is None else CancelledError(f"{scope.path()}: {why}")

    def check(self, scope: CancelScope) -> None:
        """Raise if a scope is cancelled.

        Raises:
            CancelledError: With the scope and the reason.
        """
        # Asked at every step, and seldom is anything cancelled.
        if self._reasons and (error := self.error(scope)) is not None:
            raise error
