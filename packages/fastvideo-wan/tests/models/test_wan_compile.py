"""The shipped transformer's blocks behind the compile tier, beside its eager ones."""

from __future__ import annotations

import warnings

import pytest
import torch

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
from fastvideo_core.runtime.catalog import Catalog
from fastvideo_core.runtime.compile_cache import CompileCache, CompileOptions
from fastvideo_core.runtime.engine import Engine, RuntimeOptions
from fastvideo_core.runtime.loading import load_instance

SHAPE = ShapeSignature.of(frames=3, rows=8, columns=8)
BOUND = 1e-5
"""Most relative difference (L2) of a compiled step's velocity; measured: 4e-7."""


@pytest.fixture(scope="module")
def instance():
    return load_instance(Catalog.installed().find("wan-shapes"), device="cpu")


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def plan_of(instance):
    (loop_id,) = [name for name, spec in instance.card.loops.items() if spec.graph_capture.compile_blocks]
    key = BatchKey(instance.instance_id, "transformer", loop_id, SHAPE, instance.precision, variant="fast")
    return WorkPlan(
        loop_id=loop_id,
        instance_id=instance.instance_id,
        kind=WorkKind.DIFFUSION_STEP,
        shape_sig=SHAPE,
        resources=ResourceRequest(StepCost(1.0)),
        cache=CachePlan(),
        placement=PlacementHint(),
        cancel_scope=CancelScope("request", "r"),
        emits=(),
        batch_key=key,
        payload=None,
    )


def velocities(instance, backend):
    """Return the velocities of two rows: eager, and twice compiled; with the cache."""
    transformer = instance.component("transformer")
    cache = CompileCache(instance.card, torch.device("cpu"), CompileOptions(blocks=True, backend=backend))
    generator = torch.Generator().manual_seed(0)
    config = transformer.config
    latents = torch.randn(2, config.in_channels, 3, 8, 8, generator=generator)
    context = torch.randn(2, 16, config.text_dim, generator=generator)
    timesteps = torch.tensor([500.0, 900.0])
    plans = [plan_of(instance)] * 2
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the compiler's, which warns of what it compiles less well
        prepared = transformer.prepare_context(context)
        eager = transformer(latents, timesteps, prepared)
        runs = [transformer(latents, timesteps, prepared, blocks_runner=cache.runner(plans)) for _ in range(2)]
    return eager, runs, cache


def test_the_blocks_are_traced_whole_and_give_the_same_bits(instance):
    eager, runs, cache = velocities(instance, "eager")
    assert cache.stats.num_compiled == instance.component("transformer").config.num_layers
    assert cache.stats.num_failures == 0
    assert all(torch.equal(run, eager) for run in runs)


def test_an_engine_with_compiled_blocks_makes_the_same_video():
    ask = {"seed": 3, "num_inference_steps": 2, "num_frames": 5, "outputs": ("latents",)}
    made = {}
    for name, options in {"eager": CompileOptions(), "compiled": CompileOptions(blocks=True, backend="eager")}.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the compiler's, which warns of what it compiles less well
            with Engine.open("wan-shapes", device="cpu", options=RuntimeOptions(compiling=options)) as engine:
                made[name] = engine.generate("a red circle moving right", **ask).latents.latents
                num_compiled = engine._compiler.stats.num_compiled
                exact = engine.generate("a red circle moving right", exact=True, **ask)
                assert engine._compiler.stats.num_compiled == num_compiled
                num_layers = engine.instance.component("transformer").config.num_layers
                assert num_compiled == (num_layers if options.blocks else 0)
                assert engine._compiler.stats.num_failures == 0
                made[f"{name}, exact"] = exact.latents.latents
    assert (made["eager"] == made["compiled"]).all()
    assert (made["eager, exact"] == made["compiled, exact"]).all()


@pytest.mark.slow
def test_compiled_blocks_stay_within_the_bound(instance):
    eager, runs, cache = velocities(instance, "inductor")
    assert cache.stats.num_failures == 0
    for run in runs:
        assert torch.linalg.vector_norm(run - eager) <= BOUND * torch.linalg.vector_norm(eager)
