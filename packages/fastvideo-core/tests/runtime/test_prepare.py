from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fastvideo_core.errors import (
    CardError,
    InputError,
    LoopMismatchError,
    MediaError,
    ParameterError,
    PromptError,
    UnknownTaskError,
)
from fastvideo_core.program import ArtifactNode, InlineProgram, InputEdge, ModelLoopNode, TensorEdge
from fastvideo_core.request.base import ImagePart, LatentPart, OutputSpec, Request, TextPart
from fastvideo_core.runtime.prepare import check_task, prepare_request
from fastvideo_testing.tiny import tiny_card
from fastvideo_testing.tiny.programs import TEXT_TO_VIDEO

CARD = tiny_card(Path("no-weights-here"))
PROMPT = TextPart(name="prompt", text="a red circle")
IMAGE = ImagePart(name="image", pixels=np.zeros((4, 4, 3), np.uint8))


def prepare(*inputs, card=CARD, deploy=None, task="text_to_video", outputs=(), **fields):
    outputs = OutputSpec(artifacts=outputs)
    return prepare_request(
        card, Request(task=task, inputs=inputs or (PROMPT,), outputs=outputs, **fields), deploy=deploy
    )


def test_a_request_is_resolved_without_any_weights():
    prepared = prepare(parameters={"num_frames": 13}, deploy={"guidance_scale": 2})
    assert prepared.inputs == {"prompt": "a red circle"}
    assert [node.node_id for node in prepared.nodes] == ["text", "denoise", "decode", "video"]
    values = prepared.parameters
    assert (values["num_frames"], values["guidance_scale"], values["fps"]) == (13, 2.0, 8.0)
    assert [values.source(name) for name in ("num_frames", "guidance_scale", "fps")] == ["request", "deploy", "card"]
    assert prepared.parameters_of("denoise") is prepared.parameters


def test_a_seed_that_nobody_gave_is_drawn_once():
    seeds = {prepare().parameters["seed"] for _ in range(20)}
    assert len(seeds) == 20
    assert all(0 <= seed < 2**31 for seed in seeds)
    prepared = prepare(parameters={"seed": None}, node_overrides={"denoise": {"flow_shift": 2.0}})
    assert prepared.parameters.source("seed") == "engine"
    assert prepared.parameters_of("denoise")["seed"] == prepared.parameters["seed"]
    assert prepare(parameters={"seed": 3}).parameters.source("seed") == "request"


def test_overrides_are_for_their_node():
    overrides = {"denoise": {"guidance_scale": 1.5, "seed": None}, "decode": {"fps": 4}}
    prepared = prepare(parameters={"seed": 3, "guidance_scale": 4.0}, node_overrides=overrides)
    assert prepared.parameters["guidance_scale"] == prepared.parameters_of("text")["guidance_scale"] == 4.0
    denoise = prepared.parameters_of("denoise")
    assert (denoise["guidance_scale"], denoise["seed"], denoise["fps"]) == (1.5, 3, 8.0)
    assert prepared.parameters_of("decode")["fps"] == 4.0


def test_outputs_decide_what_runs():
    prepared = prepare(outputs=("latents",))
    assert [node.node_id for node in prepared.nodes] == ["text", "denoise", "latents"]


def test_images_are_read_before_anything_runs(tmp_path):
    prepared = prepare(PROMPT, IMAGE, task="image_to_video")
    assert prepared.inputs["image"].shape == (4, 4, 3)
    with pytest.raises(MediaError, match="image"):
        prepare(PROMPT, ImagePart(name="image", path=tmp_path / "none.png"), task="image_to_video")


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (dict(task="text2video"), UnknownTaskError, "nearest: text_to_video"),
        (dict(outputs=("gif",)), InputError, "outputs='gif': the task makes no such output; allowed: video, latents"),
        (dict(parameters={"steps": 3}), ParameterError, "steps=3: .*nearest: num_inference_steps"),
        (dict(parameters={"num_frames": 10}), ParameterError, "num_frames=10: .*nearest: 9"),
        (dict(node_overrides={"image": {}}), ParameterError, "node_overrides='image': .*allowed: text, denoise, dec"),
        (dict(node_overrides={"denoise": {"step": 1}}), ParameterError, "step=1: "),
        (dict(node_overrides={"denoise": {"fps": 0}}), ParameterError, "fps=0: .*nearest: 1"),
    ],
)
def test_bad_requests_are_refused(call, error, text):
    with pytest.raises(error, match=text):
        prepare(**call)


