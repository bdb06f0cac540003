"""Tasks against the pipeline of diffusers, in forms that the declared comparisons do not have."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from fastvideo_core.runtime.catalog import Catalog
from fastvideo_core.runtime.engine import Engine

SIZE = {"height": 32, "width": 48, "num_inference_steps": 3, "guidance_scale": 3.0, "seed": 3}
VIDEO = {**SIZE, "num_frames": 9}
OUTPUTS = ("video", "latents")


@pytest.fixture(scope="module")
def engine(folder):
    with Engine.open(Catalog.installed().read_folder(folder), device="cpu") as opened:
        yield opened


def picture(rows, columns, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (rows, columns, 3), dtype=np.uint8)


def run(engine, task, prompt="a red ball", outputs=OUTPUTS, inputs=None, image=None, exact=True, **parameters):
    from fastvideo_core.request.build import build_request

    request = build_request(
        engine.card, prompt, task=task, image=image, inputs=inputs, outputs=outputs, exact=exact, parameters=parameters
    )
    return engine.submit(request).result(100)


def reference(pipeline, prompt="a red ball", *, seed, **arguments):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        latents = pipeline(prompt, generator=generator, output_type="latent", **arguments)
        generator.manual_seed(seed)
        return latents, pipeline(prompt, generator=generator, output_type="np", **arguments)


def same_video(result, latents, shown):
    assert torch.equal(torch.from_numpy(result.latents.latents), latents.video[0])
    assert np.array_equal(result.video.frames, (shown.video * 255).astype(np.uint8))
    assert latents.video.std() > 0.1


@pytest.mark.parametrize("guidance_scale", [1.0, 3.0])
def test_text_to_video_with_a_negative_prompt(engine, pipeline, guidance_scale):
    settings = {**VIDEO, "guidance_scale": guidance_scale}
    result = run(engine, "text_to_video", negative_prompt="blur", **settings)
    same_video(result, *reference(pipeline, negative_prompt="blur", **settings))


def test_image_to_video_with_sound(engine, pipeline):
    image = picture(40, 70)
    result = run(engine, "image_to_video_sound", outputs=(*OUTPUTS, "audio"), image=image, fps=16.0, **VIDEO)
    latents, shown = reference(pipeline, image=Image.fromarray(image), enable_sound=True, fps=16.0, **VIDEO)
    same_video(result, latents, shown)
    assert torch.equal(torch.from_numpy(result.artifacts["audio"].samples), shown.sound)
    assert result.artifacts["audio"].sample_rate == 8000
    assert result.video.audio.samples.shape == (2, 4500)  # 9 frames of 16 a second, 8000 samples a second


def test_video_to_video_from_the_end(engine, pipeline):
    from fastvideo_core.request.base import VideoPart

    frames = np.stack([picture(40, 70, seed) for seed in range(7)])
    part = VideoPart(name="video", frames=frames, fps=24.0)
    result = run(engine, "video_to_video", inputs={"video": part}, condition_keep="last", **VIDEO)
    images = [Image.fromarray(frame) for frame in frames]
    same_video(result, *reference(pipeline, video=images, condition_video_keep="last", **VIDEO))


@pytest.mark.parametrize("mode", ["forward_dynamics", "policy_sound"])
def test_actions(engine, pipeline, mode):
    from diffusers.pipelines.cosmos.pipeline_cosmos3_omni import CosmosActionCondition

    steps = {"num_inference_steps": 2, "guidance_scale": 2.0, "seed": 5, "fps": 5.0}
    image = picture(50, 70)
    actions = np.random.default_rng(1).standard_normal((3, 10)).astype(np.float32)
    inputs, given = {"image": image}, {"image": Image.fromarray(image)}
    if mode == "forward_dynamics":
        inputs["actions"], given["raw_actions"] = actions, torch.from_numpy(actions)
    condition = CosmosActionCondition(
        mode=mode.removesuffix("_sound"), chunk_size=4, domain_name="umi", resolution_tier=256,
        view_point="wrist_view", **given,
    )  # fmt: skip
    outputs = OUTPUTS if mode == "forward_dynamics" else (*OUTPUTS, "actions")
    settings = {"embodiment": "umi", "chunk_size": 4, "resolution_tier": "256p", "view_point": "wrist_view"}
    result = run(engine, mode, inputs=inputs, outputs=outputs, **settings, **steps)
    sound = {"enable_sound": True} if mode == "policy_sound" else {}
    latents, shown = reference(pipeline, action=condition, **sound, **steps)
    same_video(result, latents, shown)
    if "actions" in outputs:
        assert torch.equal(torch.from_numpy(result.artifacts["actions"].tensor), latents.action[0])
        assert latents.action[0].shape == (4, 10)
