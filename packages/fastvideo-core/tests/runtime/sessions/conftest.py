"""Streams of the tiny family, and what they give when nothing disturbs them."""

from __future__ import annotations

import pytest

from fastvideo_core import Engine
from fastvideo_core.runtime.sessions import SessionOptions
from fastvideo_testing.streams import Reader
from fastvideo_testing.tiny import tiny_causal_card, write_tiny_checkpoint

PARAMETERS = {"seed": 5, "num_inference_steps": 2, "height": 16, "width": 16}


@pytest.fixture(scope="session")
def causal_folder(tmp_path_factory):
    """A checkpoint of the family; tests must not write into it."""
    folder = tmp_path_factory.mktemp("tiny-causal")
    write_tiny_checkpoint(folder)
    return folder


@pytest.fixture
def causal_card(causal_folder):
    return tiny_causal_card(causal_folder)


@pytest.fixture
def engine(causal_card):
    with Engine.open(causal_card) as opened:
        yield opened
        for session in opened.sessions:
            session.close()
        pool = opened.caches.slabs["chunk_kv"]
        assert pool.num_free == pool.num_slabs, "slabs leaked"


@pytest.fixture
def begin(engine):
    """Begin a session that is exact, so that its bits do not depend on who shares its calls."""

    def make(prompt="a red circle", *, parked=None, session_id=None, options=None, **given):
        chosen = options or SessionOptions(**{"buffer_s": 1000.0, **given})
        return engine.session(prompt, exact=True, options=chosen, parked=parked, session_id=session_id, **PARAMETERS)

    return make


@pytest.fixture
def alone(engine, begin):
    """The first chunks of a session that nothing disturbs."""
    session = begin(num_chunks=8)
    return Reader(session).read()
