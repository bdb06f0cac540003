"""ComfyUI's single files and folders: names against the reference library's conversion, formats, what is refused."""

from __future__ import annotations

import json
import re

import av
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from fastvideo_comfy.files import CardFile, FileMap, name_problem, parse_assignments
from fastvideo_comfy.folders import ModelFolders, read_extra_paths
from fastvideo_comfy.keys import WAN_TRANSFORMER, WAN_VAE, is_weight
from fastvideo_comfy.stage import stage_card
from fastvideo_core.cli.main import main
from fastvideo_core.errors import CheckpointError, InputError, ParameterError
from fastvideo_core.runtime.catalog import Catalog
from fastvideo_core.runtime.loading import load_instance
from fastvideo_testing.wan_checkpoints import build_wan_checkpoint

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")

# From diffusers' names to those of the original release: the other way round than the package's own map.
TO_ORIGINAL = [
    (r"^condition_embedder\.time_embedder\.linear_1\.", "time_embedding.0."),
    (r"^condition_embedder\.time_embedder\.linear_2\.", "time_embedding.2."),
    (r"^condition_embedder\.time_proj\.", "time_projection.1."),
    (r"^condition_embedder\.text_embedder\.linear_1\.", "text_embedding.0."),
    (r"^condition_embedder\.text_embedder\.linear_2\.", "text_embedding.2."),
    (r"^condition_embedder\.image_embedder\.norm1\.", "img_emb.proj.0."),
    (r"^condition_embedder\.image_embedder\.ff\.net\.0\.proj\.", "img_emb.proj.1."),
    (r"^condition_embedder\.image_embedder\.ff\.net\.2\.", "img_emb.proj.3."),
    (r"^condition_embedder\.image_embedder\.norm2\.", "img_emb.proj.4."),
    (r"^scale_shift_table$", "head.modulation"),
    (r"^proj_out\.", "head.head."),
    (r"^(blocks\.\d+)\.scale_shift_table$", r"\1.modulation"),
    (r"\.ffn\.net\.0\.proj\.", ".ffn.0."),
    (r"\.ffn\.net\.2\.", ".ffn.2."),
    (r"^(blocks\.\d+)\.norm2\.", r"\1.norm3."),
    (r"\.attn2\.add_([kv])_proj\.", r".cross_attn.\1_img."),
    (r"\.attn2\.norm_added_k\.", ".cross_attn.norm_k_img."),
    (r"\.attn1\.", ".self_attn."),
    (r"\.attn2\.", ".cross_attn."),
    (r"\.to_([qkv])\.", r".\1."),
    (r"\.to_out\.0\.", ".o."),
]
RESNET = [
    (r"\.norm1\.gamma$", ".residual.0.gamma"),
    (r"\.conv1\.", ".residual.2."),
    (r"\.norm2\.gamma$", ".residual.3.gamma"),
    (r"\.conv2\.", ".residual.6."),
    (r"\.conv_shortcut\.", ".shortcut."),
]


def rename(name, rules):
    for pattern, replacement in rules:
        name = re.sub(pattern, replacement, name)
    return name


def vae_name(name):
    name = re.sub(r"^quant_conv\.", "conv1.", re.sub(r"^post_quant_conv\.", "conv2.", name))
    name = re.sub(r"\.conv_in\.", ".conv1.", name)
    name = re.sub(r"\.norm_out\.gamma$", ".head.0.gamma", re.sub(r"\.conv_out\.", ".head.2.", name))
    if ".mid_block." in name or "_blocks." in name:
        if "_blocks." in name or "resnets" in name:
            name = rename(name, RESNET)
        name = re.sub(r"mid_block\.attentions\.0", "middle.1", name)
        name = re.sub(r"mid_block\.resnets\.(\d)", lambda m: f"middle.{2 * int(m[1])}", name)
        name = name.replace("encoder.down_blocks.", "encoder.downsamples.")
        name = re.sub(
            r"decoder\.up_blocks\.(\d)\.resnets\.(\d)", lambda m: f"decoder.upsamples.{4 * int(m[1]) + int(m[2])}", name
        )
        name = re.sub(
            r"decoder\.up_blocks\.(\d)\.upsamplers\.0", lambda m: f"decoder.upsamples.{4 * int(m[1]) + 3}", name
        )
    return name


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("comfy-files") / "tiny"
    return build_wan_checkpoint(place, "i2v-vision", vae={"num_res_blocks": 2, "dim_mult": [1, 2, 4, 4]})


