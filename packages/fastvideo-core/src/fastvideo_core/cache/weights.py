"""The weight cache: adapters and further models between disk, host memory and a device, least recently used first out.

What is on the device is not in host memory too. What has to leave the device goes to host memory if there is room
among what nobody has used for longer, else it is dropped and read again when it is wanted.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import asdict, dataclass
from typing import Any

from fastvideo_core.cache.base import EntryHandle
from fastvideo_core.errors import ParameterError, ResourceError
from fastvideo_core.memory.budget import format_bytes

__all__ = ["WeightCache", "WeightHandle", "WeightLoader", "WeightStats"]


@dataclass(frozen=True, slots=True)
class WeightLoader:
    """How some weights move.

    Attributes:
        num_bytes: Their size, on the device as in host memory.
        read: Reads them from disk into host memory.
        to_device: Takes what `read` or `to_host` gave, and returns it on the device.
        to_host: Takes what `to_device` gave, and returns it in host memory.
    """

    num_bytes: int
    read: Callable[[], Any]
    to_device: Callable[[Any], Any]
    to_host: Callable[[Any], Any]


@dataclass(slots=True)
class WeightStats:
    """What a weight cache did so far.

    Attributes:
        device_hits: Weights that were on the device.
        host_hits: Weights that were in host memory.
        reads: Weights that were read from disk.
        demotions: Weights that went from the device to host memory.
        drops: Weights that were let go of altogether.
        device_bytes: Bytes on the device now.
        host_bytes: Bytes in host memory now.
        max_device_bytes: Budget of the device.
        max_host_bytes: Budget of host memory.
    """

    device_hits: int = 0
    host_hits: int = 0
    reads: int = 0
    demotions: int = 0
    drops: int = 0
    device_bytes: int = 0
    host_bytes: int = 0
    max_device_bytes: int = 0
    max_host_bytes: int = 0

    def to_json(self) -> dict[str, int]:
        """Return the figures by name."""
        return asdict(self)


class _Entry:
    __slots__ = ("key", "loader", "num_holders", "value")

    def __init__(self, key: Hashable, loader: WeightLoader, value: Any) -> None:
        self.key = key
        self.loader = loader
        self.value = value
        self.num_holders = 0

    @property
    def num_bytes(self) -> int:
        return self.loader.num_bytes


def _drop_holder(entry: _Entry) -> None:
    entry.num_holders -= 1


class WeightHandle(EntryHandle[_Entry]):
    """Weights on the device that a request holds."""

    __slots__ = ()


class WeightCache:
    """Weights by key, within a budget of the device and one of host memory.

    Args:
        name: Name in the card.
        device_bytes: Most bytes on the device.
        host_bytes: Most bytes in host memory.
    """

    def __init__(self, name: str, device_bytes: int, host_bytes: int = 0) -> None:
        for field, value in (("device_bytes", device_bytes), ("host_bytes", host_bytes)):
            if value < 0:
                raise ParameterError("not a size", field=f"caches.{name}.{field}", value=value, allowed="0 or more")
        self.name = name
        self.stats = WeightStats(max_device_bytes=device_bytes, max_host_bytes=host_bytes)
        # Both in the order of their last use, the longest unused first.
        self._device: OrderedDict[Hashable, _Entry] = OrderedDict()
        self._host: OrderedDict[Hashable, _Entry] = OrderedDict()

    def acquire(self, key: Hashable, loader: WeightLoader) -> WeightHandle:
        """Return weights on the device, brought there if they are not.

        Args:
            key: What they are; equal keys mean equal bits.
            loader: How they move; ignored where they are known.

        Raises:
            ResourceError: What others hold leaves no room for them.
        """
        entry = self._device.get(key)
        if entry is not None:
            self._device.move_to_end(key)
            self.stats.device_hits += 1
        else:
            entry = self._bring(key, loader)
        entry.num_holders += 1
        return WeightHandle(self.name, entry, _drop_holder)

    def prefetch(self, key: Hashable, loader: WeightLoader) -> bool:
        """Read weights into host memory, so that they are sooner on the device.

        Returns:
            Whether they are in host memory or on the device now; False if they do not fit into host memory.
        """
        if key in self._device or key in self._host:
            return True
        if loader.num_bytes > self.stats.max_host_bytes:
            return False
        self._make_host_room(loader.num_bytes)
        value = loader.read()
        self.stats.reads += 1
        self._put_in_host(_Entry(key, loader, value))
        return True

    def drop(self, key: Hashable) -> bool:
        """Let weights go, wherever they are.

        Returns:
            Whether they are gone; False while somebody holds them.
        """
        entry = self._device.get(key)
        if entry is not None and entry.num_holders:
            return False
        if entry is not None:
            self._take_from_device(entry)
            self.stats.drops += 1
        if key in self._host:
            self._drop_from_host(self._host[key])
        return True

    def _bring(self, key: Hashable, loader: WeightLoader) -> _Entry:
        known = self._host.get(key)
        if known is not None:
            # Out of host memory first: what makes room for it on the device may need its place.
            self._take_from_host(known)
        entry = known or _Entry(key, loader, None)
        try:
            self._make_device_room(key, entry.num_bytes)
            value = loader.read() if known is None else known.value
            entry.value = entry.loader.to_device(value)
        except BaseException:
            if known is not None and self.stats.host_bytes + known.num_bytes <= self.stats.max_host_bytes:
                self._put_in_host(known)
            raise
        if known is None:
            self.stats.reads += 1
        else:
            self.stats.host_hits += 1
        self._device[key] = entry
        self.stats.device_bytes += entry.num_bytes
        return entry

    def _make_device_room(self, key: Hashable, num_bytes: int) -> None:
        stats = self.stats
        held = sum(entry.num_bytes for entry in self._device.values() if entry.num_holders)
        if held + num_bytes > stats.max_device_bytes:
            raise ResourceError(
                f"cache {self.name!r}: {key!s} needs {format_bytes(num_bytes)}; of "
                f"{format_bytes(stats.max_device_bytes)} on the device, {format_bytes(held)} are in use"
            )
        for entry in [entry for entry in self._device.values() if not entry.num_holders]:
            if stats.device_bytes + num_bytes <= stats.max_device_bytes:
                break
            self._demote(entry)

    def _demote(self, entry: _Entry) -> None:
        num_bytes = entry.num_bytes
        if num_bytes > self.stats.max_host_bytes:
            self._take_from_device(entry)
            self.stats.drops += 1
            return
        self._make_host_room(num_bytes)
        entry.value = entry.loader.to_host(entry.value)
        self._take_from_device(entry)
        self._put_in_host(entry)
        self.stats.demotions += 1

    def _make_host_room(self, num_bytes: int) -> None:
        while self.stats.host_bytes + num_bytes > self.stats.max_host_bytes:
            self._drop_from_host(next(iter(self._host.values())))

    def _drop_from_host(self, entry: _Entry) -> None:
        self._take_from_host(entry)
        self.stats.drops += 1

    def _take_from_device(self, entry: _Entry) -> None:
        del self._device[entry.key]
        self.stats.device_bytes -= entry.num_bytes

    def _take_from_host(self, entry: _Entry) -> None:
        del self._host[entry.key]
        self.stats.host_bytes -= entry.num_bytes

    def _put_in_host(self, entry: _Entry) -> None:
        self._host[entry.key] = entry
        self.stats.host_bytes += entry.num_bytes
