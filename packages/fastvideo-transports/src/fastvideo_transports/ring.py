"""A ring of slots in shared memory: one process fills them, another empties them, and both copy at the same time.

The memory has no name: it is gone when both processes are, whatever ended them. Which slots are full goes over a
socket: eight bytes with a size from the writer for each that is full, one byte from the reader for each that is empty.
"""

from __future__ import annotations

import mmap
import os
import socket
from collections.abc import Callable

import torch

__all__ = ["NUM_SLOTS", "SLOT_BYTES", "RingReader", "RingWriter", "make_memory"]

SLOT_BYTES = 4 << 20
"""A slot stays in the processor's cache between the copy into it and the copy out of it."""

NUM_SLOTS = 8

Exchange = Callable[[socket.socket, int], bytes]
"""Receives so many bytes, in time."""


def make_memory() -> int:
    """Return a file descriptor of the memory of one ring."""
    descriptor = os.memfd_create("fastvideo-ring", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, NUM_SLOTS * SLOT_BYTES)
    return descriptor


def _slots(descriptor: int) -> tuple[mmap.mmap, torch.Tensor]:
    """Map a ring and close its descriptor; the tensor is valid as long as the map."""
    memory = mmap.mmap(descriptor, NUM_SLOTS * SLOT_BYTES)
    os.close(descriptor)
    return memory, torch.frombuffer(memory, dtype=torch.uint8).view(NUM_SLOTS, SLOT_BYTES)


class RingWriter:
    """Fills slots.

    Args:
        descriptor: Memory of the ring, which is this object's from here on.
        link: Where sizes go and empty slots come back.
    """

    def __init__(self, descriptor: int, link: socket.socket) -> None:
        self._memory, self._slots = _slots(descriptor)
        self._link = link
        self._slot = 0
        self._num_filled = 0
        self._num_free = NUM_SLOTS

    def write(self, data: torch.Tensor, receive: Exchange) -> None:
        """Copy bytes into slots, and hand on each that is full.

        Args:
            data: A contiguous tensor of bytes.
            receive: See `Exchange`.
        """
        done = 0
        while done < len(data):
            if self._num_free == 0:
                self._num_free += len(receive(self._link, 1))
            size = min(len(data) - done, SLOT_BYTES - self._num_filled)
            self._slots[self._slot, self._num_filled : self._num_filled + size].copy_(data[done : done + size])
            done += size
            self._num_filled += size
            if self._num_filled == SLOT_BYTES:
                self.flush()

    def flush(self) -> None:
        """Hand on what has been copied."""
        if self._num_filled:
            self._link.sendall(self._num_filled.to_bytes(8, "little"))
            self._slot = (self._slot + 1) % NUM_SLOTS
            self._num_filled = 0
            self._num_free -= 1


class RingReader:
    """Empties slots.

    Args:
        descriptor: Memory of the ring, which is this object's from here on.
        link: Where sizes come from and empty slots go to.
    """

    def __init__(self, descriptor: int, link: socket.socket) -> None:
        self._memory, self._slots = _slots(descriptor)
        self._link = link
        self._slot = 0
        self._begin = self._end = 0

    def read_into(self, data: torch.Tensor, receive: Exchange) -> None:
        """Copy the next bytes out of slots, and hand each back that is empty.

        Args:
            data: A contiguous tensor of bytes, which is filled.
            receive: See `Exchange`.
        """
        done = 0
        while done < len(data):
            if self._begin == self._end:
                self._begin, self._end = 0, int.from_bytes(receive(self._link, 8), "little")
            size = min(len(data) - done, self._end - self._begin)
            data[done : done + size].copy_(self._slots[self._slot, self._begin : self._begin + size])
            done += size
            self._begin += size
            if self._begin == self._end:
                self._slot = (self._slot + 1) % NUM_SLOTS
                self._hand_back()

    def _hand_back(self) -> None:
        try:
            self._link.sendall(b"\0")
        except OSError:
            return  # the writer has gone, and needs no slot; what it has sent is still there
