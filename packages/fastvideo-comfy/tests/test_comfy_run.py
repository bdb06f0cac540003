"""Workflows that run: numbers against a reference written from the formulas, files, products, adapters."""

from __future__ import annotations

import copy
import json

import av
import numpy as np
import pytest
import torch
from PIL import Image

from fastvideo_comfy.compiler import examine, installed_cards
from fastvideo_comfy.errors import WorkflowError
from fastvideo_comfy.files import parse_assignments
from fastvideo_comfy.graph import parse_document
from fastvideo_comfy.images import find_image, fit_image
from fastvideo_comfy.product import load_product
from fastvideo_comfy.requests import comfy_card, load_extensions, to_request
from fastvideo_comfy.running import RunSettings, plan_program, run_plan
from fastvideo_comfy.sigmas import sampler_levels
from fastvideo_core.card import ModelCard
from fastvideo_core.cli.main import main
from fastvideo_core.errors import MediaError, ParameterError
from fastvideo_core.request.base import OutputSpec
from fastvideo_core.runtime.engine import Engine
from fastvideo_core.runtime.loading import load_instance
from fastvideo_core.runtime.prepare import prepare_request
from fastvideo_core.runtime.samplers import load_samplers
from fastvideo_testing.wan_checkpoints import build_wan_checkpoint

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")

SEED = 923510416338945


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return build_wan_checkpoint(tmp_path_factory.mktemp("comfy") / "tiny", "t2v")


@pytest.fixture(scope="module")
def two_experts(tmp_path_factory):
    return build_wan_checkpoint(tmp_path_factory.mktemp("comfy") / "experts", "a14b-t2v")


def small(prompt, **changes):
    """Make the text-to-video workflow small."""
    prompt["37"]["inputs"]["unet_name"] = "tiny.safetensors"
    prompt["40"]["inputs"].update(width=32, height=32, length=9)
    prompt["3"]["inputs"].update({"steps": 6, "cfg": 3.0, "seed": SEED, **changes})
    return prompt


def models(folder):
    return [f"tiny.safetensors={folder}", f"wan_2.1_vae.safetensors={folder}:vae"]


def compile_small(prompt, folder, name="tiny"):
    document = parse_document(prompt, name=name)
    return examine(document, find_card=installed_cards(), files=parse_assignments(models(folder)))


def latents_of(program, tmp_path):
    """Run a program as it would be run, but for latents in place of a video."""
    extensions = load_extensions()
    (output,) = program.requests
    card = comfy_card(installed_cards()(output.card), extensions)
    request = to_request(program, output, card, images=tmp_path)
    request = request.model_copy(update={"outputs": OutputSpec(artifacts=("latents",))})
    prepared = prepare_request(card, request, extensions=extensions)
    with Engine(load_instance(card, samplers=load_samplers(extensions))) as engine:
        return np.asarray(engine.submit_prepared(prepared).result().artifacts["latents"].latents)


