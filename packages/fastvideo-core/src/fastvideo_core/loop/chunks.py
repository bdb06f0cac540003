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

__all__ = ["ChunkLoop", "Push", "PushAction", "PushImage", "PushText", "attach_slabs", "fork_state", "move_state"]

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
    copied: StateT = _copy(state, _Copying(rename, None))
    return copied


def move_state(state: StateT, move: Callable[[torch.Tensor], torch.Tensor]) -> StateT:
    """Return a copy of a state that is somewhere else: what it holds of pools and of this process stays behind.

    Args:
        state: A loop's state, between two steps.
        move: Gives the tensor of the copy for a tensor of the state, which may be the same one.
    """
    copied: StateT = _copy(state, _Copying(lambda scope: scope, move))
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


@dataclass(frozen=True, slots=True)
class _Copying:
    """How a state is copied.

    Attributes:
        rename: Gives the scopes of the copy.
        move: Gives its tensors; None for a copy that shares all with the original.
    """

    rename: Callable[[CancelScope], CancelScope]
    move: Callable[[torch.Tensor], torch.Tensor] | None


def _copy(value: Any, how: _Copying) -> Any:
    if isinstance(value, torch.Tensor):
        return value if how.move is None else how.move(value)
    if isinstance(value, CancelScope):
        return how.rename(value)
    if isinstance(value, SlabTable):
        return value.fork() if how.move is None else value.moved(how.move)
    if isinstance(value, torch.Generator):
        return value.clone_state()
    if type(value) in (tuple, list):
        return type(value)(_copy(part, how) for part in value)
    if type(value) is dict:
        return {key: _copy(part, how) for key, part in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _copy_fields(value, how)
    return value


def _copy_fields(value: Any, how: _Copying) -> Any:
    made: Any = object.__new__(type(value))
    for field in dataclasses.fields(value):
        part = getattr(value, field.name)
        if is_stored(field):
            part = _copy(part, how)
        elif how.move is not None:
            part = field.default
        object.__setattr__(made, field.name, part)
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
