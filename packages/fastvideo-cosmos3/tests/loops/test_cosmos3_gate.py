"""The interleave gate over chats, videos, actions and omni requests together; their states through bytes."""

from __future__ import annotations

import numpy as np
import pytest

from fastvideo_core.request.build import build_request
from fastvideo_core.runtime.catalog import Catalog
from fastvideo_core.runtime.loading import load_instance
from fastvideo_core.runtime.prepare import prepare_request
from fastvideo_testing.gate import MODES, GatePlan, run_gate
from fastvideo_testing.gate.faults import Fault

SMALL = {"num_frames": 5, "height": 32, "width": 32, "num_inference_steps": 2}
ACTING = {"chunk_size": 4, "resolution_tier": "256p", "embodiment": "umi", "num_inference_steps": 1}
IMAGE = np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8)
CHOSEN = [mode for mode in MODES if mode.name in ("interleaved through bytes", "batched", "exact on the engine")]


@pytest.fixture(scope="module")
def model(folder):
    return load_instance(Catalog.installed().read_folder(folder), device="cpu")


def mixed_plan(card):
    """Return requests of several tasks, some of which are cancelled or fail."""
    wanted = [
        ("chat-0", "reasoning_text", "hi", {"max_tokens": 8, "seed": 1}),
        ("chat-1", "reasoning_text", "how does it fall?", {"max_tokens": 12, "seed": 2, "temperature": 1.0}),
        ("chat-2", "reasoning_text", "what is it?", {"max_tokens": 6, "seed": 3}),
        ("video-0", "text_to_video_sound", "a ball", {**SMALL, "seed": 4, "guidance_scale": 3.0}),
        ("video-1", "text_to_video", "a long cup", {**SMALL, "seed": 5, "guidance_scale": 1.0}),
        ("image-0", "image_to_video", "it moves", {**SMALL, "seed": 6, "guidance_scale": 2.0}),
        ("policy-0", "policy", "lift it", {**ACTING, "seed": 7, "guidance_scale": 1.0}),
        ("omni-0", "omni", "a ball", {**SMALL, "seed": 8, "max_tokens": 5, "guidance_scale": 3.0}),
        ("omni-1", "omni", "a cup", {**SMALL, "seed": 9, "max_tokens": 3, "num_inference_steps": 3}),
        ("cancelled-0", "omni", "a shelf", {**SMALL, "seed": 10, "max_tokens": 8}),
        ("nan-0", "text_to_video_sound", "a ball", {**SMALL, "seed": 11}),
        ("error-0", "reasoning_text", "why?", {"max_tokens": 8, "seed": 12}),
    ]
    seeing = ("chat-2", "image-0", "policy-0")
    requests = [
        build_request(
            card, prompt, task=task, request_id=name, parameters=parameters,
            image=IMAGE if name in seeing else None, outputs=tuple(card.task(task).outputs),
        )
        for name, task, prompt, parameters in wanted
    ]  # fmt: skip
    faults = {"nan-0": Fault("nan", "diffusion_denoise", 1), "error-0": Fault("error", "ar_decode", 1)}
    return GatePlan([prepare_request(card, one) for one in requests], faults, {"cancelled-0": 3})


def test_mixed_requests_give_in_a_crowd_what_they_give_alone(model):
    report = run_gate(model, mixed_plan(model.card), modes=CHOSEN)
    by_name = {one.mode.name: one for one in report.modes}
    assert by_name["interleaved through bytes"].relative_error == 0
    assert by_name["exact on the engine"].relative_error == 0
    assert by_name["batched"].relative_error <= model.card.parity.batch_max_relative_error
    assert by_name["batched"].max_batch >= 3
    assert all(one.num_switches > 20 for one in report.modes)
