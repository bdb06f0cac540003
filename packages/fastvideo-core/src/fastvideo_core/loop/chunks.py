"""Loops that make a stream chunk by chunk, what steers them from outside, and copies of their states.

A session runs one such loop. What it asks of it, besides the contract of all loops:

- `boundary` says where one chunk has ended and the next has not begun. There, and only there, the runtime pauses,
  suspends, forks, moves and paces a stream. A chunk is cut short by going back to the copy of the state that was taken
  at its beginning; what the chunk had reserved is valid nowhere.
- `apply` takes the pushes that the loop knows, at any step boundary; what a push means for the picture may begin with
  the next chunk. It refuses what it does not take with an `InputError`, and the stream goes on as it was.
- Where `LoopRequest.is_session` is set, the loop decodes each chunk itself, with what the decoder remembers in its
  state, and the step that decodes emits the frames as a `StreamChunk` of kind `media`. Its state then holds nothing
  that grows with the stream.
- Steps leave the tensors that they were given as they are, as all steps do, so that copies of a state may share them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch

from fastvideo_core.cache.base import is_stored
from fastvideo_core.cache.slab_pool import SlabPool
from fastvideo_core.cache.slabs import SlabTable
from fastvideo_core.errors import StateError
from fastvideo_core.loop.base import Loop
from fastvideo_core.request.cancel import CancelScope

__all__ = ["ChunkLoop", "Push", "PushAction", "PushImage", "PushText", "attach_slabs", "fork_state"]

StateT = TypeVar("StateT")


@dataclass(frozen=True, slots=True)
class PushText:
    """Event: a new prompt."""

    text: str


@dataclass(frozen=True, slots=True)
class PushImage:
    """Event: an image to go on from.

    Attributes:
        pixels_HWC: Pixels, uint8.
    """

    pixels_HWC: torch.Tensor


@dataclass(frozen=True, slots=True)
class PushAction:
    """Event: actions, one row a step of the world.

    Attributes:
        values: Rows of numbers.
    """

    values: tuple[tuple[float, ...], ...]


Push = PushText | PushImage | PushAction
"""What a session can push; a loop says by `InputError` which of them it does not take."""


@runtime_checkable
class ChunkLoop(Loop[StateT], Protocol[StateT]):
    """A loop that makes a stream chunk by chunk."""

    def boundary(self, state: StateT) -> int | None:
        """Return the number of the chunk that comes next, from 0, or None in the middle of one. Changes nothing."""
        ...


def fork_state(state: StateT, *, rename: Callable[[CancelScope], CancelScope] = lambda scope: scope) -> StateT:
    """Return a copy of a state that goes its own way: it shares the tensors and the valid slabs.

    Args:
        state: A loop's state, between two steps.
        rename: Gives the scopes of the copy.
    """
    copied: StateT = _copy(state, rename)
    return copied


def attach_slabs(state: Any, pools: dict[str, SlabPool]) -> None:
    """Take leases for the slabs of a state that was read, or moved here.

    Raises:
        CacheFullError: A pool has too few.
        StateError: There is no such pool.
    """
    for table in _tables(state):
        pool = pools.get(table.cache)
        if pool is None:
            raise StateError(f"the state holds slabs of cache {table.cache!r}, which is not here")
        table.attach(pool)


def _copy(value: Any, rename: Callable[[CancelScope], CancelScope]) -> Any:
    if isinstance(value, CancelScope):
        return rename(value)
    if isinstance(value, SlabTable):
        return value.fork()
    if isinstance(value, torch.Generator):
        return value.clone_state()
    if type(value) in (tuple, list):
        return type(value)(_copy(part, rename) for part in value)
    if type(value) is dict:
        return {key: _copy(part, rename) for key, part in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _copy_fields(value, rename)
    return value


def _copy_fields(value: Any, rename: Callable[[CancelScope], CancelScope]) -> Any:
    made: Any = object.__new__(type(value))
    for field in dataclasses.fields(value):
        part = getattr(value, field.name)
        object.__setattr__(made, field.name, _copy(part, rename) if is_stored(field) else part)
    return made


def _tables(value: Any) -> list[SlabTable]:
    if isinstance(value, SlabTable):
        return [value]
    if type(value) in (tuple, list):
        return [table for part in value for table in _tables(part)]
    if type(value) is dict:
        return [table for part in value.values() for table in _tables(part)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [table for field in dataclasses.fields(value) for table in _tables(getattr(value, field.name))]
    return []
