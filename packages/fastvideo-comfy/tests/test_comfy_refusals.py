"""What is wrong with a workflow's values and connections: every reason, at its node and input, with what is allowed."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from fastvideo_comfy.errors import UnsupportedWorkflowError
from fastvideo_core.cli.main import main
from fastvideo_core.errors import ParameterError

CHANGES = [
    ("3", "sampler_name", "eular", "value_not_in_list", "euler"),
    ("3", "scheduler", "simpel", "value_not_in_list", "simple"),
    ("3", "denoise", 0.5, "unsupported_denoise", "1"),
    ("3", "steps", 0, "value_smaller_than_min", "1"),
    ("3", "steps", 2.5, "invalid_input_type", ""),
    ("3", "steps", 1, "value_smaller_than_min", "2"),
    ("3", "cfg", 0.5, "value_smaller_than_min", "1"),
    ("3", "cfg", "six", "invalid_input_type", ""),
    ("3", "cfg", float("inf"), "invalid_input_type", ""),
    ("3", "seed", -1, "value_smaller_than_min", "0"),
    ("3", "seed", None, "invalid_input_type", ""),
    ("3", "model", 7, "return_type_mismatch", ""),
    ("3", "model", ["40", 0], "return_type_mismatch", ""),
    ("3", "latent_image", ["38", 0], "return_type_mismatch", ""),
    ("3", "strange", 1, "unknown_input", ""),
    ("6", "text", "a (fox:1.2) runs", "weighted_prompt", ""),
    ("6", "text", "embedding:style fox", "embedding_prompt", ""),
    ("6", "text", 5, "invalid_input_type", ""),
    ("37", "unet_name", "../../secret.safetensors", "invalid_file_name", ""),
    ("37", "unet_name", "wan2.1_t2v_1.4B_fp16.safetensors", "value_not_in_list", "wan2.1_t2v"),
    ("37", "weight_dtype", "fp8_e4m3fn", "value_not_in_list", "default"),
    ("38", "type", "sd3", "value_not_in_list", "wan"),
    ("38", "clip_name", "t5xxl_fp16.safetensors", "value_not_in_list", "umt5_xxl"),
    ("38", "device", "cpu", "value_not_in_list", "default"),
    ("39", "vae_name", "wan2.2_vae.safetensors", "value_not_in_list", "wan2.2_vae"),
    ("40", "width", 833, "value_not_on_grid", "832"),
    ("40", "length", 34, "value_not_on_grid", "33"),
    ("40", "batch_size", 2, "unsupported_batch", "1"),
    ("48", "shift", 0, "value_smaller_than_min", ""),
    ("49", "fps", 0, "value_smaller_than_min", "0.1"),
    ("49", "audio", ["37", 0], "return_type_mismatch", ""),
    ("49", "bit_depth", 10, "value_not_in_list", ""),
    ("50", "filename_prefix", "/abs/x", "invalid_file_name", ""),
    ("50", "filename_prefix", "x%date%", "unsupported_input", ""),
    ("50", "format", "webm", "value_not_in_list", "mp4"),
    ("50", "codec", "vp9", "value_not_in_list", ""),
    ("50", "video", ["8", 0], "return_type_mismatch", ""),
    ("49", "images", ["99", 0], "dangling_link", ""),
]


@pytest.mark.parametrize(("node", "name", "value", "code", "nearest"), CHANGES)
def test_a_wrong_input_is_named(prompt, look, node, name, value, code, nearest):
    prompt[node]["inputs"][name] = value
    report = look(prompt).report
    found = [(problem.node, problem.input, problem.code, problem.nearest) for problem in report.problems]
    places = {(one[0], one[2]) for one in found}
    assert (node, code) in places, found
    if nearest:
        assert any(one[3].startswith(nearest) for one in found if one[2] == code), found
    assert report.node(node).status == "unsupported"


def test_all_reasons_come_at_once(prompt, look):
    prompt["3"]["inputs"].update(sampler_name="x", scheduler="y", denoise=0.1)
    prompt["40"]["inputs"]["batch_size"] = 3
    prompt["37"]["inputs"]["weight_dtype"] = "fp8_e5m2"
    prompt["50"]["inputs"]["format"] = "avi"
    compiled = look(prompt)
    with pytest.raises(UnsupportedWorkflowError, match="and [0-9]+ more reasons"):
        compiled.expect()
    places = {(problem.node, problem.input) for problem in compiled.report.problems}
    assert places >= {
        ("3", "sampler_name"), ("3", "scheduler"), ("3", "denoise"), ("40", "batch_size"), ("37", "weight_dtype"),
        ("50", "format"),
    }  # fmt: skip


@pytest.mark.parametrize("missing", ["model", "positive", "latent_image", "steps", "sampler_name", "seed"])
def test_missing_inputs_are_named(prompt, look, missing):
    del prompt["3"]["inputs"][missing]
    problems = look(prompt).report.problems
    assert [(one.node, one.input, one.code) for one in problems] == [("3", missing, "required_input_missing")]


def test_a_workflow_without_an_output(prompt, look):
    del prompt["50"]
    report = look(prompt).report
    assert [problem.code for problem in report.problems] == ["prompt_no_outputs"]
    assert report.errors()["error"]["type"] == "prompt_no_outputs"


def test_a_cycle_through_samplers(prompt, look):
    prompt["3"]["inputs"]["latent_image"] = ["3", 0]
    assert not look(prompt).report.is_supported
    prompt["48"]["inputs"]["model"] = ["48", 0]
    assert any(problem.code == "cycle" for problem in look(prompt).report.problems)


def test_dead_and_unreachable_nodes_need_no_support(prompt, look):
    prompt["77"] = {"class_type": "SomethingUnknown", "inputs": {"x": "{a|b}"}}
    prompt["78"] = {"class_type": "PreviewImage", "inputs": {"images": ["8", 0]}}
    report = look(prompt).report
    assert report.is_supported
    assert {report.node(name).status for name in ("77", "78")} == {"inert"}


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({("87", "start_at_step"): 9}, "start_at_step"),
        ({("87", "add_noise"): "enable"}, "add_noise"),
        ({("87", "end_at_step"): 15}, "add_noise"),
        ({("87", "steps"): 21}, "steps"),
        ({("87", "scheduler"): "beta"}, "scheduler"),
        ({("73", "shift"): 5.0}, "model"),
        ({("84", "return_with_leftover_noise"): "disable"}, "return_with_leftover_noise"),
        ({("84", "sampler_name"): "uni_pc", ("87", "sampler_name"): "uni_pc"}, "sampler_name"),
        ({("87", "cfg"): 1.0}, "cfg"),
        ({("76", "unet_name"): "wan2.2_t2v_high_noise_14B_fp8_scaled.safetensors"}, "unet_name"),
    ],
)
def test_two_stages_that_are_not_one_schedule(workflow, look, changes, name):
    report = look(workflow("video_wan2_2_14B_flf2v"), values=changes).report
    assert name in {problem.input for problem in report.problems}
    assert {problem.node for problem in report.problems} <= {"84", "87", "76", "77"}


def test_one_expert_of_two_is_refused(prompt, look):
    prompt["37"]["inputs"]["unet_name"] = "wan2.2_t2v_high_noise_14B_fp16.safetensors"
    (problem,) = look(prompt).report.problems
    assert (problem.node, problem.code) == ("3", "model_mismatch")
    assert "two experts" in problem.message


def test_guidance_against_zeros(prompt, look):
    prompt["9"] = {"class_type": "ConditioningZeroOut", "inputs": {"conditioning": ["6", 0]}}
    prompt["3"]["inputs"]["negative"] = ["9", 0]
    assert [one.input for one in look(prompt).report.problems] == ["negative"]
    prompt["3"]["inputs"]["cfg"] = 1
    request = look(prompt).expect().requests[0]
    assert request.parameters["guidance_scale"] == 1.0
    assert "negative_prompt" not in request.parameters


def test_escaped_brackets_are_text(prompt, look):
    prompt["6"]["inputs"]["text"] = r"a fox \(red\)"
    assert look(prompt).expect().requests[0].texts["prompt"] == "a fox (red)"


def custom(prompt, **changes):
    """Turn the sampler into the custom nodes."""
    inputs = prompt["3"]["inputs"]
    prompt["60"] = {"class_type": "KSamplerSelect", "inputs": {"sampler_name": "uni_pc"}}
    prompt["61"] = {
        "class_type": "BasicScheduler",
        "inputs": {"model": ["48", 0], "scheduler": "beta", "steps": 8, "denoise": 1.0},
    }
    prompt["62"] = {"class_type": "RandomNoise", "inputs": {"noise_seed": 5}}
    prompt["63"] = {
        "class_type": "CFGGuider",
        "inputs": {"model": ["37", 0], "positive": inputs["positive"], "negative": inputs["negative"], "cfg": 4.0},
    }
    prompt["3"] = {
        "class_type": "SamplerCustomAdvanced",
        "inputs": {
            "noise": ["62", 0], "guider": ["63", 0], "sampler": ["60", 0], "sigmas": ["61", 0],
            "latent_image": inputs["latent_image"],
        },
    }  # fmt: skip
    for (node, name), value in changes.items():
        prompt[node]["inputs"][name] = value
    return prompt


def test_custom_sampler_nodes_compile(prompt, look):
    request = look(custom(prompt)).expect().requests[0]
    asked = {"num_inference_steps": 8, "guidance_scale": 4.0, "seed": 5, "flow_shift": 8.0}
    assert {name: request.parameters[name] for name in asked} == asked
    assert request.parameters["sampler"] == "comfy.uni_pc-custom.beta"
    assert len(request.sigmas) == 9


def test_the_other_custom_node_and_a_guider_without_scale(prompt, look):
    graph = custom(prompt)
    graph["63"] = {"class_type": "BasicGuider", "inputs": {"model": ["48", 0], "conditioning": ["6", 0]}}
    assert look(graph).expect().requests[0].parameters["guidance_scale"] == 1.0
    graph["3"] = {
        "class_type": "SamplerCustom",
        "inputs": {
            "model": ["48", 0], "positive": ["6", 0], "negative": ["7", 0], "sampler": ["60", 0], "sigmas": ["61", 0],
            "latent_image": ["40", 0], "add_noise": True, "noise_seed": 9, "cfg": 3.0,
        },
    }  # fmt: skip
    assert look(graph).expect().requests[0].parameters["seed"] == 9
    graph["3"]["inputs"]["add_noise"] = False
    assert [one.input for one in look(graph).report.problems] == ["add_noise"]


def test_the_estimate_before_the_last_step_is_not_kept(prompt, look):
    graph = custom(prompt)
    graph["8"]["inputs"]["samples"] = ["3", 1]
    assert ("3", "unsupported_output") in {(one.node, one.code) for one in look(graph).report.problems}


def test_adapters_stack_in_the_order_of_the_chain(prompt, look):
    for key, source, strength in (("70", "37", 0.5), ("71", "70", -1), ("72", "71", 0)):
        prompt[key] = {
            "class_type": "LoraLoaderModelOnly",
            "inputs": {"model": [source, 0], "lora_name": f"{key}.safetensors", "strength_model": strength},
        }
    prompt["48"]["inputs"]["model"] = ["72", 0]
    program = look(prompt).expect()
    uses = program.adapters(program.requests[0])["transformer"]
    assert [(use.file, use.strength) for use in uses] == [("70.safetensors", 0.5), ("71.safetensors", -1.0)]


def test_an_adapter_on_the_text_encoder_is_refused(prompt, look):
    prompt["70"] = {
        "class_type": "LoraLoader",
        "inputs": {
            "model": ["37", 0], "clip": ["38", 0], "lora_name": "a.safetensors", "strength_model": 1.0,
            "strength_clip": 1.0,
        },
    }  # fmt: skip
    prompt["48"]["inputs"]["model"] = ["70", 0]
    prompt["6"]["inputs"]["clip"] = prompt["7"]["inputs"]["clip"] = ["70", 1]
    assert [one.code for one in look(prompt).report.problems] == ["unsupported_adapter"]
    prompt["70"]["inputs"]["strength_clip"] = 0
    assert look(prompt).report.is_supported


def test_the_vision_encoder_sees_the_first_frame(workflow, look):
    document = workflow("image_to_video_wan")
    report = look(document, values={("50", "clip_vision_output"): None}).report
    assert [(one.node, one.input, one.code) for one in report.problems] == [
        ("50", "clip_vision_output", "required_input_missing")
    ]


@pytest.mark.parametrize("text", ["3", "3.", ".x", "3.x", "=1"])
def test_values_of_another_form(tmp_path, prompt, text, capsys):
    path = tmp_path / "w.json"
    path.write_text(json.dumps(prompt))
    assert main(["comfy", "check", str(path), "--set", text]) == 2
    assert "allowed:" in capsys.readouterr().err


def test_check_prints_a_table_or_json(tmp_path, prompt, capsys):
    path = tmp_path / "w.json"
    path.write_text(json.dumps(prompt))
    assert main(["comfy", "check", str(path), "--set", "3.steps=20"]) == 0
    out = capsys.readouterr().out
    assert "w: compiles; nodes: 11 compiled" in out
    assert main(["comfy", "check", str(path), "--set", "3.steps=0", "--json"]) == 2
    content = json.loads(capsys.readouterr().out)
    assert content["node_errors"]["3"]["errors"][0]["extra_info"]["nearest"] == "1"
    assert {node["id"]: node["status"] for node in content["nodes"]}["3"] == "unsupported"
    assert main(["comfy", "compile", str(path)]) == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "workflow"


def test_setting_what_is_not_there(prompt, look):
    with pytest.raises(ParameterError, match="nearest: sampler_name"):
        look(prompt, values={("3", "sampler"): "euler"})


def test_compiling_imports_no_torch(tmp_path, prompt):
    path = tmp_path / "w.json"
    path.write_text(json.dumps(prompt))
    code = (
        "import sys; from fastvideo_core.cli.main import main; "
        f"assert main(['comfy', 'check', {str(path)!r}]) == 0; assert 'torch' not in sys.modules; "
        "assert 'numpy' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_ten_thousand_nodes_of_every_kind_end(prompt, look):
    prompt["37"]["inputs"]["unet_name"] = "x"
    many = {f"u{k}": {"class_type": "Unknown", "inputs": {"video": ["49", 0]}} for k in range(10_000)}
    prompt["50"]["inputs"].update({f"v{k}": [f"u{k}", 0] for k in range(10_000)})
    report = look({**prompt, **many}).report
    assert len(report.of_status("unsupported")) == 10_002
    chain = {
        f"l{k}": {
            "class_type": "LoraLoaderModelOnly",
            "inputs": {"model": [f"l{k - 1}" if k else "37", 0], "lora_name": "a", "strength_model": 1.0},
        }
        for k in range(2000)
    }
    prompt["48"]["inputs"]["model"] = ["l1999", 0]
    assert any(one.code == "chain_too_long" for one in look({**prompt, **chain}).report.problems)
    outputs = {f"s{k}": {"class_type": "SaveVideo", "inputs": {"video": ["49", 0]}} for k in range(300)}
    assert any(one.code == "too_many_outputs" for one in look({**prompt, **outputs}).report.problems)


@pytest.mark.parametrize(
    ("file", "kind", "nearest"),
    [
        ("wan2.2_ti2v_5B_fp16.safetensors", "EmptyHunyuanLatentVideo", "Wan22ImageToVideoLatent"),
        ("wan2.1_t2v_14B_fp16.safetensors", "Wan22ImageToVideoLatent", "EmptyHunyuanLatentVideo"),
    ],
)
def test_latents_of_another_vae(prompt, look, file, kind, nearest):
    prompt["37"]["inputs"]["unet_name"] = file
    prompt["40"]["class_type"] = kind
    prompt["40"]["inputs"]["vae"] = ["39", 0]
    if kind == "EmptyHunyuanLatentVideo":
        del prompt["40"]["inputs"]["vae"]
    found = [(one.node, one.code, one.nearest) for one in look(prompt).report.problems]
    assert ("40", "latent_mismatch", nearest) in found


def test_the_small_model_compiles_with_its_own_latents(prompt, look):
    prompt["37"]["inputs"]["unet_name"] = "wan2.2_ti2v_5B_fp16.safetensors"
    prompt["39"]["inputs"]["vae_name"] = "wan2.2_vae.safetensors"
    prompt["40"]["class_type"] = "Wan22ImageToVideoLatent"
    prompt["40"]["inputs"].update(vae=["39", 0], width=1280, height=704)
    (request,) = look(prompt).expect().requests
    assert (request.card, request.task, request.images) == ("wan2.2-ti2v-5b", "text_to_video", {})
    prompt["80"] = {"class_type": "LoadImage", "inputs": {"image": "cat.png"}}
    prompt["40"]["inputs"]["start_image"] = ["80", 0]
    (request,) = look(prompt).expect().requests
    assert (request.task, set(request.images)) == ("image_to_video", {"image"})
