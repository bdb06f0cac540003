from __future__ import annotations

import gc
import logging
import warnings
import weakref
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from fastvideo_core.card import GraphCapturePolicy
from fastvideo_core.errors import ParameterError
from fastvideo_core.loop.work import (
    BatchKey,
    CachePlan,
    PlacementHint,
    ResourceRequest,
    ShapeSignature,
    StepCost,
    WorkKind,
    WorkPlan,
)
from fastvideo_core.request.cancel import CancelScope
from fastvideo_core.runtime.compile_cache import CompileCache, CompileKey, CompileOptions
from fastvideo_testing.tiny import tiny_card

CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Inputs:
    scale: torch.Tensor
    index: int = 0
    parts: tuple[torch.Tensor, ...] = ()


class Block(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, stream, inputs):
        return stream + torch.tanh(self.linear(stream)) * inputs.scale


class Backend:
    """A compiler that counts, and runs what it is given as it is."""

    def __init__(self, *, fails=False):
        self.__name__ = "counting"
        self.num_compiled = 0
        self.num_run = 0
        self.fails = fails

    def __call__(self, graph, example_inputs):
        if self.fails:
            raise RuntimeError("no such instruction")
        self.num_compiled += 1

        def run(*args):
            self.num_run += 1
            return graph.forward(*args)

        return run


class Recorder:
    """Stands for graphs: the recorded function only ever sees the tensors that it was recorded with."""

    def __init__(self, *, fails=False):
        self.num_replays = 0
        self.fails = fails

    def capture(self, function, tensors):
        if self.fails:
            raise RuntimeError("operation not permitted when stream is capturing")
        static = [tensor.clone() for tensor in tensors]

        def replay(inputs):
            self.num_replays += 1
            for target, source in zip(static, inputs, strict=True):
                target.copy_(source)
            return function(static)

        return replay


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def card(tmp_path):
    card = tiny_card(tmp_path)
    loops = {
        name: spec.model_copy(update={"graph_capture": GraphCapturePolicy(compile_blocks=True, cuda_graph=True)})
        for name, spec in card.loops.items()
    }
    return card.model_copy(update={"loops": loops})


@pytest.fixture
def blocks():
    torch.manual_seed(0)
    return nn.ModuleList([Block() for _ in range(3)])


def plan_of(tokens=5, *, loop_id="denoise", variant="fast", profile="serve"):
    shape = ShapeSignature.of(tokens=tokens)
    return WorkPlan(
        loop_id=loop_id,
        instance_id="tiny",
        kind=WorkKind.DIFFUSION_STEP,
        shape_sig=shape,
        resources=ResourceRequest(StepCost(1.0)),
        cache=CachePlan(),
        placement=PlacementHint(),
        cancel_scope=CancelScope("request", "r"),
        emits=(),
        batch_key=BatchKey("tiny", "transformer", loop_id, shape, "float32", variant=variant, profile=profile),
        payload=None,
        profile=profile,
    )


def eager(blocks, stream, inputs):
    with torch.no_grad():
        for block in blocks:
            stream = block(stream, inputs)
    return stream


def run(cache, blocks, stream, inputs, plans=None):
    with torch.no_grad():
        return cache.runner(plans or [plan_of(stream.shape[1])])(blocks, stream, inputs)


def case(rows=2, tokens=5, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(rows, tokens, 4, generator=generator),
        Inputs(torch.randn(4, generator=generator), parts=(torch.randn(1, generator=generator),)),
    )


def test_nothing_is_compiled_on_a_processor_by_default(card):
    assert CompileCache(card, CPU).runner([plan_of()]) is None


def test_the_key_says_all_that_code_depends_on():
    plans = [plan_of(7), plan_of(7)]
    assert CompileKey.of(plans, "inductor") == CompileKey(
        model="tiny",
        component="transformer",
        loop="denoise",
        work_kind="diffusion_step",
        shape_sig=ShapeSignature((("tokens", 7), ("plans", 2))),
        precision="float32",
        parallel_plan="",
        backend="inductor",
    )


