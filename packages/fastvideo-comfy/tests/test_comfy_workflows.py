"""Whole workflow files, each with the outcome and the values that it has to have."""

from __future__ import annotations

import pytest

from fastvideo_comfy.errors import UnsupportedWorkflowError
from fastvideo_comfy.program import ComponentNode, LoopNode, OutputNode, WorkflowProgram

ADVANCED = {"steps": 20, "sampler_name": "euler", "scheduler": "simple"}

VALUES = {
    "text_to_video_wan": {
        "3": {"seed": 82628696717253, "steps": 30, "cfg": 6, "sampler_name": "uni_pc", "scheduler": "simple",
              "denoise": 1},
        "37": {"unet_name": "wan2.1_t2v_1.3B_fp16.safetensors", "weight_dtype": "default"},
        "40": {"width": 832, "height": 480, "length": 33, "batch_size": 1},
        "48": {"shift": 8},
        "49": {"fps": 16},
    },
    "image_to_video_wan": {
        "3": {"seed": 987948718394761, "steps": 20, "cfg": 6, "sampler_name": "uni_pc", "scheduler": "simple",
              "denoise": 1},
        "37": {"unet_name": "wan2.1_i2v_480p_14B_fp16.safetensors", "weight_dtype": "default"},
        "50": {"width": 512, "height": 512, "length": 33, "batch_size": 1},
        "54": {"shift": 8},
        "55": {"fps": 16},
    },
    "video_wan2_2_14B_t2v": {
        "128:74": {"width": 640, "height": 640, "length": 81, "batch_size": 1},
        "128:75": {"unet_name": "wan2.2_t2v_high_noise_14B_fp8_scaled.safetensors", "weight_dtype": "default"},
        "128:76": {"unet_name": "wan2.2_t2v_low_noise_14B_fp8_scaled.safetensors", "weight_dtype": "default"},
        "128:78": {**ADVANCED, "add_noise": "disable", "noise_seed": 0, "cfg": 3.5, "start_at_step": 10,
                   "end_at_step": 20, "return_with_leftover_noise": "disable"},
        "128:81": {**ADVANCED, "add_noise": "enable", "noise_seed": 923510416338945, "cfg": 3.5, "start_at_step": 0,
                   "end_at_step": 10, "return_with_leftover_noise": "enable"},
        "128:82": {"shift": 5.000000000000001},
        "128:86": {"shift": 5.000000000000001},
        "128:88": {"fps": 16},
    },
    "video_wan2_2_14B_flf2v": {
        "73": {"shift": 8.000000000000002},
        "74": {"shift": 8},
        "76": {"unet_name": "wan2.2_i2v_high_noise_14B_fp8_scaled.safetensors", "weight_dtype": "default"},
        "77": {"unet_name": "wan2.2_i2v_low_noise_14B_fp8_scaled.safetensors", "weight_dtype": "default"},
        "81": {"width": 640, "height": 640, "length": 81, "batch_size": 1},
        "84": {**ADVANCED, "add_noise": "enable", "noise_seed": 984937593540091, "cfg": 4, "start_at_step": 0,
               "end_at_step": 10, "return_with_leftover_noise": "enable"},
        "86": {"fps": 16},
        "87": {**ADVANCED, "add_noise": "disable", "noise_seed": 0, "cfg": 4, "start_at_step": 10,
               "end_at_step": 10000, "return_with_leftover_noise": "disable"},
    },
    "video_wan_vace_14B_t2v": {
        "106": {"unet_name": "wan2.1_vace_14B_fp16.safetensors", "weight_dtype": "default"},
        "107": {"lora_name": "Wan21_CausVid_14B_T2V_lora_rank32.safetensors", "strength_model": 0.7000000000000002,
                "strength_clip": 1},
        "3": {"seed": 675909971186865, "steps": 4, "cfg": 1, "sampler_name": "uni_pc", "scheduler": "simple",
              "denoise": 1},
        "48": {"shift": 8.000000000000002},
        "49": {"width": 1280, "height": 720, "length": 81, "batch_size": 1, "strength": 1},
        "68": {"fps": 16},
    },
    "video_fastvideo_fasth3_t2v": {
        "105:148": {"video_shift": 10, "audio_shift": 3},
        "105:15": {"noise_seed": 631153434041465},
        "105:6": {"unet_name": "fastvideo_fasth3_8step_v2_pruned_int8_convrot.safetensors", "weight_dtype": "default"},
        "105:9": {"scheduler": "simple", "steps": 8, "denoise": 1},
        "105:91": {"fps": 24, "bit_depth": "auto", "color_space": "sRGB", "codec": "none"},
    },
    "own_cosmos_predict2_v2w": {
        "1": {"unet_name": "cosmos_predict2_2B_video2world_480p_16fps.safetensors", "weight_dtype": "default"},
        "10": {"fps": 16},
        "7": {"width": 848, "height": 480, "length": 93, "batch_size": 1},
        "8": {"seed": 20250607, "steps": 35, "cfg": 4.0, "sampler_name": "euler", "scheduler": "karras",
              "denoise": 1.0},
    },
}  # fmt: skip