@pytest.mark.parametrize(
    ("inputs", "task", "error", "text"),
    [
        (
            (IMAGE,),
            "text_to_video",
            InputError,
            "image='image': task text_to_video takes no such input; allowed: prompt",
        ),
        ((ImagePart(name="image", path=Path("a.png")),), "text_to_video", InputError, "image='a.png': task"),
        ((PROMPT, PROMPT), "text_to_video", InputError, "prompt='text': given more than once"),
        ((TextPart(name="promt", text="x"),), "text_to_video", InputError, "promt='text': "),
        ((PROMPT,), "image_to_video", InputError, "image=None: task image_to_video needs this input; allowed: image"),
        ((LatentPart(name="prompt", latents=1),), "text_to_video", InputError, "prompt='latents': wrong kind"),
        ((TextPart(name="prompt", text=" \n"),), "text_to_video", PromptError, r"prompt=' \\n': the text is empty"),
        (
            (TextPart(name="prompt", text="a \udcff"),),
            "text_to_video",
            PromptError,
            r"prompt='a \\udcff': not Unicode text; allowed: text that UTF-8 can hold",
        ),
    ],
)
def test_bad_inputs_are_refused(inputs, task, error, text):
    with pytest.raises(error, match=text):
        prepare(*inputs, task=task)


def test_a_loop_that_the_weights_do_not_assume_is_refused(made_up, with_loop, with_task):
    node = ModelLoopNode(node_id="denoise", loop="other")
    other = TEXT_TO_VIDEO.model_copy(
        update={"nodes": (node, *(n for n in TEXT_TO_VIDEO.nodes if n.node_id != "denoise"))}
    )
    card = with_task(with_loop(CARD, "other"), program=made_up("OTHER", other))
    with pytest.raises(LoopMismatchError, match="loop='other': .*allowed: denoise"):
        prepare(card=card)


def test_defaults_that_contradict_the_weights_are_refused(with_loop):
    card = with_loop(CARD, "denoise", pinned={"num_inference_steps": 3})
    with pytest.raises(LoopMismatchError, match="num_inference_steps=4: .*nearest: 3"):
        prepare(card=card)


@pytest.mark.parametrize("program", ["no_such_package:X", "fastvideo_core.program:InlineProgram"])
def test_a_task_without_a_program_is_refused(program, with_task):
    with pytest.raises(CardError, match=program):
        check_task(with_task(CARD, program=program), "text_to_video")


def test_an_output_whose_loop_is_skipped_is_refused(made_up, with_task):
    edge = TensorEdge(node="text", output="embeds")
    text = ModelLoopNode(
        node_id="text", loop="text", inputs={"prompt": InputEdge(name="prompt")}, requires_input="prompt"
    )
    program = InlineProgram(
        program_id="p", nodes=(text, ArtifactNode(node_id="video", modality="latents", source=edge))
    )
    inputs = {
        "prompt": CARD.capabilities.tasks["text_to_video"].inputs["prompt"].model_copy(update={"required": False})
    }
    card = with_task(CARD, program=made_up("PROGRAM", program), inputs=inputs)
    assert prepare(card=card).inputs == {"prompt": "a red circle"}
    with pytest.raises(InputError, match="prompt=None: output video needs this input"):
        prepare_request(card, Request(task="text_to_video"))


def test_preparing_needs_no_torch():
    code = "import sys, fastvideo_core.runtime.prepare; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
