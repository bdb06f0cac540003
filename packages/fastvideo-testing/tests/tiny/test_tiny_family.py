from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from fastvideo_core.card import CheckpointSource, ModelCard
from fastvideo_core.errors import ExecutionError, NonFiniteError, PromptError, ResourceError
from fastvideo_core.loop.base import LoopContext, LoopRequest
from fastvideo_core.loop.driver import LoopRun
from fastvideo_core.loop.state import decode_state, encode_state
from fastvideo_core.loop.work import Done
from fastvideo_core.request.cancel import CancelScope, CancelState
from fastvideo_core.request.parameters import resolve_parameters
from fastvideo_core.runtime.engine import Engine
from fastvideo_core.runtime.loading import load_instance
from fastvideo_core.runtime.run import make_generator
from fastvideo_testing.tiny import tiny_card, write_tiny_checkpoint
from fastvideo_testing.tiny.denoise import shifted_sigmas
from fastvideo_testing.tiny.faults import faulty_card
from fastvideo_testing.tiny.plugin import card_from_layout
from fastvideo_testing.tiny.programs import IMAGE_TO_VIDEO, TEXT_TO_VIDEO


class Taps:
    is_tapped = True

    def tap(self, name, value):
        pass


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tiny")


@pytest.fixture(scope="module")
def card(folder):
    return write_tiny_checkpoint(folder)


@pytest.fixture(scope="module")
def instance(card):
    return load_instance(card)


@pytest.fixture
def engine(card):
    with Engine.open(card) as engine:
        yield engine


def start(instance, loop_id, inputs, *, request_id="r", exact=False, **parameters):
    """Return a loop that is about to make its first step."""
    task = instance.card.capabilities.tasks["text_to_video"]
    scope = CancelScope("request", request_id).child("loop", loop_id)
    request = LoopRequest(
        request_id=request_id,
        node_id=loop_id,
        loop_id=loop_id,
        parameters=resolve_parameters(task, {"seed": 3, **parameters}),
        inputs=inputs,
        cancel_scope=scope,
        is_exact=exact,
    )
    loop = instance.loop(loop_id)
    return LoopRun(loop, loop.init(request, LoopContext(make_generator)), scope=scope, cancel=CancelState())


def finish(instance, run, *, is_moved=False):
    """Drive a loop to its end; with `is_moved` its state goes through bytes after every step."""
    step = instance.steps[run.plan().loop_id]
    while not isinstance(plan := run.plan(), Done):
        with torch.no_grad():
            (result,) = step(instance, [plan], Taps())
        run.commit(plan, result)
        if is_moved:
            run.state = decode_state(encode_state(run.state), type(run.state))
    return run.result().outputs


def embeds(instance, prompt="a red circle", **parameters):
    return finish(instance, start(instance, "text", {"prompt": prompt}, **parameters))["embeds"]


def test_the_card_is_plain_data(card):
    assert ModelCard.from_json(card.model_dump_json(), origin="test") == card
    code = "import sys; from fastvideo_testing.tiny import tiny_card; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


@pytest.mark.parametrize("program", [TEXT_TO_VIDEO, IMAGE_TO_VIDEO])
def test_the_programs_fit_the_card(program, card):
    program.check_against(card)


def test_the_plugin_knows_its_own_checkpoints_only(folder):
    source = CheckpointSource(kind="folder", location=str(folder))
    assert card_from_layout(source, {"_class_name": "TinyPipeline"}) == tiny_card(source)
    assert card_from_layout(source, {"_class_name": "WanPipeline"}) is None


def test_weights_follow_their_seed(folder, tmp_path, instance):
    write_tiny_checkpoint(tmp_path / "same")
    write_tiny_checkpoint(tmp_path / "other", seed=1)
    same, other = (load_instance(tiny_card(tmp_path / name)) for name in ("same", "other"))
    assert same.weights_version == instance.weights_version != other.weights_version


def test_sigmas_fall_from_one_to_zero():
    assert shifted_sigmas(4, 1.0) == (1.0, 0.75, 0.5, 0.25, 0.0)
    assert shifted_sigmas(2, 3.0) == (1.0, 0.75, 0.0)  # 3 * 0.5 / (1 + 2 * 0.5)


def test_the_shape_is_what_was_asked_for(engine):
    result = engine.generate("x", num_frames=13, height=16, width=24, outputs=("video", "latents"), seed=1)
    assert result.video.frames.shape == (13, 16, 24, 3)
    assert result.latents.latents.shape == (4, 4, 2, 3)


