"""Who calls, and how much they may ask for."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from fastvideo_server.config import ServerConfig
from fastvideo_server.errors import ApiError
from fastvideo_server.jobs.records import ANYBODY

__all__ = ["Caller", "Keys"]


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls.

    Attributes:
        name: Name of the key.
        max_queued: Most jobs that have not ended.
        max_sessions: Most sessions that have not ended.
        requests_per_minute: Most creations in a minute; None for no limit.
        weight: Share beside others.
    """

    name: str
    max_queued: int
    max_sessions: int
    requests_per_minute: int | None = None
    weight: float = 1.0


@dataclass(slots=True)
class _Bucket:
    """Requests that a key may make at once; it fills up at the key's rate."""

    tokens: float
    at_s: float


class Keys:
    """Tells callers apart, and counts what they ask for.

    Args:
        config: Keys and limits.
        clock: Seconds from any start.
    """

    def __init__(self, config: ServerConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self._callers = {
            key.sha256: Caller(key.name, key.max_queued, key.max_sessions, key.requests_per_minute, key.weight)
            for key in config.keys
        }
        self._anybody = Caller(ANYBODY, config.max_queued, config.max_sessions)
        self._buckets: dict[str, _Bucket] = {}
        self._clock = clock

    @property
    def are_needed(self) -> bool:
        """Whether nobody gets in without a key."""
        return bool(self._callers)

    def caller(self, authorization: str | None) -> Caller:
        """Return who an `Authorization` header stands for.

        Raises:
            ApiError: 401, no key or a wrong one.
        """
        if not self._callers:
            return self._anybody
        scheme, _, key = (authorization or "").partition(" ")
        # A digest is looked up, not the key: how long that takes tells nothing of the key.
        digest = hashlib.sha256(key.strip().encode("utf-8", "surrogateescape")).hexdigest()
        caller = self._callers.get(digest) if scheme.lower() == "bearer" else None
        if caller is None:
            raise ApiError(
                401,
                "no API key was given" if not authorization else "the API key is wrong",
                code="invalid_api_key",
                param="Authorization",
                allowed="Authorization: Bearer KEY",
                headers={"WWW-Authenticate": "Bearer"},
            )
        return caller

    def named(self, name: str) -> Caller:
        """Return the caller of a name, for jobs of earlier; one whose key is gone has no more rights than others."""
        known = {caller.name: caller for caller in self._callers.values()}
        return known.get(name, replace(self._anybody, name=name))

    def spend(self, caller: Caller) -> None:
        """Count a creation.

        Raises:
            ApiError: 429, the key has made too many in a short time.
        """
        rate = caller.requests_per_minute
        if rate is None:
            return
        now = self._clock()
        bucket = self._buckets.setdefault(caller.name, _Bucket(float(rate), now))
        bucket.tokens = min(float(rate), bucket.tokens + (now - bucket.at_s) * rate / 60)
        bucket.at_s = now
        if bucket.tokens < 1:
            raise ApiError(
                429,
                f"key {caller.name} has asked for too much in a minute",
                code="rate_limit_exceeded",
                allowed=f"{rate} requests a minute",
                retry_after_s=(1 - bucket.tokens) * 60 / rate,
            )
        bucket.tokens -= 1
