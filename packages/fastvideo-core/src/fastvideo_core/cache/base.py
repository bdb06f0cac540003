"""The key of cached content, every field that can change what it means, and what a request holds of a cache."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType, TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

from fastvideo_core.errors import ExecutionError

__all__ = ["NOT_STORED", "CacheHandle", "CacheKey", "EntryHandle", "SharedEntry", "is_stored"]

NOT_STORED: Mapping[str, bool] = MappingProxyType({"fastvideo_is_stored": False})
"""Metadata of a field that refers to something of this process, such as a place in a pool: the state codec does not
write it, and gives it its default when the state is read."""


def is_stored(field: dataclasses.Field[Any]) -> bool:
    """Tell whether the state codec writes a dataclass's field."""
    stored: bool = field.metadata.get("fastvideo_is_stored", True)
    return stored


@dataclass(frozen=True, slots=True)
class CacheKey:
    """What cached content depends on. Equal keys mean interchangeable content, bits included.

    Attributes:
        model_id: The card.
        component_id: The component whose result it is.
        loop_id: The loop, where the content belongs to one.
        weights_version: Content version of the weights.
        adapter_versions: Adapters with their versions, in the order in which they are stacked.
        precision: Number format.
        parallel_plan_hash: Parallel plan that the content was computed under; "" for one device.
        shape_sig: Shapes.
        layout_sig: Layout in memory, and the numerics variant (exact or fast).
        scheduler_sig: Sampler and schedule, where they matter.
        guidance_sig: Guidance, where it matters.
        seed: Seed, where it matters.
        input_hashes: Digests of the inputs, by name, sorted.
        step_index: Step of the loop, where it matters.
        contract_version: Version of the card's `CacheContract`.

    Source: section 7.1 of the runtime's design.
    """

    model_id: str
    component_id: str
    loop_id: str | None = None
    weights_version: str = ""
    adapter_versions: tuple[tuple[str, str], ...] = ()
    precision: str = ""
    parallel_plan_hash: str = ""
    shape_sig: str = ""
    layout_sig: str = ""
    scheduler_sig: str | None = None
    guidance_sig: str | None = None
    seed: int | None = None
    input_hashes: tuple[tuple[str, str], ...] = ()
    step_index: int | None = None
    contract_version: str = "1"


class CacheHandle(ABC):
    """What a request holds of a pool, whatever its class; released exactly once, and a context manager that does so.

    Attributes:
        pool: Name of the pool, for messages.
    """

    __slots__ = ("_is_released", "pool")

    def __init__(self, pool: str) -> None:
        self.pool = pool
        self._is_released = False

    @property
    @abstractmethod
    def num_bytes(self) -> int:
        """Bytes of the pool that it stands for; shared ones count for each who holds them."""

    @property
    def is_released(self) -> bool:
        """Whether it was given back."""
        return self._is_released

    def release(self) -> None:
        """Give back what is held.

        Raises:
            ExecutionError: It was given back before.
        """
        self.check_held()
        self._is_released = True
        self._give_back()

    def check_held(self) -> None:
        """Refuse to go on with what was given back.

        Raises:
            ExecutionError: It was.
        """
        if self._is_released:
            raise ExecutionError(f"a handle of cache {self.pool!r} was released before")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._is_released:
            self.release()

    @abstractmethod
    def _give_back(self) -> None:
        """Return it to the pool; called once."""


class SharedEntry(Protocol):
    """A value in a pool, and how many hold it."""

    value: Any
    num_holders: int

    @property
    def num_bytes(self) -> int:
        """Its size."""
        ...


EntryT = TypeVar("EntryT", bound=SharedEntry)


class EntryHandle(CacheHandle, Generic[EntryT]):
    """A hold on an entry that others may hold too.

    Args:
        pool: Name of the pool.
        entry: The entry.
        drop_holder: Told the entry when it is released.
    """

    __slots__ = ("_drop_holder", "_entry")

    def __init__(self, pool: str, entry: EntryT, drop_holder: Callable[[EntryT], None]) -> None:
        super().__init__(pool)
        self._entry: EntryT | None = entry
        self._drop_holder = drop_holder

    @property
    def value(self) -> Any:
        """The value, which whoever holds it only reads.

        Raises:
            ExecutionError: The handle was released.
        """
        self.check_held()
        assert self._entry is not None
        return self._entry.value

    @property
    def num_bytes(self) -> int:
        """Bytes of the value; 0 once released."""
        return 0 if self._entry is None else self._entry.num_bytes

    def _give_back(self) -> None:
        entry, self._entry = self._entry, None
        assert entry is not None
        self._drop_holder(entry)