def reference_latents(folder, program, references, *, sampler, drops, switch=None):
    """Sample with the reference library's transformers, and the formulas in double precision."""
    from diffusers import WanPipeline

    pipeline = WanPipeline.from_pretrained(str(folder))
    pipeline.set_progress_bar_config(disable=True)
    (output,) = program.requests
    p = output.parameters
    positive, negative = pipeline.encode_prompt(output.texts["prompt"], p["negative_prompt"], max_sequence_length=512)
    _, _, scheduler = p["sampler"].split(".")
    levels = sampler_levels(scheduler, p["num_inference_steps"], p["flow_shift"], drops_last_but_one=drops)
    num_calls = 0

    def denoise(x, sigma):
        nonlocal num_calls
        is_low = switch is not None and num_calls >= switch
        num_calls += 1
        model = pipeline.transformer_2 if is_low else pipeline.transformer
        scale = p["guidance_scale_2"] if is_low else p["guidance_scale"]
        latents = torch.from_numpy(x).float()
        timestep = torch.tensor([np.float32(sigma)]) * 1000
        with torch.no_grad():
            vs = [
                model(latents, timestep, text, return_dict=False)[0].double().numpy() for text in (positive, negative)
            ]
        estimates = [x - sigma * v for v in vs]
        return estimates[1] + scale * (estimates[0] - estimates[1])

    frames, rows = (p["num_frames"] - 1) // 4 + 1, p["height"] // 8
    torch.manual_seed(p["seed"])
    noise = torch.randn(1, 16, frames, rows, p["width"] // 8).double().numpy()
    assert levels[0] == 1.0
    return references[sampler](noise, levels, [], denoise)


@pytest.mark.parametrize(
    ("sampler", "scheduler"), [("uni_pc", "simple"), ("euler", "karras"), ("res_multistep", "beta")]
)
def test_a_whole_run_is_that_of_the_formulas(prompt, tiny, tmp_path, comfy_references, sampler, scheduler):
    program = compile_small(small(prompt, sampler_name=sampler, scheduler=scheduler), tiny).expect()
    got = latents_of(program, tmp_path)
    expected = reference_latents(tiny, program, comfy_references, sampler=sampler, drops=sampler == "uni_pc")
    np.testing.assert_allclose(got.reshape(expected.shape), expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def test_two_experts_split_by_step_run_as_the_formulas_say(workflow, look, two_experts, tmp_path, comfy_references):
    document = workflow("video_wan2_2_14B_t2v")
    values = {
        ("128:74", "width"): 32, ("128:74", "height"): 32, ("128:74", "length"): 9, ("128:114", "value"): 5,
        ("128:115", "value"): 2, ("128:75", "unet_name"): "high.safetensors",
        ("128:76", "unet_name"): "low.safetensors", ("128:78", "cfg"): 2.0,
    }  # fmt: skip
    files = parse_assignments(
        [f"high.safetensors={two_experts}", f"low.safetensors={two_experts}:transformer_2",
         f"wan_2.1_vae.safetensors={two_experts}:vae"]
    )  # fmt: skip
    program = look(document, values=values, files=files).expect()
    assert program.requests[0].parameters["expert_switch_step"] == 2
    got = latents_of(program, tmp_path)
    expected = reference_latents(two_experts, program, comfy_references, sampler="euler", drops=False, switch=2)
    np.testing.assert_allclose(got.reshape(expected.shape), expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def run_command(tmp_path, *arguments):
    return main(["comfy", "run", *map(str, arguments), "-o", str(tmp_path / "out"), "-q"])


def test_run_writes_the_file_that_the_workflow_means(prompt, tiny, tmp_path, capsys):
    path = tmp_path / "workflow.json"
    path.write_text(json.dumps(small(prompt, steps=2)))
    options = [option for model in models(tiny) for option in ("--model", model)]
    assert run_command(tmp_path, path, *options, "--set", "49.fps=12") == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first == str(tmp_path / "out/video/ComfyUI.mp4")
    with av.open(first) as video:
        stream = video.streams.video[0]
        assert (stream.width, stream.height, stream.average_rate, stream.frames) == (32, 32, 12, 9)
    assert run_command(tmp_path, path, *options) == 0
    assert capsys.readouterr().out.splitlines()[0] == str(tmp_path / "out/video/ComfyUI-2.mp4")


def test_run_refuses_with_a_table(prompt, tmp_path, capsys):
    prompt["3"]["inputs"]["sampler_name"] = "eular"
    path = tmp_path / "workflow.json"
    path.write_text(json.dumps(prompt))
    assert run_command(tmp_path, path) == 2
    err = capsys.readouterr().err
    assert "node 3.sampler_name: no such sampler here" in err
    assert "nearest: euler" in err
    assert not (tmp_path / "out").exists()


def test_a_product_is_called_by_its_parameters(prompt, tiny, tmp_path, capsys):
    path, saved = tmp_path / "workflow.json", tmp_path / "product.json"
    path.write_text(json.dumps(small(prompt, steps=2)))
    options = [option for model in models(tiny) for option in ("--model", model)]
    names = ["--parameter", "prompt=6.text", "--parameter", "cfg=3.cfg", "--parameter", "length=40.length"]
    assert main(["comfy", "compile", str(path), "-o", str(saved), "--version", "2", *names, *options]) == 0
    product = load_product(saved)
    assert (product.name, product.version, set(product.parameters)) == ("product", "2", {"prompt", "cfg", "length"})
    schema = product.json_schema()["properties"]
    assert schema["cfg"] == {"type": "number", "default": 3.0, "description": "KSampler: cfg"}
    assert schema["length"]["type"] == "integer"
    assert main(["comfy", "compile", str(path), "-o", str(saved), *options]) == 2  # never written over
    capsys.readouterr()
    assert run_command(tmp_path, saved, "--set", "prompt=a dog", "--set", "length=5") == 0
    sidecar = json.loads((tmp_path / "out/video/ComfyUI.json").read_text())
    assert "a dog" in json.dumps(sidecar)
    with av.open(str(tmp_path / "out/video/ComfyUI.mp4")) as video:
        assert video.streams.video[0].frames == 5
    assert run_command(tmp_path, saved, "--set", "lenght=5") == 2
    assert "nearest: length" in capsys.readouterr().err
    assert run_command(tmp_path, saved, "--set", "length=6") == 2
    assert "node 40.length" in capsys.readouterr().err
    saved.write_text(saved.read_text().replace('"6"', '"77"', 1))
    with pytest.raises(WorkflowError, match="not a product"):
        load_product(saved)


def test_a_parameter_has_to_be_a_value(prompt, tiny, tmp_path):
    path = tmp_path / "workflow.json"
    path.write_text(json.dumps(small(prompt)))
    options = [option for model in models(tiny) for option in ("--model", model)]
    for place in ("3.model", "3.nothing", "99.text"):
        arguments = ["comfy", "compile", str(path), "-o", str(tmp_path / "p"), "--parameter", f"x={place}", *options]
        assert main(arguments) == 2
    assert not (tmp_path / "p").exists()


def test_outputs_share_a_model_and_end_alone(prompt, tiny, tmp_path):
    graph = small(prompt, steps=2)
    graph["60"] = {"class_type": "SaveImage", "inputs": {"images": ["8", 0], "filename_prefix": "still"}}
    program = compile_small(graph, tiny).expect()
    assert [request.output for request in program.requests] == ["50", "60"]
    plan = plan_program(program, RunSettings(), installed_cards())
    done = list(run_plan(plan, RunSettings()))
    assert [one.error for one in done] == [None, None]
    assert np.array_equal(done[0].result.video.frames, done[1].result.video.frames)


def test_images_are_cut_in_the_middle_and_scaled():
    wide = np.zeros((20, 60, 3), np.uint8)
    wide[:, 20:40] = 200
    assert (fit_image(wide, width=10, height=10) == 200).all()
    high = np.zeros((60, 20, 3), np.uint8)
    high[20:40] = 100
    assert (fit_image(high, width=40, height=40) == 100).all()
    ramp = np.repeat(np.arange(0, 200, 20, dtype=np.uint8)[None, :, None], 3, axis=2).repeat(5, axis=0)
    expected = np.interp((np.arange(20) + 0.5) / 2 - 0.5, np.arange(10), ramp[0, :, 0])
    np.testing.assert_allclose(fit_image(ramp, width=20, height=10)[0, :, 0], expected, atol=0.51)


def test_images_that_are_not_there_name_the_node(workflow, look, tmp_path):
    program = look(workflow("image_to_video_wan")).expect()
    card = comfy_card(installed_cards()("wan2.1-i2v-14b-480p"), load_extensions())
    assert isinstance(card, ModelCard)
    with pytest.raises(MediaError, match=r"node 52.image=.*there is no such image"):
        to_request(program, program.requests[0], card, images=tmp_path)
    name = program.node("o1.image").file
    Image.new("RGB", (64, 48), (9, 8, 7)).save(tmp_path / name)
    request = to_request(program, program.requests[0], card, images=tmp_path)
    assert request.part("image").pixels.shape == (512, 512, 3)
    with pytest.raises(MediaError, match="leaves the folder"):
        find_image(tmp_path, "../x.png", "node 1.image")


def test_a_graph_may_be_set_in_place_of_links(prompt, tiny):
    graph = small(copy.deepcopy(prompt))
    document = parse_document(graph)
    files = parse_assignments(models(tiny))
    with pytest.raises(ParameterError, match="nearest: steps"):
        examine(document, find_card=installed_cards(), files=files, values={("3", "step"): 4})
    with pytest.raises(ParameterError, match="no such node"):
        examine(document, find_card=installed_cards(), files=files, values={("333", "steps"): 4})