def test_blocks_are_compiled_once_a_key_and_give_what_eager_ones_give(card, blocks):
    backend = Backend()
    cache = CompileCache(card, CPU, CompileOptions(blocks=True, backend=backend))
    stream, inputs = case()
    runner = cache.runner([plan_of()])
    assert not cache.has_code([plan_of()])
    with torch.no_grad():
        first = runner(blocks, stream, inputs)
    assert runner.is_cold
    assert cache.has_code([plan_of()])
    assert torch.equal(first, eager(blocks, stream, inputs))
    num_compiled = backend.num_compiled
    assert num_compiled == 3
    again = cache.runner([plan_of()])
    other, other_inputs = case(seed=2)
    with torch.no_grad():
        assert torch.equal(again(blocks, other, other_inputs), eager(blocks, other, other_inputs))
    assert not again.is_cold
    assert backend.num_compiled == num_compiled
    assert backend.num_run == 6
    longer = case(tokens=9)
    assert torch.equal(run(cache, blocks, *longer), eager(blocks, *longer))
    assert backend.num_compiled == 2 * num_compiled
    assert cache.stats.to_json() | {"num_calls": 3, "num_compiled": 6} == cache.stats.to_json()


def test_many_blocks_of_one_class_are_all_compiled(card):
    torch.manual_seed(0)
    blocks = nn.ModuleList([Block() for _ in range(20)])
    backend = Backend()
    cache = CompileCache(card, CPU, CompileOptions(blocks=True, backend=backend))
    stream, inputs = case()
    for _ in range(2):
        assert torch.equal(run(cache, blocks, stream, inputs), eager(blocks, stream, inputs))
    assert backend.num_run == 40


def test_the_card_decides_what_may_be_compiled_and_captured(card, blocks):
    options = CompileOptions(blocks=True, graphs=True, backend="eager")
    strict = card.model_copy(
        update={"loops": {name: spec.model_copy(update={"graph_capture": GraphCapturePolicy()})
                          for name, spec in card.loops.items()}}
    )  # fmt: skip
    assert CompileCache(strict, CPU, options, graph_maker=Recorder()).runner([plan_of()]) is None
    cache = CompileCache(card, CPU, options, graph_maker=Recorder())
    assert cache.runner([plan_of(variant="exact")]) is None
    assert cache.runner([plan_of(profile="train")]) is None
    assert cache.runner([plan_of()]) is not None


def test_a_compiler_that_fails_is_warned_of_once_and_not_asked_again(card, blocks, caplog):
    backend = Backend(fails=True)
    cache = CompileCache(card, CPU, CompileOptions(blocks=True, backend=backend))
    stream, inputs = case()
    with caplog.at_level(logging.WARNING, "fastvideo_core"):
        for _ in range(3):
            assert torch.equal(run(cache, blocks, stream, inputs), eager(blocks, stream, inputs))
    (record,) = caplog.records
    assert "transformer of tiny, loop denoise, {'tokens': 5, 'plans': 1}: cannot be compiled and runs eagerly" in (
        record.getMessage()
    )
    assert "no such instruction" in record.getMessage()
    assert cache.stats.num_failures == 1


def test_an_error_of_the_block_itself_is_the_blocks(card, blocks):
    cache = CompileCache(card, CPU, CompileOptions(blocks=True, backend="eager"))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied|size mismatch"):
        run(cache, blocks, torch.zeros(2, 5, 3), case()[1])
    assert cache.stats.num_failures == 0


def test_a_call_is_captured_once_and_replayed_on_other_inputs(card, blocks):
    maker = Recorder()
    cache = CompileCache(card, CPU, CompileOptions(blocks=False, graphs=True), graph_maker=maker)
    for seed in (1, 2, 3):
        stream, inputs = case(seed=seed)
        assert torch.equal(run(cache, blocks, stream, inputs), eager(blocks, stream, inputs))
    assert (cache.stats.num_captured, cache.stats.num_replayed, maker.num_replays) == (1, 2, 3)
    # One more row, as of a request with guidance, is another graph of the same key.
    stream, inputs = case(rows=3)
    assert torch.equal(run(cache, blocks, stream, inputs), eager(blocks, stream, inputs))
    assert cache.stats.num_captured == 2
    # A constant is part of the record.
    other = Inputs(inputs.scale, index=1, parts=inputs.parts)
    run(cache, blocks, stream, other)
    assert cache.stats.num_captured == 3