def tensors(folder, part):
    (path,) = (folder / part).glob("*.safetensors")
    return load_file(path)


@pytest.fixture(scope="module")
def single(folder):
    """The checkpoint's parts with the names that ComfyUI's files have."""
    transformer = {rename(k, TO_ORIGINAL): v for k, v in tensors(folder, "transformer").items()}
    return {
        "transformer": transformer,
        "vae": {vae_name(k): v for k, v in tensors(folder, "vae").items()},
        "text_encoder": tensors(folder, "text_encoder"),
        "image_encoder": {f"vision_model.{k.removeprefix('vision_model.')}": v
                          for k, v in tensors(folder, "image_encoder").items()},
    }  # fmt: skip


def test_the_original_names_are_those_that_the_reference_converts(folder, single):
    from diffusers.loaders.single_file_utils import convert_wan_transformer_to_diffusers, convert_wan_vae_to_diffusers

    converted = convert_wan_transformer_to_diffusers(dict(single["transformer"]))
    assert set(converted) == set(tensors(folder, "transformer"))
    assert {WAN_TRANSFORMER(name) for name in single["transformer"]} == set(converted)
    for name, tensor in single["transformer"].items():
        assert torch.equal(converted[WAN_TRANSFORMER(name)], tensor)
        assert WAN_TRANSFORMER(f"model.diffusion_model.{name}") == WAN_TRANSFORMER(name)
    converted = convert_wan_vae_to_diffusers(dict(single["vae"]))
    assert set(converted) == set(tensors(folder, "vae"))
    for name, tensor in single["vae"].items():
        assert torch.equal(converted[WAN_VAE(name)], tensor)


def staged(folder, files, tmp_path):
    card = Catalog.installed().read_folder(folder)
    (tmp_path / "stage").mkdir()
    return stage_card(card, files, tmp_path / "stage")


def write(tmp_path, parts):
    files = {}
    for name, content in parts.items():
        files[name] = tmp_path / f"{name}.safetensors"
        save_file({key: tensor.contiguous() for key, tensor in content.items()}, files[name])
    return files


def weights(instance):
    parts = ("transformer", "vae", "text_encoder", "image_encoder")
    return {f"{part}.{k}": v for part in parts for k, v in instance.component(part).state_dict().items()}


def test_single_files_give_the_same_model(folder, single, tmp_path):
    extras = {"scaled_fp8": torch.zeros(2).to(torch.float8_e4m3fn), "spiece_model": torch.zeros(9, dtype=torch.uint8)}
    parts = {**single, "text_encoder": {**single["text_encoder"], **extras}}
    parts["image_encoder"] = {**parts["image_encoder"], "visual_projection.weight": torch.zeros(2, 2)}
    card = staged(folder, write(tmp_path, parts), tmp_path)
    expected = weights(load_instance(Catalog.installed().read_folder(folder), precision="float32"))
    got = weights(load_instance(card, precision="float32"))
    assert got.keys() == expected.keys()
    assert all(torch.equal(got[name], expected[name]) for name in got)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_files_in_16_bits(folder, single, tmp_path, dtype):
    parts = {"transformer": {k: v.to(dtype) for k, v in single["transformer"].items()}}
    module = load_instance(staged(folder, write(tmp_path, parts), tmp_path), precision="float32").component(
        "transformer"
    )
    for name, tensor in parts["transformer"].items():
        assert torch.equal(module.state_dict()[WAN_TRANSFORMER(name)], tensor.float())


