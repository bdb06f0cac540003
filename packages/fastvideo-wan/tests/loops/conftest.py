"""Causal cards over small checkpoints."""

from __future__ import annotations

import pytest

from fastvideo_core.card import CheckpointSource, DataRef, RecipeSpec
from fastvideo_core.runtime.loading import load_instance
from fastvideo_wan.cards.causal import LOOP_ID, CausalFacts, make_causal_card
from fastvideo_wan.cards.facts import WanFacts
from fastvideo_wan.models.chunks import ChunkRule

SINK = ChunkRule(chunk_frames=2, window_frames=6, sink_frames=2)
PLAIN = ChunkRule(chunk_frames=2, window_frames=6)
EXPERTS = ChunkRule(chunk_frames=2, window_frames=4, first_frames=1)


def causal_facts(folder, rule, *, steps=(1000, 750, 500, 250), **changes):
    """Return the facts of a small checkpoint that makes streams of 32 by 32 pixels."""
    base = {"flow_shift": 5.0, "guidance_scale": None, **changes.pop("base", {})}
    return CausalFacts(
        base=WanFacts(
            model_id="small-causal",
            title="Small",
            source=CheckpointSource(kind="folder", location=str(folder)),
            recipe=RecipeSpec(
                method="self_forcing",
                data_contract=DataRef(name="none", description="The weights are drawn from a seed."),
                assumes_loop=LOOP_ID,
            ),
            num_frames=4 * (rule.start(3) - 1) + 1,
            height=32,
            width=32,
            text_length=48,
            default_precision="float32",
            num_heads=2,
            **base,
        ),
        rule=rule,
        steps=steps,
        num_layers=2,
        width=24,
        max_pixels=32 * 32,
        num_streams=8,
        **changes,
    )


@pytest.fixture(scope="session")
def causal_instance(checkpoint):
    """Return a function that gives the loaded causal model of a name; tests must not change it."""
    made = {}

    def build(name):
        if name == "experts":
            base = {"boundary_ratio": 0.875, "flow_shift": 12.0}
            return causal_facts(checkpoint("a14b-t2v"), EXPERTS, steps=(1000, 850, 275), base=base)
        if name == "guided":
            return causal_facts(checkpoint("t2v"), PLAIN, steps=(1000, 500), base={"guidance_scale": 3.0})
        if name == "euler":
            return causal_facts(checkpoint("t2v"), SINK, steps=(1000, 500), is_renoised=False, has_reread=False)
        return causal_facts(checkpoint("t2v"), {"sink": SINK, "plain": PLAIN}[name])

    def get(name):
        if name not in made:
            made[name] = load_instance(make_causal_card(build(name)))
        return made[name]

    return get