def test_only_the_capture_sizes_are_captured(card, blocks):
    options = CompileOptions(blocks=False, graphs=True, capture_sizes=(1, 4))
    cache = CompileCache(card, CPU, options, graph_maker=Recorder())
    assert cache.runner([plan_of()] * 4) is not None
    assert cache.runner([plan_of()] * 3) is None


def test_the_number_of_graphs_and_of_keys_is_bounded(card, blocks):
    options = CompileOptions(blocks=False, graphs=True, max_graphs=2, max_entries=2)
    cache = CompileCache(card, CPU, options, graph_maker=Recorder())
    for rows in (1, 2, 3, 4, 1):
        run(cache, blocks, *case(rows=rows))
    assert cache.stats.num_captured == 5
    for tokens in (6, 7):
        run(cache, blocks, *case(tokens=tokens))
    assert cache.stats.num_evicted == 1
    assert not cache.has_code([plan_of(5)])


@pytest.mark.parametrize("reason", ["capture", "inputs"])
def test_what_cannot_be_captured_runs_block_by_block(card, blocks, caplog, reason):
    backend = Backend()
    options = CompileOptions(blocks=True, graphs=True, backend=backend)
    cache = CompileCache(card, CPU, options, graph_maker=Recorder(fails=reason == "capture"))
    stream, inputs = case()
    if reason == "inputs":
        inputs = Inputs(inputs.scale, index=frozenset())
    with caplog.at_level(logging.WARNING, "fastvideo_core"):
        for _ in range(2):
            assert torch.equal(run(cache, blocks, stream, inputs), eager(blocks, stream, inputs))
    (record,) = caplog.records
    assert "cannot be captured and runs eagerly" in record.getMessage()
    assert backend.num_run == 6


def test_forgetting_a_component_lets_its_modules_go(card):
    cache = CompileCache(card, CPU, CompileOptions(blocks=True, graphs=True, backend="eager"), graph_maker=Recorder())
    blocks = nn.ModuleList([Block()])
    run(cache, blocks, *case())
    module = weakref.ref(blocks[0])
    cache.forget(["vae"])
    assert cache.has_code([plan_of()])
    cache.forget(["transformer"])
    assert not cache.has_code([plan_of()])
    del blocks
    torch._dynamo.reset()
    gc.collect()
    assert module() is None


def test_options_that_make_no_sense_are_refused():
    with pytest.raises(ParameterError, match="max_graphs=0"):
        CompileOptions(max_graphs=0)
    with pytest.raises(ParameterError, match="capture_sizes="):
        CompileOptions(capture_sizes=(0, 1))


@pytest.mark.slow
def test_inductor_stays_within_rounding(card, blocks):
    cache = CompileCache(card, CPU, CompileOptions(blocks=True))
    stream, inputs = case()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the compiler's own
        compiled = run(cache, blocks, stream, inputs)
    torch.testing.assert_close(compiled, eager(blocks, stream, inputs), rtol=1e-5, atol=1e-6)
    assert cache.stats.num_failures == 0


@pytest.mark.gpu
def test_cuda_graphs_give_what_eager_blocks_give(card, blocks):
    device = torch.device("cuda")
    moved = blocks.to(device)
    cache = CompileCache(card, device, CompileOptions(blocks=False, graphs=True))
    results = []
    for seed in (1, 2, 3):
        stream, inputs = case(seed=seed)
        on_device = Inputs(inputs.scale.to(device), parts=tuple(part.to(device) for part in inputs.parts))
        results.append((run(cache, moved, stream.to(device), on_device), eager(moved, stream.to(device), on_device)))
    for ours, theirs in results:
        torch.testing.assert_close(ours, theirs)
    assert (cache.stats.num_captured, cache.stats.num_replayed, cache.stats.num_failures) == (1, 2, 0)
