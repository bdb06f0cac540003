"""The family's streams: the interleave gate, and what a chunk sees."""

from __future__ import annotations

import pytest
import torch

from fastvideo_core.cache import SlabPool
from fastvideo_core.errors import InputError
from fastvideo_core.loop.base import LoopContext, LoopRequest
from fastvideo_core.loop.chunks import PushImage, PushText, fork_state
from fastvideo_core.loop.driver import LoopRun
from fastvideo_core.loop.state import decode_state, encode_state
from fastvideo_core.request.cancel import CancelScope, CancelState
from fastvideo_core.request.parameters import resolve_parameters
from fastvideo_core.runtime.loading import load_instance
from fastvideo_core.runtime.run import make_generator
from fastvideo_core.runtime.steps import run_call
from fastvideo_testing.gate import run_gate
from fastvideo_testing.tiny import tiny_causal_card, write_tiny_checkpoint
from fastvideo_testing.tiny.causal import CACHE, NUM_RECENT, NUM_SINK, CausalState

PARAMETERS = {"seed": 3, "num_inference_steps": 2, "height": 16, "width": 16}


@pytest.fixture(scope="module")
def instance(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    write_tiny_checkpoint(folder)
    return load_instance(tiny_causal_card(folder))


@pytest.fixture
def pool():
    return SlabPool(CACHE, 16, 16)


@pytest.fixture
def run(instance, pool):
    scope = CancelScope("request", "r").child("loop", "rollout")
    parameters = resolve_parameters(instance.card.task("text_to_stream"), PARAMETERS)
    embeds = (torch.randn(1, 8, generator=make_generator(1)),)
    request = LoopRequest("r", "rollout", "rollout", parameters, {"embeds": embeds}, scope, is_session=True)
    loop = instance.loop("rollout")
    state = loop.init(request, LoopContext(make_generator, {CACHE: pool}))
    return LoopRun(loop, state, scope=scope, cancel=CancelState())


def step(instance, run):
    plan = run.plan()
    (result,) = run_call(instance, [plan]).outcomes
    run.commit(plan, result)
    return result


def chunk(instance, run):
    """Make a chunk, and return its frames."""
    while True:
        result = step(instance, run)
        if run.loop.boundary(run.state) is not None:
            return result.chunks[0].data


def test_requests_among_others_give_what_they_give_alone(instance):
    small = {"num_inference_steps": 2, "num_chunks": 3, "height": 16, "width": 16, "guidance_scale": 1.0}
    report = run_gate(instance, parameters=small)
    assert all(mode.relative_error < 1e-4 for mode in report.modes)


def test_a_window_is_the_sink_and_the_latest(instance, run, pool):
    for _ in range(6):
        chunk(instance, run)
    kept = [slab.chunk for slab in run.state.table.valid()]
    assert kept == [*range(NUM_SINK), *range(6 - NUM_RECENT, 6)]
    assert pool.num_used == len(kept)
    assert sorted(run.state.clean) == kept


def test_only_the_commit_pass_leaves_a_valid_slab(instance, run):
    chunk(instance, run)
    step(instance, run)
    assert [slab.is_valid for slab in run.state.table.slabs] == [True, False]
    step(instance, run)
    assert [slab.is_valid for slab in run.state.table.slabs] == [True, False]
    step(instance, run)  # the commit pass
    assert [slab.is_valid for slab in run.state.table.slabs] == [True, True]


def test_a_new_prompt_recaches_all_but_the_sink(instance, run):
    for _ in range(3):
        chunk(instance, run)
    before = {slab.chunk: slab for slab in run.state.table.valid()}
    run.apply(PushText("a blue square"))
    assert run.loop.boundary(run.state) == 3
    step(instance, run)
    step(instance, run)
    after = {slab.chunk: slab for slab in run.state.table.valid()}
    assert after[0] is before[0]
    assert [after[number].key.prompt_version for number in (1, 2)] == [1, 1]
    assert not torch.equal(after[2].tensors["k"], before[2].tensors["k"])
    with pytest.raises(InputError, match="no such event"):
        run.apply(PushImage(torch.zeros(2, 2, 3, dtype=torch.uint8)))


def test_a_stream_goes_through_bytes_and_forks_with_the_same_bits(instance, run, pool):
    for _ in range(2):
        chunk(instance, run)
    step(instance, run)
    other = LoopRun(run.loop, fork_state(run.state), scope=run.scope, cancel=run.cancel)
    read = decode_state(encode_state(run.state), CausalState)
    read.table.attach(pool)
    third = LoopRun(run.loop, read, scope=run.scope, cancel=run.cancel)
    # A fork shares the valid slabs; that of the chunk in progress is the original's, so that it begins that chunk anew.
    frames = chunk(instance, run)
    assert torch.equal(chunk(instance, third), frames)
    assert [slab.chunk for slab in other.state.table.slabs] == [0, 1]


def test_chunks_do_not_depend_on_the_other_chunks_noise(instance, run):
    """Each chunk's noise is of its number and the seed: the first chunk of a stream says nothing of the third's."""
    first = [chunk(instance, run) for _ in range(3)]
    assert not torch.equal(first[1], first[2])
