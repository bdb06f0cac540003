"""The block cache against the library's own wrapper of blocks, which is given a context of its own for each branch."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
import torch
from cache_dit import ForwardPattern
from cache_dit.caching import CachedContext, CachedContextManager, UnifiedBlocks

from fastvideo_cachedit import masks
from fastvideo_cachedit.blocks import BlockCache
from fastvideo_cachedit.forecasts import calibrator_config
from fastvideo_cachedit.options import BlockOptions
from fastvideo_cachedit.state import BlockState, make_context
from fastvideo_core.errors import ParameterError, PluginError
from fastvideo_core.loop.hooks import BlockCall
from fastvideo_core.loop.state import decode_state, encode_state

STEPS, WIDTH = 30, 16


class Block(torch.nn.Module):
    """A block of some width, with the arguments that the library asks for."""

    def __init__(self, seed):
        super().__init__()
        weight = torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(seed))
        self.weight = torch.nn.Parameter(weight / WIDTH**0.5, requires_grad=False)
        self.num_calls = 0

    def forward(self, hidden_states, encoder_hidden_states):
        self.num_calls += 1
        return hidden_states + 0.3 * torch.tanh(hidden_states @ self.weight + encoder_hidden_states)


@pytest.fixture
def blocks():
    return torch.nn.ModuleList([Block(seed) for seed in range(5)])


def course(seed, speed=0.15):
    """Streams that change from step to step, at a speed of their own."""
    generator = torch.Generator().manual_seed(seed)
    stream, way = (torch.randn(1, 6, WIDTH, generator=generator) for _ in range(2))
    for index in range(STEPS):
        yield stream + speed * index * way + 0.02 * torch.randn(1, 6, WIDTH, generator=generator)


def call(options, index, branch="cond", num_predictions=STEPS):
    step = SimpleNamespace(step_index=index + 1, num_steps=STEPS + 1)
    return BlockCall(step, "transformer", branch, options, index, num_predictions)


def by_library(blocks, options, streams, text):
    """Run a branch by the library alone."""
    manager = CachedContextManager("reference")
    context = CachedContext(
        name="branch",
        cache_config=make_context(options, None, 0, masks.mask_of(options.mask, STEPS)).cache_config,
        calibrator_config=calibrator_config(options.forecast, options.taylor_order),
    )
    wrapped = UnifiedBlocks(
        blocks,
        transformer=torch.nn.Identity(),
        forward_pattern=ForwardPattern.Pattern_2,
        check_forward_pattern=False,
        cache_prefix="blocks",
        cache_context=context,
        context_manager=manager,
    )
    with torch.no_grad():
        outputs = [wrapped(stream, text) for stream in streams]
    return outputs, context.cached_steps


def by_cache(blocks, options, streams, text, through_bytes=False):
    cache, state, outputs, shares = BlockCache(BlockOptions()), None, [], []
    with torch.no_grad():
        for index, stream in enumerate(streams):
            before = stream.clone()
            outcome = cache.run_blocks(call(options, index), state, tuple(blocks), stream, text)
            assert torch.equal(stream, before)
            state = decode_state(encode_state(outcome.state), BlockState) if through_bytes else outcome.state
            outputs.append(outcome.hidden)
            shares.append(outcome.computed_share)
    part = (options.first_blocks + options.last_blocks) / len(blocks)
    assert shares == [part if index in state.reused else 1.0 for index in range(len(shares))]
    return outputs, list(state.reused), state


CASES = {
    "defaults": {},
    "fbcache": {"forecast": "none"},
    "foca": {"forecast": "foca"},
    "second order": {"taylor_order": 2, "threshold": 0.4},
    "third order": {"taylor_order": 3, "threshold": 1.0, "max_continuous_cached_steps": 2},
    "f2b1": {"first_blocks": 2, "last_blocks": 1, "forecast": "none"},
    "f1b2": {"last_blocks": 2},
    "as many as there are": {"first_blocks": 3, "last_blocks": 2},
    "no limit in a row": {"max_continuous_cached_steps": None, "threshold": 1.0},
    "seven at most": {"max_cached_steps": 7, "threshold": 1.0},
    "short warm-up": {"warmup_steps": 1, "threshold": 0.5},
    "static mask": {"mask": "medium"},
    "static mask without forecast": {"mask": "fast", "forecast": "none"},
    "dynamic mask": {"mask": "ultra", "mask_policy": "dynamic", "threshold": 0.3},
    "own mask": {"mask": [1, 0] * 15},
}


@pytest.mark.parametrize("through_bytes", [False, True], ids=["", "through bytes"])
@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
def test_a_branch_has_the_librarys_bits(options, through_bytes, blocks):
    options = BlockOptions(**options)
    text = torch.randn(WIDTH, generator=torch.Generator().manual_seed(9))
    expected, reused_expected = by_library(blocks, options, list(course(1)), text)
    got, reused, state = by_cache(blocks, options, course(1), text, through_bytes)
    assert reused == reused_expected == list(state.reused)
    assert all(torch.equal(one, other) for one, other in zip(got, expected, strict=True))
    if options.first_blocks + options.last_blocks < 5:
        assert 0 < len(reused) < STEPS, "both happened"


def run_rows(blocks, options, texts, seeds, speeds):
    """Run branches as rows of one call, their stream expanded by the first block."""
    cache, states, outputs = BlockCache(BlockOptions()), [None] * len(texts), []
    shared = torch.stack(texts).unsqueeze(1)
    rows_seen = []

    def select(rows):
        rows_seen.append(tuple(rows))
        return (shared[list(rows)],)

    with torch.no_grad():
        for index, stream in enumerate(zip(*(course(s, v) for s, v in zip(seeds, speeds, strict=True)), strict=True)):
            calls = [call(options, index, branch) for branch in ("cond", "uncond")]
            outcome = cache.run_branches(calls, states, tuple(blocks), torch.cat(stream), select, shared)
            states = outcome.states
            outputs.append(outcome.hidden)
    return outputs, states, rows_seen


def test_branches_in_one_call_decide_each_for_itself(blocks):
    options = BlockOptions(threshold=0.12, max_continuous_cached_steps=None)
    texts = [torch.full((WIDTH,), 0.1), torch.full((WIDTH,), -0.4)]
    outputs, states, rows_seen = run_rows(blocks, options, texts, (1, 2), (0.02, 0.3))
    assert {(0,), (1,), (0, 1)} <= set(rows_seen), "alone, the other alone, and both"
    assert states[0].reused != states[1].reused
    for row, (seed, speed) in enumerate(((1, 0.02), (2, 0.3))):
        expected, reused = by_library(blocks, options, list(course(seed, speed)), texts[row])
        assert reused == list(states[row].reused)
        for got, one in zip(outputs, expected, strict=True):
            torch.testing.assert_close(got[row : row + 1], one, rtol=1e-5, atol=1e-6)


def test_rows_share_no_memory_in_their_states(blocks):
    texts = [torch.zeros(WIDTH), torch.ones(WIDTH)]
    _, states, _ = run_rows(blocks, BlockOptions(forecast="none"), texts, (1, 2), (0.1, 0.1))
    tensors = [tensor for state in states for tensor in (state.first_added, state.rest_added)]
    assert len({tensor.untyped_storage().data_ptr() for tensor in tensors}) == 4
    assert all(tensor.untyped_storage().nbytes() == tensor.nbytes for tensor in tensors), "no more is kept alive"


def test_a_shared_stream_is_taken_as_the_first_block_takes_it(blocks):
    """Before the first block branches may be one row; what it adds is counted from that row."""
    options, texts = BlockOptions(), torch.randn(2, 1, WIDTH, generator=torch.Generator().manual_seed(3))
    stream = next(course(4))
    calls = [call(options, 0, branch) for branch in ("cond", "uncond")]
    with torch.no_grad():
        outcome = BlockCache(options).run_branches(
            calls, [None, None], tuple(blocks), stream, lambda _: (texts,), texts
        )
        expected = stream.expand(2, -1, -1)
        first = blocks[0](expected, texts) - expected
    for row, state in enumerate(outcome.states):
        torch.testing.assert_close(state.first_added, first[row : row + 1])


def test_two_streams_in_turn_have_the_bits_that_each_has_alone(blocks):
    options, text = BlockOptions(), torch.zeros(WIDTH)
    alone = [by_cache(blocks, options, course(seed), text)[0] for seed in (1, 2)]
    cache, states, got = BlockCache(options), [None, None], ([], [])
    with torch.no_grad():
        for index, pair in enumerate(zip(course(1), course(2), strict=True)):
            for one, stream in enumerate(pair):
                outcome = cache.run_blocks(call(options, index), states[one], tuple(blocks), stream, text)
                states[one] = outcome.state
                got[one].append(outcome.hidden)
    assert all(torch.equal(a, b) for one, two in zip(alone, got, strict=True) for a, b in zip(one, two, strict=True))


class Adds(torch.nn.Module):
    """Adds what a box holds; what blocks add then depends on the step alone."""

    def __init__(self):
        super().__init__()
        self.amount = 0.0

    def forward(self, hidden, _):
        return hidden + self.amount


def test_a_course_that_is_linear_is_carried_on_exactly_also_over_gaps():
    """TaylorSeer of order one is exact on a line, whichever steps the branch is asked for."""
    first, rest = Adds(), Adds()
    first.amount = 1.0
    options = BlockOptions(threshold=1.0, warmup_steps=6, max_continuous_cached_steps=None)
    state = None
    for index in [0, 1, 2, 3, 4, 5, 6, 9, 10, 14]:
        rest.amount = 2.0 + 0.5 * index
        outcome = BlockCache(options).run_blocks(call(options, index), state, (first, rest), torch.zeros(1, 2, 3), None)
        state = outcome.state
        assert (outcome.computed_share == 1) == (index < 6)
        torch.testing.assert_close(outcome.hidden, torch.full((1, 2, 3), 3.0 + 0.5 * index))


def test_an_expert_that_comes_in_later_begins_with_steps_that_are_computed(blocks):
    options, state, reused = BlockOptions(mask="medium"), None, []
    with torch.no_grad():
        for index, stream in itertools.islice(enumerate(course(1)), 11, STEPS):
            outcome = BlockCache(options).run_blocks(
                call(options, index), state, tuple(blocks), stream, torch.zeros(WIDTH)
            )
            state = outcome.state
            reused += [] if outcome.computed_share == 1 else [index]
    mask = masks.mask_of("medium", STEPS)
    assert reused == [index for index in range(15, STEPS) if mask[index] == 0]
    assert state.begin == 11


def test_not_a_number_is_never_used_again(blocks):
    """A stream that is no number changes by no number, which is not below any threshold."""
    options = BlockOptions(warmup_steps=1, threshold=0.9)
    outcome = None
    for stream in (torch.zeros(1, 6, WIDTH), torch.full((1, 6, WIDTH), float("nan"))):
        state = None if outcome is None else outcome.state
        outcome = BlockCache(options).run_blocks(
            call(options, 0 if outcome is None else 1), state, tuple(blocks), stream, torch.zeros(WIDTH)
        )
    assert outcome.computed_share == 1


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"first_blocks": 6}, "first_blocks=6: .*are 6 together, and the model has 5 blocks; allowed: 1 to 5"),
        ({"first_blocks": 3, "last_blocks": 3}, "first_blocks=3: .*are 6 together.*; allowed: 1 to 2"),
        ({"last_blocks": 5}, "first_blocks=1: .*allowed: fewer of both"),
    ],
)
def test_more_blocks_than_the_model_has_are_refused(options, why, blocks):
    options = BlockOptions(**options)
    with pytest.raises(ParameterError, match=why):
        BlockCache(options).run_blocks(call(options, 0), None, tuple(blocks), next(course(1)), torch.zeros(WIDTH))


def test_where_the_family_does_not_say_each_step_makes_one_prediction(blocks):
    options = BlockOptions(mask=[1, 0, 1])
    step = SimpleNamespace(step_index=1, num_steps=3)
    at = BlockCall(step, "transformer", "cond", options)
    outcome = BlockCache(options).run_blocks(at, None, tuple(blocks), next(course(1)), torch.zeros(WIDTH))
    assert outcome.state.begin == 1
    with pytest.raises(PluginError, match="the mask has 3 numbers, and the loop makes 30 predictions"):
        BlockCache(options).run_blocks(call(options, 0), None, tuple(blocks), next(course(1)), torch.zeros(WIDTH))
    endless = BlockCall(SimpleNamespace(step_index=1, num_steps=None), "transformer", "cond", options)
    with pytest.raises(PluginError, match="loops that know how many steps they take"):
        BlockCache(options).run_blocks(endless, None, tuple(blocks), next(course(1)), torch.zeros(WIDTH))
