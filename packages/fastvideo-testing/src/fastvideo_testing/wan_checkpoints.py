"""Small Wan checkpoints that the reference library builds and saves, for parity tests and benchmarks.

Weights are random and seeded; the layout is the published one. Building one takes a fraction of a second, importing the
reference library several.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from fastvideo_core.parity import load_reference

__all__ = ["VARIANTS", "Variant", "build_wan_checkpoint", "make_pipeline"]

Variant = Literal[
    "t2v", "t2v-euler", "t2v-dpmpp", "i2v-vision", "ti2v-5b", "a14b-t2v", "a14b-i2v", "dmd", "dmd-5b"
]  # fmt: skip
VARIANTS: tuple[Variant, ...] = (
    "t2v", "t2v-euler", "t2v-dpmpp", "i2v-vision", "ti2v-5b", "a14b-t2v", "a14b-i2v", "dmd", "dmd-5b",
)  # fmt: skip

_VAE_21 = {"base_dim": 3, "z_dim": 16, "dim_mult": [1, 1, 1, 1], "num_res_blocks": 1,
           "temperal_downsample": [False, True, True]}  # fmt: skip
_VAE_22 = {**_VAE_21, "z_dim": 48, "is_residual": True, "patch_size": 2, "in_channels": 12, "out_channels": 12,
           "scale_factor_spatial": 16, "latents_mean": [0.0] * 48, "latents_std": [1.0] * 48}  # fmt: skip
_TRANSFORMER = {"patch_size": (1, 2, 2), "num_attention_heads": 2, "attention_head_dim": 12, "in_channels": 16,
                "out_channels": 16, "text_dim": 32, "freq_dim": 256, "ffn_dim": 32, "num_layers": 2}  # fmt: skip
_VISION = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 2,
           "image_size": 224, "patch_size": 14, "projection_dim": 32}  # fmt: skip


def build_wan_checkpoint(folder: Path, variant: Variant = "t2v", *, seed: int = 0, **sizes: Mapping[str, Any]) -> Path:
    """Build a checkpoint and save it in diffusers layout.

    Args:
        folder: Where to; made if it is not there.
        variant: Which published model it stands for.
        seed: Seed of the weights.
        **sizes: Settings that replace the tiny ones, by part: `transformer`, `vae`, `text_encoder`, `vision`.

    Returns:
        The folder.

    Raises:
        ParityError: The reference library is not installed.
    """
    make_pipeline(variant, seed=seed, **sizes).save_pretrained(str(folder))
    index_path = folder / "model_index.json"
    if variant.startswith("dmd"):
        # FastWan's releases name a pipeline class of their own, which the reference does not have.
        index = json.loads(index_path.read_text(encoding="utf-8"))
        index_path.write_text(json.dumps({**index, "_class_name": "WanDMDPipeline"}), encoding="utf-8")
    return folder


def make_pipeline(variant: Variant = "t2v", *, seed: int = 0, **sizes: Mapping[str, Any]) -> Any:
    """Build the reference pipeline of a checkpoint in memory; see `build_wan_checkpoint`."""
    import torch

    diffusers = load_reference("diffusers")
    torch.manual_seed(seed)
    is_5b, is_a14b = variant.endswith("5b"), variant.startswith("a14b")
    with_image = variant in ("i2v-vision", "a14b-i2v")
    vae_config = {**(_VAE_22 if is_5b else _VAE_21), **sizes.get("vae", {})}
    z_dim = vae_config["z_dim"]
    channels = {"in_channels": 2 * z_dim + 4 if with_image else z_dim, "out_channels": z_dim}
    vision = {"image_dim": 32, "added_kv_proj_dim": 24} if variant == "i2v-vision" else {}
    transformer = {**_TRANSFORMER, **channels, **vision, **sizes.get("transformer", {})}
    parts: dict[str, Any] = {
        "tokenizer": _tokenizer(),
        "text_encoder": _text_encoder(sizes.get("text_encoder", {})),
        "transformer": _randomized(diffusers.WanTransformer3DModel(**transformer)),
        "vae": diffusers.AutoencoderKLWan(**vae_config),
        "scheduler": _SCHEDULERS.get(variant, _unipc)(diffusers),
    }
    if is_a14b:
        parts["transformer_2"] = _randomized(diffusers.WanTransformer3DModel(**transformer))
        parts["boundary_ratio"] = 0.9 if with_image else 0.875
    if with_image:
        parts.update(_image_parts(sizes.get("vision", {})) if variant == "i2v-vision" else {})
        parts = {"image_encoder": None, "image_processor": None, **parts}
    if is_5b:
        parts["expand_timesteps"] = True
    name = "WanImageToVideoPipeline" if with_image else "WanPipeline"
    return getattr(diffusers, name)(**parts)


def _randomized(module: Any) -> Any:
    """Give tables that start at zero or one other values: parity of parts that do nothing shows nothing."""
    import torch

    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return module.eval()


def _tokenizer() -> Any:
    """Return a byte-level tokenizer: every text has tokens, none is unknown."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    special = ["<pad>", "</s>", "<unk>"]
    vocabulary = {token: i for i, token in enumerate([*special, *sorted(pre_tokenizers.ByteLevel.alphabet())])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))  # noqa: S106 - a token, no secret
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    names = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=512, **names)


def _text_encoder(sizes: Mapping[str, Any]) -> Any:
    from transformers import UMT5Config, UMT5EncoderModel

    config = {"vocab_size": 259, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, **sizes}
    return UMT5EncoderModel(UMT5Config(**config)).eval()


def _image_parts(sizes: Mapping[str, Any]) -> dict[str, Any]:
    from transformers import CLIPImageProcessor, CLIPVisionConfig, CLIPVisionModel

    encoder = CLIPVisionModel(CLIPVisionConfig(**{**_VISION, **sizes})).eval()
    return {"image_encoder": encoder, "image_processor": CLIPImageProcessor()}


def _unipc(diffusers: Any) -> Any:
    return diffusers.UniPCMultistepScheduler(
        prediction_type="flow_prediction", use_flow_sigmas=True, num_train_timesteps=1000, flow_shift=3.0
    )


def _euler(diffusers: Any) -> Any:
    return diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0)


def _dpmpp(diffusers: Any) -> Any:
    return diffusers.DPMSolverMultistepScheduler(
        prediction_type="flow_prediction", use_flow_sigmas=True, num_train_timesteps=1000, flow_shift=3.0
    )


_SCHEDULERS: dict[str, Callable[[Any], Any]] = {"t2v-euler": _euler, "t2v-dpmpp": _dpmpp}