REFUSED = {
    "video_wan_vace_14B_t2v": {"WanVaceToVideo", "TrimVideoLatent"},
    "video_fastvideo_fasth3_t2v": {
        "MiniMaxH3ImageToVideo", "MiniMaxH3SigmaShift", "BlockSparseAttention", "ModelAttentionBackend",
        "VAEDecodeAudio", "ResolutionSelector",
    },
    "own_cosmos_predict2_v2w": {"UNETLoader", "CosmosPredict2ImageToVideoLatent"},
    "api_wan2_6_t2v": {"WanTextToVideoApi"},
}  # fmt: skip

LIVE = {
    "text_to_video_wan": {
        "CLIPLoader", "CLIPTextEncode", "CreateVideo", "EmptyHunyuanLatentVideo", "KSampler", "ModelSamplingSD3",
        "SaveVideo", "UNETLoader", "VAEDecode", "VAELoader",
    },
    "image_to_video_wan": {
        "CLIPLoader", "CLIPTextEncode", "CLIPVisionEncode", "CLIPVisionLoader", "CreateVideo", "KSampler", "LoadImage",
        "ModelSamplingSD3", "SaveVideo", "UNETLoader", "VAEDecode", "VAELoader", "WanImageToVideo",
    },
    "video_wan2_2_14B_t2v": {
        "CLIPLoader", "CLIPTextEncode", "ComfyMathExpression", "ComfySwitchNode", "CreateVideo",
        "EmptyHunyuanLatentVideo", "KSamplerAdvanced", "ModelSamplingSD3", "PrimitiveBoolean", "PrimitiveFloat",
        "PrimitiveInt", "SaveVideo", "UNETLoader", "VAEDecode", "VAELoader",
    },
    "video_wan2_2_14B_flf2v": {
        "CLIPLoader", "CLIPTextEncode", "CreateVideo", "KSamplerAdvanced", "LoadImage", "ModelSamplingSD3",
        "SaveVideo", "UNETLoader", "VAEDecode", "VAELoader", "WanFirstLastFrameToVideo",
    },
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(VALUES))
def test_values_are_those_that_comfyui_would_run_with(workflow, look, name):
    report = look(workflow(name)).report
    for node_id, values in VALUES[name].items():
        assert report.node(node_id).values == values, node_id


@pytest.mark.parametrize("name", sorted(LIVE))
def test_these_compile(workflow, look, name):
    compiled = look(workflow(name))
    assert compiled.report.problems == ()
    assert len(compiled.expect().requests) == 1
    taking_part = compiled.report.of_status("compiled") + compiled.report.of_status("folded")
    assert {node.type for node in taking_part} == LIVE[name]


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_these_are_refused_for_exactly_these_nodes(workflow, look, name):
    compiled = look(workflow(name))
    with pytest.raises(UnsupportedWorkflowError) as caught:
        compiled.expect()
    report = caught.value.report
    assert {node.type for node in report.of_status("unsupported")} == REFUSED[name]
    assert all(node.why for node in report.of_status("unsupported"))
    assert set(report.errors()["node_errors"]) == {node.node_id for node in report.of_status("unsupported")}


def test_both_forms_of_a_graph_are_one_program(workflow, look):
    ui, api = (look(workflow(f"text_to_video_wan{end}")).expect() for end in ("", ".api"))
    assert ui.model_copy(update={"program_id": "x"}) == api.model_copy(update={"program_id": "x"})


def test_the_text_to_video_request(workflow, look):
    program = look(workflow("text_to_video_wan")).expect()
    (request,) = program.requests
    assert (request.output, request.card, request.task) == ("50", "wan2.1-t2v-1.3b", "text_to_video")
    assert request.texts["prompt"].startswith("a fox moving quickly")
    assert request.parameters["negative_prompt"].startswith("色调艳丽")
    assert {name: value for name, value in request.parameters.items() if name != "negative_prompt"} == {
        "width": 832, "height": 480, "num_frames": 33, "num_inference_steps": 30, "flow_shift": 8.0,
        "sampler": "comfy.uni_pc.simple", "seed": 82628696717253, "guidance_scale": 6.0, "fps": 16.0,
    }  # fmt: skip
    assert (request.file.prefix, request.file.format) == ("video/ComfyUI", "mp4")
    assert (len(request.sigmas), request.sigmas[0], request.sigmas[-1]) == (31, 1.0, 0.0)
    assert WorkflowProgram.model_validate_json(program.model_dump_json()) == program