def test_scaled_float8_files(folder, single, tmp_path):
    content, expected = {"scaled_fp8": torch.zeros(2).to(torch.float8_e4m3fn)}, {}
    for name, tensor in single["transformer"].items():
        if name.endswith(".weight") and tensor.dim() == 2 and name.startswith("blocks."):
            scale = tensor.abs().max() / 448
            content[name] = (tensor / scale).to(torch.float8_e4m3fn)
            content[name.removesuffix("weight") + "scale_weight"] = scale
            expected[name] = content[name].float() * scale
        else:
            content[name] = expected[name] = tensor
    card = staged(folder, write(tmp_path, {"transformer": content}), tmp_path)
    module = load_instance(card, precision="float32").component("transformer")
    for name, tensor in expected.items():
        assert torch.equal(module.state_dict()[WAN_TRANSFORMER(name)], tensor), name


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda content: content.pop("head.head.weight"), "proj_out.weight"),
        (lambda content: content.update({"vace_blocks.0.x.weight": torch.zeros(1)}), "vace_blocks.0.x.weight"),
        (lambda content: content.update({"head.head.bias": torch.zeros(3)}), "head.head.bias"),
    ],
)
def test_every_key_is_accounted_for(folder, single, tmp_path, change, words):
    content = dict(single["transformer"])
    change(content)
    card = staged(folder, write(tmp_path, {"transformer": content}), tmp_path)
    with pytest.raises(CheckpointError, match=re.escape(words)):
        load_instance(card)


def vae_22_name(name):
    """Return the original name of a tensor of Wan 2.2's VAE, from diffusers' name."""
    name = re.sub(r"^(quant|post_quant)_conv\.", lambda m: {"quant": "conv1.", "post_quant": "conv2."}[m[1]], name)
    name = name.replace(".conv_in.", ".conv1.").replace(".norm_out.gamma", ".head.0.gamma")
    name = name.replace(".conv_out.", ".head.2.")
    if "_block" not in name:
        return name
    name = rename(name, RESNET)
    name = name.replace("mid_block.attentions.0", "middle.1")
    name = re.sub(r"mid_block\.resnets\.(\d)", lambda m: f"middle.{2 * int(m[1])}", name)
    # A stage's step to the next size comes after its residual blocks: one more of them in the decoder.
    name = re.sub(r"encoder\.down_blocks\.(\d)\.resnets\.", r"encoder.downsamples.\1.downsamples.", name)
    name = re.sub(r"encoder\.down_blocks\.(\d)\.downsampler\.", r"encoder.downsamples.\1.downsamples.1.", name)
    name = re.sub(r"decoder\.up_blocks\.(\d)\.resnets\.", r"decoder.upsamples.\1.upsamples.", name)
    return re.sub(r"decoder\.up_blocks\.(\d)\.upsampler\.", r"decoder.upsamples.\1.upsamples.2.", name)


def test_the_vae_of_wan_2_2(tmp_path):
    folder = build_wan_checkpoint(tmp_path / "5b", "ti2v-5b", vae={"dim_mult": [1, 2, 4, 4]})
    single = {vae_22_name(name): one for name, one in tensors(folder, "vae").items()}
    # Names that the published file has; the first of them is how ComfyUI tells it from Wan 2.1's.
    for name in (
        "decoder.upsamples.0.upsamples.0.residual.2.weight", "encoder.downsamples.0.downsamples.1.resample.1.weight",
        "encoder.downsamples.1.downsamples.1.time_conv.bias", "decoder.upsamples.2.upsamples.0.shortcut.weight",
        "encoder.middle.1.to_qkv.weight", "decoder.head.0.gamma", "conv2.weight",
    ):  # fmt: skip
        assert name in single
    card = staged(folder, write(tmp_path, {"vae": single}), tmp_path)
    instance = load_instance(card, device="cpu", precision="float32")
    own = load_instance(Catalog.installed().read_folder(folder), device="cpu", precision="float32")
    expected = own.component("vae").state_dict()
    got = instance.component("vae").state_dict()
    assert set(got) == set(expected)
    assert all(torch.equal(got[name], one) for name, one in expected.items())
    del single["conv2.weight"]
    (tmp_path / "second").mkdir()
    broken = staged(folder, write(tmp_path / "second", {"vae": single}), tmp_path / "second")
    with pytest.raises(CheckpointError, match="post_quant_conv.weight"):
        load_instance(broken, device="cpu", precision="float32")