def test_the_same_request_gives_the_same_video(engine):
    first, second = (engine.generate("x", seed=5).video.frames for _ in range(2))
    assert np.array_equal(first, second)


@pytest.mark.parametrize(
    "change",
    [
        {"prompt": "y"},
        {"seed": 6},
        {"num_inference_steps": 5},
        {"guidance_scale": 1.0},
        {"guidance_scale": 4.0},
        {"negative_prompt": "z"},
        {"flow_shift": 2.0},
        {"image": np.full((8, 8, 3), 200, np.uint8)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_every_input_changes_the_video(change, engine):
    plain = {"prompt": "x", "seed": 5}
    assert not np.array_equal(
        engine.generate(**plain).video.frames, engine.generate(**{**plain, **change}).video.frames
    )


def test_a_given_image_is_the_first_latent_frame(engine, instance):
    image = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    latents = engine.generate("x", image=image, outputs=("latents",), seed=1).latents.latents
    pixels = torch.from_numpy(image.astype(np.float32) / 127.5 - 1).permute(2, 0, 1)[None]
    with torch.no_grad():
        expected = instance.component("vae").encode_image(pixels)[0]
    torch.testing.assert_close(torch.from_numpy(latents[:, 0]), expected)


def test_a_long_prompt_is_refused(engine):
    with pytest.raises(PromptError, match="129 tokens.*at most 128"):
        engine.generate("x" * 129)


def test_a_state_holds_all_that_a_loop_needs(instance):
    inputs = {"embeds": embeds(instance)}
    plain, moved = (finish(instance, start(instance, "denoise", inputs), is_moved=move) for move in (False, True))
    assert torch.equal(plain["latents"], moved["latents"])
    frames, moved_frames = (
        torch.cat(finish(instance, start(instance, "decode", plain), is_moved=move)["frames"]) for move in (False, True)
    )
    assert torch.equal(frames, moved_frames)


@pytest.mark.parametrize(("exact", "bound"), [(True, 0.0), (False, 1e-5)])
def test_a_batch_gives_what_each_request_gives_alone(exact, bound, instance):
    settings = [{"guidance_scale": 1.0, "seed": 1}, {"guidance_scale": 3.0, "seed": 2}, {"seed": 3, "flow_shift": 2.0}]
    runs = [start(instance, "denoise", {"embeds": embeds(instance, **s)}, exact=exact, **s) for s in settings]
    plans = [run.plan() for run in runs]
    assert len({plan.batch_key for plan in plans}) == 1
    step = instance.steps["denoise"]
    with torch.no_grad():
        together = step(instance, plans, Taps())
        alone = [step(instance, [plan], Taps())[0] for plan in plans]
    for one, other in zip(together, alone, strict=True):
        difference = (one.values.latents_1CTHW - other.values.latents_1CTHW).abs().max()
        assert difference <= bound * other.values.latents_1CTHW.abs().max()


def test_a_step_changes_no_state(instance):
    run = start(instance, "denoise", {"embeds": embeds(instance)})
    before = encode_state(run.state)
    with torch.no_grad():
        instance.steps["denoise"](instance, [run.plan()], Taps())
    assert encode_state(run.state) == before


@pytest.mark.parametrize(
    ("fault", "error", "text"),
    [
        ("nan", NonFiniteError, "step 2 of 4 of denoise gave NaN"),
        ("error", ExecutionError, "step 2 of 4 of denoise failed: RuntimeError: the step was told to fail"),
        ("memory", ResourceError, "step 2 of 4 of denoise ran out of memory"),
    ],
)
def test_a_fault_ends_the_request_that_asks_for_it(fault, error, text, folder, card):
    with Engine.open(faulty_card(folder)) as engine:
        bad = engine.submit(engine.make_request("x", request_id=f"{fault}-1"))
        good = engine.submit(engine.make_request("x", request_id="fine", parameters={"seed": 5}))
        with pytest.raises(error, match=text):
            bad.result(30)
        frames = good.result(30).video.frames
    with Engine.open(card) as engine:
        assert np.array_equal(frames, engine.generate("x", seed=5).video.frames)
    with Engine.open(faulty_card(folder, fault=fault, fault_step=0)) as engine, pytest.raises(error, match="step 1 of"):
        engine.generate("x")
