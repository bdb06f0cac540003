"""Whatever is asked of sessions in whatever order: their bits, their states, and what is held of the pool."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from fastvideo_core import Engine
from fastvideo_core.errors import ChunkGoneError, SessionEndedError, SessionLimitError
from fastvideo_core.runtime.engine import RuntimeOptions
from fastvideo_core.runtime.sessions import SessionLimits, SessionOptions
from fastvideo_testing.streams import Reader, same_chunks, wait_until
from fastvideo_testing.tiny import tiny_causal_card, write_tiny_checkpoint

NUM_CHUNKS = 5
LIMITS = SessionLimits(max_live=3, max_suspended=2, max_total=4)
PARAMETERS = {"seed": 5, "num_inference_steps": 1, "height": 16, "width": 16}


class Lifecycle(RuleBasedStateMachine):
    """Sessions of one engine, all with one prompt and seed, so that each has the chunks of the one that runs alone."""

    names = Bundle("names")

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        write_tiny_checkpoint(self.folder)
        options = RuntimeOptions(sessions=LIMITS)
        self.engine = Engine.open(tiny_causal_card(self.folder), options=options)
        self.readers: dict[str, Reader] = {}
        self.first: dict[str, int] = {}
        whole = self._session("alone", num_chunks=NUM_CHUNKS)
        self.alone = dict(Reader(whole).read())

    def _session(self, name: str, **given) -> object:
        options = SessionOptions(**{"buffer_s": 1.0, "history_chunks": 1, "num_chunks": NUM_CHUNKS, **given})
        return self.engine.session("a red circle", exact=True, options=options, session_id=name, **PARAMETERS)

    def _state(self, name: str) -> str:
        return str(self.readers[name].session.state)

    def _count(self, state: str) -> int:
        return sum(self._state(name) == state for name in self.readers)

    def _take(self, session, first: int) -> str:
        name = session.session_id
        self.readers[name], self.first[name] = Reader(session), first
        return name

    @rule(target=names, number=st.integers(0, 1 << 30))
    def open(self, number: int) -> str:
        name = f"s{len(self.first)}-{number}"
        is_full = len(self.engine.sessions) >= LIMITS.max_total or self._count("execution") >= LIMITS.max_live
        try:
            return self._take(self._session(name), 0)
        except SessionLimitError:
            assert is_full or len(self.engine.sessions) >= LIMITS.max_total or self._count("execution") >= 3
            return name if name in self.readers else next(iter(self.readers), "")

    @rule(name=names)
    def read_one(self, name: str) -> None:
        reader = self.readers.get(name)
        if reader is None or self._state(name) != "execution":
            return
        reader.read(len(reader.chunks) + 1)

    @rule(name=names)
    def suspend(self, name: str) -> None:
        reader = self.readers.get(name)
        if reader is None:
            return
        try:
            reader.session.suspend()
        except (SessionEndedError, SessionLimitError):
            return
        assert self._state(name) == "suspend"

    @rule(name=names)
    def resume(self, name: str) -> None:
        reader = self.readers.get(name)
        if reader is None:
            return
        try:
            reader.session.resume()
        except (SessionEndedError, SessionLimitError):
            return

    @rule(target=names, name=names, chunk=st.none() | st.integers(0, NUM_CHUNKS))
    def fork(self, name: str, chunk: int | None) -> str:
        reader = self.readers.get(name)
        if reader is None:
            return name
        try:
            child = reader.session.fork(chunk)
        except (SessionEndedError, SessionLimitError, ChunkGoneError):
            return name
        return self._take(child, child.side.place.chunk)

    @rule(name=consumes(names), at=st.sampled_from(["step", "chunk"]))
    def close(self, name: str, at: str) -> None:
        reader = self.readers.pop(name, None)
        if reader is None:
            return
        reader.session.close(at=at)
        assert str(reader.session.state) == "terminate"
        reader.read()
        self._check(reader)

    @invariant()
    def each_has_its_chunks(self) -> None:
        for reader in getattr(self, "readers", {}).values():
            self._check(reader)

    @invariant()
    def no_more_than_are_allowed(self) -> None:
        if not hasattr(self, "engine"):
            return
        assert len(self.engine.sessions) <= LIMITS.max_total
        assert self._count("execution") <= LIMITS.max_live

    def _check(self, reader: Reader) -> None:
        assert all(torch.equal(frames, self.alone[number]) for number, frames in reader.chunks.items())
        numbers = sorted(reader.chunks)
        if numbers:
            assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        for reader in self.readers.values():
            reader.session.close()
        self.readers.clear()
        pool = self.engine.caches.slabs["chunk_kv"]
        wait_until(lambda: pool.num_free == pool.num_slabs)
        self.engine.close()
        shutil.rmtree(self.folder)


TestLifecycle = Lifecycle.TestCase
TestLifecycle.settings = settings(
    max_examples=8, stateful_step_count=15, deadline=None, suppress_health_check=list(HealthCheck)
)


def test_chunks_compare_by_number_and_bits():
    one = {0: torch.zeros(2)}
    assert same_chunks(one, {0: torch.zeros(2)})
    assert not same_chunks(one, {0: torch.ones(2)})
    assert not same_chunks(one, {1: torch.zeros(2)})