def test_what_cannot_be_staged_is_refused(folder, tmp_path):
    card = Catalog.installed().read_folder(folder)
    with pytest.raises(CheckpointError, match="is not there"):
        stage_card(card, {"transformer": tmp_path / "absent.safetensors"}, tmp_path / "a")
    with pytest.raises(CheckpointError, match="single files of the x family are not known"):
        stage_card(card.model_copy(update={"family": "x"}), {}, tmp_path / "b")


def test_extras_are_no_weights():
    for name in ("scaled_fp8", "a.scale_weight", "a.scale_input", "a.weight_scale", "a.comfy_quant", "spiece_model"):
        assert not is_weight(name)
    assert is_weight("blocks.0.self_attn.q.weight")


def test_folders_are_searched_in_order(tmp_path):
    for name in ("models/unet", "models/vae", "models/loras/sub", "more/unet"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("models/unet/a.safetensors", "models/loras/sub/l.safetensors", "more/unet/b.safetensors"):
        (tmp_path / name).touch()
    extra = tmp_path / "extra_model_paths.yaml"
    extra.write_text(
        "mine:\n  base_path: more\n  is_default: true\n  diffusion_models: |\n    unet\n    absent\nother: 3\n"
    )
    folders = ModelFolders.below(tmp_path).joined(read_extra_paths(extra))
    assert folders.find("diffusion_models", "a.safetensors") == tmp_path / "models/unet/a.safetensors"
    assert folders.find("diffusion_models", "b.safetensors") == tmp_path / "more/unet/b.safetensors"
    assert folders.find("loras", "sub\\l.safetensors") == tmp_path / "models/loras/sub/l.safetensors"
    with pytest.raises(CheckpointError, match="nearest: a.safetensors"):
        folders.find("diffusion_models", "aa.safetensors")
    with pytest.raises(InputError, match="leaves its folder"):
        folders.find("vae", "../../secret.safetensors")
    with pytest.raises(InputError, match="not a folder"):
        ModelFolders.below(tmp_path / "absent")


@pytest.mark.parametrize("text", ["[1]", "a: [", "\x00", "3"])
def test_yaml_that_is_none(tmp_path, text):
    path = tmp_path / "x.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match="not YAML|not a mapping"):
        read_extra_paths(path)


@pytest.mark.parametrize(
    ("name", "owner"),
    [
        ("wan2.1_t2v_1.3B_fp16.safetensors", CardFile("wan2.1-t2v-1.3b", "transformer")),
        ("Wan2.1/wan2.1_t2v_14B_fp8_e4m3fn.safetensors", CardFile("wan2.1-t2v-14b", "transformer")),
        ("wan2.2_i2v_low_noise_14B_fp8_scaled.safetensors", CardFile("wan2.2-i2v-a14b", "transformer_2")),
        ("umt5_xxl_fp8_e4m3fn_scaled.safetensors", CardFile("", "text_encoder")),
        ("clip_vision_h.safetensors", CardFile("", "image_encoder")),
    ],
)
def test_published_names(name, owner):
    assert owner in FileMap().owners(name)
    assert FileMap().owners(name.replace(".safetensors", "_int8.safetensors")) == ()


def test_what_a_person_says_goes_first():
    files = parse_assignments(["a.safetensors=org/name", "b=c=/x:y:vae", "wan2.1_t2v_14B_fp16.safetensors=mine"])
    assert files.owners("a.safetensors") == (CardFile("org/name", "transformer"),)
    assert files.owners("b=c") == (CardFile("/x:y", "vae"),)
    assert files.owners("sub/wan2.1_t2v_14B_fp16.safetensors") == (CardFile("mine", "transformer"),)
    for text in ("", "a", "=x", "a=", "a=:vae"):
        with pytest.raises(ParameterError):
            parse_assignments([text])


@pytest.mark.parametrize("name", ["", " ", "/etc/x", "..\\x", "a/../../x", "C:\\x", "~/x", "a\0b", "\\\\host\\x"])
def test_names_that_are_paths(name):
    assert name_problem(name) is not None


def test_names_in_subfolders_are_fine():
    assert name_problem("sub/dir\\file.safetensors") is None


def test_a_workflow_runs_on_its_own_files_and_adapters(tmp_path, prompt, capsys):
    checkpoint = build_wan_checkpoint(tmp_path / "tiny", "t2v", vae={"num_res_blocks": 2, "dim_mult": [1, 2, 4, 4]})
    models = tmp_path / "ComfyUI/models"
    parts = {
        "diffusion_models/wan2.1_t2v_1.3B_fp16": {
            rename(k, TO_ORIGINAL): v for k, v in tensors(checkpoint, "transformer").items()
        },
        "text_encoders/umt5_xxl_fp8_e4m3fn_scaled": tensors(checkpoint, "text_encoder"),
        "vae/wan_2.1_vae": {vae_name(k): v for k, v in tensors(checkpoint, "vae").items()},
        "loras/turn": {
            "diffusion_model.blocks.1.ffn.0.lora_down.weight": torch.ones(2, 24),
            "diffusion_model.blocks.1.ffn.0.lora_up.weight": torch.ones(32, 2),
        },
    }
    for name, content in parts.items():
        path = models / f"{name}.safetensors"
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file({key: tensor.contiguous() for key, tensor in content.items()}, path)
    prompt["40"]["inputs"].update(width=32, height=32, length=5)
    prompt["3"]["inputs"].update(steps=2, cfg=2.0)
    prompt["50"]["inputs"]["filename_prefix"] = "plain"
    plain = tmp_path / "plain.json"
    plain.write_text(json.dumps(prompt))
    prompt["70"] = {
        "class_type": "LoraLoaderModelOnly",
        "inputs": {"model": ["37", 0], "lora_name": "turn.safetensors", "strength_model": 0.5},
    }
    prompt["48"]["inputs"]["model"] = ["70", 0]
    prompt["50"]["inputs"]["filename_prefix"] = "turned"
    turned = tmp_path / "turned.json"
    turned.write_text(json.dumps(prompt))
    cards = ["--model", f"wan2.1_t2v_1.3B_fp16.safetensors={checkpoint}"]
    cards += ["--model", f"wan_2.1_vae.safetensors={checkpoint}:vae", "--precision", "float32"]
    out = ["-o", str(tmp_path / "out"), *cards]
    assert main(["comfy", "run", str(plain), *out, "-q"]) == 0
    assert main(["comfy", "run", str(plain), *out, "-q", "--models", str(tmp_path / "ComfyUI")]) == 0
    assert main(["comfy", "run", str(turned), *out, "--models", str(tmp_path / "ComfyUI")]) == 0
    told = capsys.readouterr().err
    assert "adapters on transformer: turn.safetensors: 1 matrices" in told
    assert re.search(r"adapters put on transformer in \S+ s \(\S+ s predicted\)", told)
    assert re.search(r"transformer restored in \S+ s \(\S+ s predicted\)", told)
    own, single, changed = (frames_of(tmp_path / "out" / name) for name in ("plain.mp4", "plain-2.mp4", "turned.mp4"))
    assert np.array_equal(own, single)
    assert np.abs(own.astype(int) - changed).max() > 2
    assert main(["comfy", "run", str(turned), *out, "-q"]) == 1
    assert "adapter 'turn.safetensors' is in ComfyUI's loras folder, and no folder is given" in capsys.readouterr().err


def frames_of(path):
    with av.open(str(path)) as video:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in video.decode(video=0)])