def test_a_program_has_typed_nodes_and_edges(workflow, look):
    program = look(workflow("text_to_video_wan")).expect()
    loops = {node.loop: node for node in program.nodes if isinstance(node, LoopNode)}
    assert list(loops) == ["text_encode", "diffusion_denoise", "vae_decode"]
    assert loops["diffusion_denoise"].inputs["text"].node == loops["text_encode"].node_id
    assert loops["vae_decode"].inputs["latents"].node == loops["diffusion_denoise"].node_id
    assert {name: node.origin for name, node in loops.items()} == {
        "text_encode": ("6", "38", "7"),
        "diffusion_denoise": ("3",),
        "vae_decode": ("8",),
    }
    files = {node.component: (node.file, node.folder) for node in program.nodes if isinstance(node, ComponentNode)}
    assert files == {
        "transformer": ("wan2.1_t2v_1.3B_fp16.safetensors", "diffusion_models"),
        "text_encoder": ("umt5_xxl_fp8_e4m3fn_scaled.safetensors", "text_encoders"),
        "vae": ("wan_2.1_vae.safetensors", "vae"),
    }
    (output,) = [node for node in program.nodes if isinstance(node, OutputNode)]
    assert (output.origin, output.source.node) == (("49", "50"), loops["vae_decode"].node_id)


def test_two_experts_split_by_step_and_dead_adapters(workflow, look):
    compiled = look(workflow("video_wan2_2_14B_t2v"))
    program = compiled.expect()
    (request,) = program.requests
    asked = {"num_inference_steps": 20, "guidance_scale": 3.5, "guidance_scale_2": 3.5, "expert_switch_step": 10}
    assert {name: request.parameters[name] for name in asked} == asked
    assert request.card == "wan2.2-t2v-a14b"
    assert program.adapters(request) == {}
    assert {node.type for node in compiled.report.of_status("dead")} >= {"LoraLoaderModelOnly"}
    files = {node.component: node.file for node in program.nodes if isinstance(node, ComponentNode)}
    assert "high_noise" in files["transformer"]
    assert "low_noise" in files["transformer_2"]
    # With shift 5 the level at which the second expert begins is no expert boundary of the card's own.
    assert request.sigmas[10] == pytest.approx(5 / 6, abs=1e-7)


def test_turning_the_switch_brings_the_adapters_to_life(workflow, look):
    compiled = look(workflow("video_wan2_2_14B_t2v"), values={("128:129", "value"): True})
    program = compiled.expect()
    (request,) = program.requests
    asked = {"num_inference_steps": 4, "guidance_scale": 1.0, "expert_switch_step": 2}
    assert {name: request.parameters[name] for name in asked} == asked
    adapters = program.adapters(request)
    assert {name: one.file.rpartition("_")[2] for name, (one,) in adapters.items()} == {
        "transformer": "noise.safetensors",
        "transformer_2": "noise.safetensors",
    }
    assert {one.strength for (one,) in adapters.values()} == {1.0000000000000002}


def test_first_and_last_frame(workflow, look):
    compiled = look(workflow("video_wan2_2_14B_flf2v"))
    program = compiled.expect()
    (request,) = program.requests
    images = {name: program.node(node_id) for name, node_id in request.images.items()}
    assert set(images) == {"image", "last_image"}
    assert images["image"].file != images["last_image"].file
    assert {node.type for node in compiled.report.of_status("inert")} >= {"LoraLoaderModelOnly"}


def test_an_instance_hides_what_stands_inside(workflow, look):
    report = look(workflow("video_fastvideo_fasth3_t2v")).report
    prompt = report.node("105:104").values["prompt"]
    assert prompt.startswith("integrated_multimodal_description")
    assert report.node("105:104").values["length"] % 17 == 5


def test_errors_have_comfyuis_shape(workflow, look):
    errors = look(workflow("own_cosmos_predict2_v2w")).report.errors()
    assert errors["error"]["type"] == "prompt_outputs_failed_validation"
    entry = errors["node_errors"]["1"]
    assert entry["class_type"] == "UNETLoader"
    assert entry["dependent_outputs"] == ["11"]
    (error,) = entry["errors"]
    assert set(error) == {"type", "message", "details", "extra_info"}
    assert error["extra_info"]["received_value"] == "cosmos_predict2_2B_video2world_480p_16fps.safetensors"
