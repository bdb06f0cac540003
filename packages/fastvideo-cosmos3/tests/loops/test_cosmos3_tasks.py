"""Whole tasks against the pipelines of diffusers and the generation of transformers, on the same files."""

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
def test_text_to_video(engine, pipeline, guidance_scale):
    settings = {**VIDEO, "guidance_scale": guidance_scale}
    result = run(engine, "text_to_video", negative_prompt="blur", **settings)
    same_video(result, *reference(pipeline, negative_prompt="blur", **settings))


def test_text_to_image(engine, pipeline):
    result = run(engine, "text_to_image", outputs=("image", "latents"), **SIZE)
    latents, shown = reference(pipeline, num_frames=1, **SIZE)
    assert torch.equal(torch.from_numpy(result.latents.latents), latents.video[0])
    assert np.array_equal(result.artifacts["image"].pixels, (shown.video[0] * 255).astype(np.uint8))


def test_image_to_video_with_sound(engine, pipeline):
    image = picture(40, 70)
    result = run(engine, "image_to_video_sound", outputs=(*OUTPUTS, "audio"), image=image, fps=16.0, **VIDEO)
    latents, shown = reference(pipeline, image=Image.fromarray(image), enable_sound=True, fps=16.0, **VIDEO)
    same_video(result, latents, shown)
    assert torch.equal(torch.from_numpy(result.artifacts["audio"].samples), shown.sound)
    assert result.artifacts["audio"].sample_rate == 8000
    assert result.video.audio.samples.shape == (2, 4500)  # 9 frames of 16 a second, 8000 samples a second


@pytest.mark.parametrize("keep", ["first", "last"])
def test_video_to_video(engine, pipeline, keep):
    from fastvideo_core.request.base import VideoPart

    frames = np.stack([picture(40, 70, seed) for seed in range(7)])
    part = VideoPart(name="video", frames=frames, fps=24.0)
    result = run(engine, "video_to_video", inputs={"video": part}, condition_keep=keep, **VIDEO)
    images = [Image.fromarray(frame) for frame in frames]
    same_video(result, *reference(pipeline, video=images, condition_video_keep=keep, **VIDEO))


@pytest.mark.parametrize("mode", ["policy", "forward_dynamics", "inverse_dynamics", "policy_sound"])
def test_actions(engine, pipeline, mode):
    from diffusers.pipelines.cosmos.pipeline_cosmos3_omni import CosmosActionCondition

    from fastvideo_core.request.base import VideoPart

    steps = {"num_inference_steps": 2, "guidance_scale": 2.0, "seed": 5, "fps": 5.0}
    image = picture(50, 70)
    actions = np.random.default_rng(1).standard_normal((3, 10)).astype(np.float32)
    frames = np.stack([picture(50, 70, seed) for seed in range(4)])
    inputs, given = {"image": image}, {"image": Image.fromarray(image)}
    if mode == "forward_dynamics":
        inputs["actions"], given["raw_actions"] = actions, torch.from_numpy(actions)
    if mode == "inverse_dynamics":
        inputs = {"video": VideoPart(name="video", frames=frames, fps=5.0)}
        given = {"video": [Image.fromarray(frame) for frame in frames]}
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


@pytest.mark.parametrize("prompt", ["hi", "what is a gripper?"])
def test_greedy_answers_are_those_of_transformers(engine, reasoner, prompt):
    result = run(engine, "reasoning_text", prompt, outputs=("text",), exact=False, max_tokens=64, seed=0)
    tokenizer = engine.instance.component("text_tokenizer")
    ids = torch.tensor([tokenizer.encode_chat([{"role": "user", "content": prompt}])])
    with torch.no_grad():
        expected = reasoner.generate(ids, max_new_tokens=64, do_sample=False, eos_token_id=tokenizer.eos_id)
    assert result.artifacts["text"].token_ids == tuple(expected[0, ids.shape[1] :].tolist())


def test_fast_results_are_near_exact_ones(engine):
    exact = run(engine, "text_to_video_sound", **VIDEO).latents.latents
    fast = run(engine, "text_to_video_sound", exact=False, **VIDEO).latents.latents
    assert np.abs(exact - fast).max() <= 1e-4 * np.abs(exact).max()
