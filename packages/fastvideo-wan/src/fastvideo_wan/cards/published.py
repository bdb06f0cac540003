"""The cards of published Wan checkpoints. Figures are those of the releases; revisions pin the files."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from fastvideo_core.card import CheckpointSource, DataRef, ModelCard, RecipeSpec
from fastvideo_wan.cards.build import make_card
from fastvideo_wan.cards.facts import WanFacts

__all__ = ["PUBLISHED", "published_cards"]

_DATA = DataRef(name="wan-pretraining", license="not published", description="Images and videos of the Wan team.")


def _hub(repository: str, revision: str) -> CheckpointSource:
    return CheckpointSource(kind="hub", location=repository, revision=revision)


_BASE = RecipeSpec(method="base", data_contract=_DATA, assumes_loop="diffusion_denoise")

_DMD = RecipeSpec(
    method="dmd2",
    parents=("wan2.2-ti2v-5b",),
    data_contract=DataRef(name="fastwan-synthetic", description="Videos made by the teacher, published with FastWan."),
    assumes_loop="dmd_denoise",
)

PUBLISHED: tuple[WanFacts, ...] = (
    WanFacts(
        model_id="wan2.1-t2v-1.3b",
        title="Wan 2.1 text to video, 1.3 billion parameters, 480p",
        source=_hub("Wan-AI/Wan2.1-T2V-1.3B-Diffusers", "0fad780a534b6463e45facd96134c9f345acfa5b"),
        recipe=_BASE,
        num_heads=12,
    ),
    WanFacts(
        model_id="wan2.1-t2v-14b",
        title="Wan 2.1 text to video, 14 billion parameters, 480p and 720p",
        source=_hub("Wan-AI/Wan2.1-T2V-14B-Diffusers", "38ec498cb3208fb688890f8cc7e94ede2cbd7f68"),
        recipe=_BASE,
        num_heads=40,
    ),
    WanFacts(
        model_id="wan2.1-i2v-14b-480p",
        title="Wan 2.1 image to video, 14 billion parameters, 480p",
        source=_hub("Wan-AI/Wan2.1-I2V-14B-480P-Diffusers", "b184e23a8a16b20f108f727c902e769e873ffc73"),
        recipe=_BASE,
        conditioning="channels_and_vision",
        accepts_text_only=False,
        num_heads=40,
    ),
    WanFacts(
        model_id="wan2.1-i2v-14b-720p",
        title="Wan 2.1 image to video, 14 billion parameters, 720p",
        source=_hub("Wan-AI/Wan2.1-I2V-14B-720P-Diffusers", "eb849f76dfa246545b65774a9e25943ee69b3fa3"),
        recipe=_BASE,
        conditioning="channels_and_vision",
        accepts_text_only=False,
        height=720,
        width=1280,
        flow_shift=5.0,
        num_heads=40,
    ),
    WanFacts(
        model_id="wan2.2-ti2v-5b",
        title="Wan 2.2 text or image to video, 5 billion parameters, 720p at 24 frames a second",
        source=_hub("Wan-AI/Wan2.2-TI2V-5B-Diffusers", "b8fff7315c768468a5333511427288870b2e9635"),
        recipe=_BASE,
        conditioning="first_frame",
        expand_timesteps=True,
        flow_shift=5.0,
        spatial_factor=16,
        num_frames=121,
        height=704,
        width=1280,
        fps=24.0,
        num_heads=24,
    ),
    WanFacts(
        model_id="wan2.2-t2v-a14b",
        title="Wan 2.2 text to video, two experts of 14 billion parameters, 480p and 720p",
        source=_hub("Wan-AI/Wan2.2-T2V-A14B-Diffusers", "5be7df9619b54f4e2667b2755bc6a756675b5cd7"),
        recipe=_BASE,
        boundary_ratio=0.875,
        guidance_scale=4.0,
        guidance_scale_2=3.0,
        num_inference_steps=40,
        height=720,
        width=1280,
        num_heads=40,
    ),
    WanFacts(
        model_id="wan2.2-i2v-a14b",
        title="Wan 2.2 image to video, two experts of 14 billion parameters, 480p and 720p",
        source=_hub("Wan-AI/Wan2.2-I2V-A14B-Diffusers", "596658fd9ca6b7b71d5057529bbf319ecbc61d74"),
        recipe=_BASE,
        conditioning="channels",
        accepts_text_only=False,
        boundary_ratio=0.9,
        guidance_scale=3.5,
        guidance_scale_2=3.5,
        num_inference_steps=40,
        num_heads=40,
    ),
    WanFacts(
        model_id="fastwan2.2-ti2v-5b",
        title="FastWan 2.2, distilled to three steps, 5 billion parameters, 720p at 24 frames a second",
        source=_hub("FastVideo/FastWan2.2-TI2V-5B-FullAttn-Diffusers", "3e187042a324f6f5fb68fd22110a78725253de8f"),
        recipe=_DMD,
        conditioning="first_frame",
        expand_timesteps=True,
        guidance_scale=None,
        dmd_steps=(1000, 757, 522),
        num_inference_steps=3,
        sampler="lcm",
        flow_shift=5.0,
        spatial_factor=16,
        num_frames=121,
        height=704,
        width=1280,
        fps=24.0,
        num_heads=24,
    ),
)


@cache
def published_cards() -> Sequence[ModelCard]:
    """Return the cards of all published checkpoints."""
    return tuple(make_card(facts) for facts in PUBLISHED)
