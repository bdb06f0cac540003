"""Videos between a first and a last frame, and experts that change at a step, against the reference pipeline."""

from __future__ import annotations

import pytest
import torch
from PIL import Image

from fastvideo_core.errors import ParameterError
from fastvideo_core.loop.policies.experts import StepIndexExperts
from fastvideo_core.request.base import ImagePart, OutputSpec, Request, TextPart
from fastvideo_core.runtime.engine import Engine
from fastvideo_wan.loops.guidance import guidance_of
from fastvideo_wan.parity.reference import make_image

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")

SIZE = {"height": 32, "width": 32}
CALL = {**SIZE, "num_frames": 9, "num_inference_steps": 3, "guidance_scale": 3.0}


def last_image():
    return make_image(32, 32).transpose(Image.Transpose.ROTATE_180)


def run(instance, *, last, **parameters):
    parts = [TextPart(name="prompt", text="a red circle"), ImagePart(name="image", pixels=make_image(32, 32))]
    if last:
        parts.append(ImagePart(name="last_image", pixels=last_image()))
    request = Request(
        task="image_to_video", inputs=tuple(parts), exact=True, outputs=OutputSpec(artifacts=("latents",)),
        parameters={**CALL, "seed": 3, "negative_prompt": "", **parameters},
    )  # fmt: skip
    with Engine(instance) as engine:
        return torch.as_tensor(engine.submit(request).result().artifacts["latents"].latents)


def test_the_last_frame_conditions_as_in_the_reference(instance, checkpoint):
    from diffusers import WanImageToVideoPipeline

    pipeline = WanImageToVideoPipeline.from_pretrained(checkpoint("a14b-i2v"))
    pipeline.set_progress_bar_config(disable=True)
    card = instance("a14b-i2v").card
    expected = pipeline(
        image=make_image(32, 32), last_image=last_image(), prompt="a red circle", negative_prompt="", **CALL,
        max_sequence_length=card.loops["text_encode"].options["text_length"], output_type="latent",
        generator=torch.Generator().manual_seed(3), guidance_scale_2=3.0,
    ).frames  # fmt: skip
    got = run(instance("a14b-i2v"), last=True, guidance_scale_2=3.0)
    torch.testing.assert_close(got.reshape(expected.shape), expected, rtol=0, atol=1e-5)
    assert (run(instance("a14b-i2v"), last=False, guidance_scale_2=3.0) - got).abs().max() > 1e-3


def test_one_frame_is_not_two(instance):
    with pytest.raises(ParameterError, match="a first and a last frame are two.*nearest: 5"):
        run(instance("a14b-i2v"), last=True, num_frames=1)


def test_experts_change_at_the_step_that_is_asked_for(instance):
    guided = guidance_of(
        {"boundary_ratio": 0.875}, {"guidance_scale": 4.0, "guidance_scale_2": 3.0, "expert_switch_step": 2}
    )
    assert isinstance(guided.experts, StepIndexExperts)
    routed = [guided.experts.route(1000.0, index) for index in range(4)]
    assert [(one.component, one.guidance_scale) for one in routed] == [("transformer", 4.0)] * 2 + [
        ("transformer_2", 3.0)
    ] * 2
    model = instance("a14b-i2v")
    early, late = (run(model, last=False, expert_switch_step=step) for step in (1, 2))
    assert (early - late).abs().max() > 1e-4
