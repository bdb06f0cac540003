"""The feature cache: results of encoders by their content key, shared by all requests that ask for the same.

An entry that a handle holds is never dropped. Those that nobody holds stay until room is needed; the one that has been
without a holder for longest goes first. Who asks for what another is computing right now waits for it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from fastvideo_core.cache.base import CacheKey, EntryHandle
from fastvideo_core.errors import ExecutionError, ParameterError

__all__ = ["Claim", "ClaimState", "FeatureCache", "FeatureHandle", "FeatureStats"]


@dataclass(slots=True)
class FeatureStats:
    """What a feature cache did so far.

    Attributes:
        hits: Claims that were answered at once.
        misses: Claims whose holder had to compute.
        coalesced: Claims that waited for another's computation.
        evictions: Entries that gave way to others.
        invalidations: Entries dropped because weights changed.
        oversized: Results that were handed on without being kept: there was no room that nobody held.
        num_entries: Entries now.
        used_bytes: Their bytes.
        held_bytes: Bytes of those that somebody holds.
        max_bytes: The budget.
    """

    hits: int = 0
    misses: int = 0
    coalesced: int = 0
    evictions: int = 0
    invalidations: int = 0
    oversized: int = 0
    num_entries: int = 0
    used_bytes: int = 0
    held_bytes: int = 0
    max_bytes: int = 0

    def to_json(self) -> dict[str, int]:
        """Return the figures by name."""
        return asdict(self)


class _Entry:
    """A result with those who hold it."""

    __slots__ = ("is_kept", "key", "num_bytes", "num_holders", "value")

    def __init__(self, key: CacheKey, value: Any, num_bytes: int, *, is_kept: bool) -> None:
        self.key = key
        self.value = value
        self.num_bytes = num_bytes
        self.num_holders = 0
        self.is_kept = is_kept


class FeatureHandle(EntryHandle[_Entry]):
    """A result that a request holds, and only reads."""

    __slots__ = ()


class ClaimState(StrEnum):
    """Where a claim stands."""

    HIT = "hit"
    COMPUTE = "compute"
    WAIT = "wait"
    ENDED = "ended"


class Claim:
    """What became of asking for a key: a result, the duty to compute it, or waiting for who has that duty.

    A claim that waits becomes a hit when the result is there, or a duty when who computed it gave up; `on_change` is
    called then. A claim ends by `take`, `fill`, or `abandon`, one of which must come.

    Attributes:
        key: What was asked for.
        state: Where it stands.
        on_change: Called, without arguments, when a claim that waits changes.
    """

    __slots__ = ("_cache", "_handle", "key", "on_change", "state")

    def __init__(self, cache: FeatureCache, key: CacheKey, state: ClaimState, handle: FeatureHandle | None) -> None:
        self._cache = cache
        self._handle = handle
        self.key = key
        self.state = state
        self.on_change: Callable[[], None] | None = None

    def take(self) -> FeatureHandle:
        """Return the result of a hit; whoever takes it releases it.

        Raises:
            ExecutionError: It is no hit.
        """
        self._expect(ClaimState.HIT)
        self.state = ClaimState.ENDED
        handle, self._handle = self._handle, None
        assert handle is not None
        return handle

    def fill(self, value: Any, num_bytes: int) -> FeatureHandle:
        """Give the computed result to the cache and to all who wait.

        Args:
            value: The result, which nobody changes from now on.
            num_bytes: Its size.

        Returns:
            The caller's own handle.

        Raises:
            ExecutionError: It was not this claim's duty.
            ParameterError: It is no size.
        """
        self._expect(ClaimState.COMPUTE)
        if num_bytes < 0:
            raise ParameterError("not a size", field="num_bytes", value=num_bytes, allowed="0 or more")
        self.state = ClaimState.ENDED
        return self._cache._fill(self.key, value, num_bytes)  # noqa: SLF001 - a claim is the cache's own

    def abandon(self) -> None:
        """Want it no longer: a hit is released, a duty goes to the next who waits, a wait ends. Again, does nothing."""
        state, self.state = self.state, ClaimState.ENDED
        self.on_change = None
        if state is ClaimState.HIT:
            assert self._handle is not None
            self._handle.release()
        elif state is not ClaimState.ENDED:
            self._cache._leave(self, state)  # noqa: SLF001 - a claim is the cache's own

    def _expect(self, state: ClaimState) -> None:
        if self.state is not state:
            raise ExecutionError(f"a claim in cache {self._cache.name!r} is {self.state!s}, not {state!s}")

    def _change(self, state: ClaimState, handle: FeatureHandle | None) -> Callable[[], None] | None:
        self.state, self._handle = state, handle
        callback, self.on_change = self.on_change, None
        return callback


class FeatureCache:
    """Results by key, within a budget of bytes.

    Args:
        name: Name in the card.
        max_bytes: Most bytes of entries, held ones included.
    """

    def __init__(self, name: str, max_bytes: int) -> None:
        if max_bytes < 0:
            raise ParameterError("not a size", field=f"caches.{name}.max_bytes", value=max_bytes, allowed="0 or more")
        self.name = name
        self._stats = FeatureStats(max_bytes=max_bytes)
        self._entries: dict[CacheKey, _Entry] = {}
        self._idle: OrderedDict[_Entry, None] = OrderedDict()
        # The claims that wait for a key; the key is there as long as somebody computes it.
        self._waiting: dict[CacheKey, list[Claim]] = {}
        self._outdated: set[CacheKey] = set()

    @property
    def stats(self) -> FeatureStats:
        """What it did so far; the object is the cache's own."""
        return self._stats

    def claim(self, key: CacheKey) -> Claim:
        """Ask for a result.

        Returns:
            A claim: `hit`, `compute` if the caller has to, or `wait` while another does.
        """
        entry = self._entries.get(key)
        if entry is not None:
            self._stats.hits += 1
            return Claim(self, key, ClaimState.HIT, self._hold(entry))
        waiting = self._waiting.get(key)
        if waiting is None:
            self._stats.misses += 1
            self._waiting[key] = []
            return Claim(self, key, ClaimState.COMPUTE, None)
        self._stats.coalesced += 1
        claim = Claim(self, key, ClaimState.WAIT, None)
        waiting.append(claim)
        return claim

    def __contains__(self, key: CacheKey) -> bool:
        return key in self._entries

    def invalidate(self, model_id: str, *, weights_version: str | None = None) -> int:
        """Drop all entries of a model, or of one version of its weights.

        Who holds one keeps it, and its bytes count until it is released. What is being computed is still handed to
        those who wait for it, and not kept.

        Returns:
            Number of entries dropped.
        """

        def is_meant(key: CacheKey) -> bool:
            return key.model_id == model_id and weights_version in (None, key.weights_version)

        dropped = [entry for key, entry in self._entries.items() if is_meant(key)]
        for entry in dropped:
            self._remove(entry)
        self._outdated.update(key for key in self._waiting if is_meant(key))
        self._stats.invalidations += len(dropped)
        return len(dropped)

    def _hold(self, entry: _Entry) -> FeatureHandle:
        if entry.num_holders == 0 and entry.is_kept:
            self._idle.pop(entry, None)
            self._stats.held_bytes += entry.num_bytes
        entry.num_holders += 1
        return FeatureHandle(self.name, entry, self._drop_holder)

    def _drop_holder(self, entry: _Entry) -> None:
        entry.num_holders -= 1
        if entry.num_holders or not entry.is_kept:
            return
        self._stats.held_bytes -= entry.num_bytes
        if self._entries.get(entry.key) is entry:
            self._idle[entry] = None
        else:
            self._stats.used_bytes -= entry.num_bytes

    def _fill(self, key: CacheKey, value: Any, num_bytes: int) -> FeatureHandle:
        waiting = self._waiting.pop(key)
        is_outdated = key in self._outdated
        self._outdated.discard(key)
        is_kept = not is_outdated and self._make_room(num_bytes)
        entry = _Entry(key, value, num_bytes, is_kept=is_kept)
        if is_kept:
            self._entries[key] = entry
            self._stats.num_entries += 1
            self._stats.used_bytes += num_bytes
        own = self._hold(entry)
        # Handles first: a callback may release its own at once.
        callbacks = [claim._change(ClaimState.HIT, self._hold(entry)) for claim in waiting]  # noqa: SLF001
        _call(callbacks)
        return own

    def _leave(self, claim: Claim, state: ClaimState) -> None:
        waiting = self._waiting[claim.key]
        if state is ClaimState.WAIT:
            waiting.remove(claim)
        elif waiting:
            _call([waiting.pop(0)._change(ClaimState.COMPUTE, None)])  # noqa: SLF001 - a claim is the cache's own
        else:
            del self._waiting[claim.key]
            self._outdated.discard(claim.key)

    def _make_room(self, num_bytes: int) -> bool:
        """Drop entries that nobody holds until there is room; drop none if that would not do."""
        stats = self._stats
        detached_or_held = stats.used_bytes - self._idle_bytes()
        if detached_or_held + num_bytes > stats.max_bytes:
            stats.oversized += 1
            return False
        while stats.used_bytes + num_bytes > stats.max_bytes:
            self._remove(next(iter(self._idle)))
            stats.evictions += 1
        return True

    def _idle_bytes(self) -> int:
        return self._stats.used_bytes - self._stats.held_bytes

    def _remove(self, entry: _Entry) -> None:
        del self._entries[entry.key]
        self._stats.num_entries -= 1
        if entry.num_holders == 0:
            del self._idle[entry]
            self._stats.used_bytes -= entry.num_bytes


def _call(callbacks: list[Callable[[], None] | None]) -> None:
    for callback in callbacks:
        if callback is not None:
            callback()
