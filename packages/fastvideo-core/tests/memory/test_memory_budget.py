from __future__ import annotations

import math
import subprocess
import sys
import time

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from fastvideo_core.errors import ExecutionError, ParameterError, ResourceError
from fastvideo_core.memory import MemoryBudget, conservative_limit

LIMIT = 1000


class Machine(RuleBasedStateMachine):
    """The budget beside a plain list of what is held."""

    held = Bundle("held")

    def __init__(self) -> None:
        super().__init__()
        self.budget = MemoryBudget(LIMIT)
        self.model: dict[int, tuple[str, int]] = {}
        self.peak = 0

    @property
    def used(self) -> int:
        return sum(num_bytes for _, num_bytes in self.model.values())

    @rule(target=held, tag=st.sampled_from(["transformer", "requests", "text"]), num_bytes=st.integers(0, 600))
    def reserve(self, tag, num_bytes):
        if self.used + num_bytes > LIMIT:
            with pytest.raises(ResourceError, match=f"{tag} asks for {num_bytes} bytes on cpu; {LIMIT - self.used}"):
                self.budget.reserve(tag, num_bytes)
            return None
        reservation = self.budget.reserve(tag, num_bytes)
        self.model[id(reservation)] = (tag, num_bytes)
        return reservation

    @rule(reservation=held, num_bytes=st.integers(0, 600))
    def resize(self, reservation, num_bytes):
        if reservation is None or id(reservation) not in self.model:
            return
        tag, before = self.model[id(reservation)]
        if num_bytes > before and self.used + num_bytes - before > LIMIT:
            with pytest.raises(ResourceError):
                reservation.resize(num_bytes)
            return
        reservation.resize(num_bytes)
        self.model[id(reservation)] = (tag, num_bytes)

    @rule(reservation=consumes(held))
    def release(self, reservation):
        if reservation is None:
            return
        reservation.release()
        del self.model[id(reservation)]
        with pytest.raises(ExecutionError, match="released before"):
            reservation.release()

    @invariant()
    def adds_up(self):
        self.peak = max(self.peak, self.used)
        by_tag: dict[str, int] = {}
        for tag, num_bytes in self.model.values():
            by_tag[tag] = by_tag.get(tag, 0) + num_bytes
        assert self.budget.by_tag() == {tag: count for tag, count in by_tag.items() if count}
        assert self.budget.used_bytes == self.used <= LIMIT
        assert self.budget.free_bytes == LIMIT - self.used
        assert self.budget.peak_bytes == self.peak


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=60, stateful_step_count=30)


def test_a_refusal_says_who_has_what():
    budget = MemoryBudget(10_000_000_000, device="cuda:0")
    budget.reserve("transformer", 8_000_000_000)
    budget.reserve("requests", 500_000_000)
    with pytest.raises(ResourceError) as caught:
        budget.reserve("vae", 2_000_000_000)
    assert str(caught.value) == (
        "vae asks for 2 GB on cuda:0; 1.5 GB of 10 GB are free (transformer 8 GB, requests 500 MB)"
    )
    assert budget.used_bytes == 8_500_000_000


def test_leaving_the_block_releases_even_on_an_error():
    budget = MemoryBudget(10)
    with pytest.raises(ZeroDivisionError), budget.reserve("requests", 10):
        assert budget.free_bytes == 0
        raise ZeroDivisionError
    assert budget.free_bytes == 10


def test_a_reservation_that_was_released_inside_its_block_is_released_once():
    budget = MemoryBudget(10)
    with budget.reserve("requests", 4) as reservation:
        reservation.release()
        assert reservation.is_released
    assert budget.used_bytes == 0
    with pytest.raises(ExecutionError):
        reservation.resize(1)


def test_sizes_below_zero_are_refused():
    with pytest.raises(ParameterError, match="num_bytes=-1"):
        MemoryBudget(10).reserve("requests", -1)
    with pytest.raises(ParameterError, match="limit_bytes=-1"):
        MemoryBudget(-1)


def test_the_limit_leaves_the_larger_headroom():
    assert conservative_limit(1000) == 900
    assert conservative_limit(1000, headroom_share=0.1, headroom_bytes=300) == 700
    assert conservative_limit(100, headroom_bytes=300) == 0
    with pytest.raises(ParameterError, match="headroom_share"):
        conservative_limit(1, headroom_share=1.5)


def test_reserving_is_fast():
    budget = MemoryBudget(10**12)
    best_s = math.inf
    for _ in range(20):
        start = time.perf_counter()
        for _ in range(200):
            budget.reserve("requests", 1000).release()
        best_s = min(best_s, (time.perf_counter() - start) / 200)
    # A reservation and its release take a little over a microsecond; a busy machine gets room.
    assert best_s < 1e-5


def test_the_package_imports_no_torch():
    code = "import sys, fastvideo_core.memory, fastvideo_core.cache; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
