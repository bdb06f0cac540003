"""Names of tensors in the single files that ComfyUI takes, and those of the modules here.

ComfyUI's files of Wan models have the names of the original release, some with a prefix; its text encoders and vision
encoders have those of `transformers`, with a few tensors beside them that are no weights of the module.

Sources: the released checkpoints of Wan 2.1 and 2.2, and their diffusers conversions.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from fastvideo_core.runtime.weights.keys import rename_by_rules

__all__ = [
    "TEXT_ENCODER",
    "VISION",
    "WAN_TRANSFORMER",
    "WAN_TRANSFORMER_RULES",
    "WAN_VAE",
    "WAN_VAE_22",
    "is_weight",
]

_EXTRAS = re.compile(
    r"(^|\.)(scaled_fp8|spiece_model|logit_scale)$|\.(scale_weight|scale_input|weight_scale|input_scale|comfy_quant)$"
    r"|^visual_projection\.weight$"
)


def is_weight(name: str) -> bool:
    """Whether a tensor is a weight of its module; scales, tokenizer data and projections of other parts are not."""
    return _EXTRAS.search(name) is None


WAN_TRANSFORMER_RULES: Sequence[tuple[str, str]] = (
    (r"^model\.diffusion_model\.|^diffusion_model\.", ""),
    (r"^time_embedding\.0\.", "condition_embedder.time_embedder.linear_1."),
    (r"^time_embedding\.2\.", "condition_embedder.time_embedder.linear_2."),
    (r"^time_projection\.1\.", "condition_embedder.time_proj."),
    (r"^text_embedding\.0\.", "condition_embedder.text_embedder.linear_1."),
    (r"^text_embedding\.2\.", "condition_embedder.text_embedder.linear_2."),
    (r"^img_emb\.proj\.0\.", "condition_embedder.image_embedder.norm1."),
    (r"^img_emb\.proj\.1\.", "condition_embedder.image_embedder.ff.net.0.proj."),
    (r"^img_emb\.proj\.3\.", "condition_embedder.image_embedder.ff.net.2."),
    (r"^img_emb\.proj\.4\.", "condition_embedder.image_embedder.norm2."),
    (r"^img_emb\.emb_pos$", "condition_embedder.image_embedder.pos_embed"),
    (r"^head\.modulation$", "scale_shift_table"),
    (r"^head\.head\.", "proj_out."),
    (r"\.modulation$", ".scale_shift_table"),
    (r"\.ffn\.0\.", ".ffn.net.0.proj."),
    (r"\.ffn\.2\.", ".ffn.net.2."),
    (r"\.norm3\.", ".norm2."),
    (r"\.self_attn\.", ".attn1."),
    (r"\.cross_attn\.", ".attn2."),
    (r"\.(attn[12])\.([qkv])\.", r".\1.to_\2."),
    (r"\.(attn[12])\.o\.", r".\1.to_out.0."),
    (r"\.attn2\.([kv])_img\.", r".attn2.add_\1_proj."),
    (r"\.attn2\.norm_k_img\.", ".attn2.norm_added_k."),
)
"""From the original names of Wan's transformer to those of diffusers, one after the other."""

WAN_TRANSFORMER = rename_by_rules(WAN_TRANSFORMER_RULES)

_RESNET = (
    (r"\.residual\.0\.gamma$", ".norm1.gamma"),
    (r"\.residual\.2\.", ".conv1."),
    (r"\.residual\.3\.gamma$", ".norm2.gamma"),
    (r"\.residual\.6\.", ".conv2."),
    (r"\.shortcut\.", ".conv_shortcut."),
)
_NUM_UP = 4
"""Parts of a stage of the decoder: three residual blocks and the step to the next size."""

_ENDS_AND_MIDDLE = (
    (r"^conv1\.", "quant_conv."),
    (r"^conv2\.", "post_quant_conv."),
    (r"^(encoder|decoder)\.conv1\.", r"\1.conv_in."),
    (r"^(encoder|decoder)\.head\.0\.gamma$", r"\1.norm_out.gamma"),
    (r"^(encoder|decoder)\.head\.2\.", r"\1.conv_out."),
    (r"^(encoder|decoder)\.middle\.0\.", r"\1.mid_block.resnets.0."),
    (r"^(encoder|decoder)\.middle\.1\.", r"\1.mid_block.attentions.0."),
    (r"^(encoder|decoder)\.middle\.2\.", r"\1.mid_block.resnets.1."),
)
_VAE_RULES = rename_by_rules((*_ENDS_AND_MIDDLE, (r"^encoder\.downsamples\.", "encoder.down_blocks."), *_RESNET))
_UP = re.compile(r"^decoder\.upsamples\.(\d+)\.")


def WAN_VAE(name: str) -> str:  # noqa: N802 - named like the other key maps, which are objects
    """Rename a tensor of Wan 2.1's VAE."""
    match = _UP.match(name)
    if match is not None:
        stage, part = divmod(int(match.group(1)), _NUM_UP)
        place = "upsamplers.0" if part == _NUM_UP - 1 else f"resnets.{part}"
        name = f"decoder.up_blocks.{stage}.{place}.{name[match.end() :]}"
    return _VAE_RULES(name)


WAN_VAE_22 = rename_by_rules(
    (
        *_ENDS_AND_MIDDLE,
        (
            r"^encoder\.downsamples\.(\d+)\.downsamples\.\d+\.(resample|time_conv)\.",
            r"encoder.down_blocks.\1.downsampler.\2.",
        ),
        (r"^encoder\.downsamples\.(\d+)\.downsamples\.", r"encoder.down_blocks.\1.resnets."),
        (
            r"^decoder\.upsamples\.(\d+)\.upsamples\.\d+\.(resample|time_conv)\.",
            r"decoder.up_blocks.\1.upsampler.\2.",
        ),
        (r"^decoder\.upsamples\.(\d+)\.upsamples\.", r"decoder.up_blocks.\1.resnets."),
        *_RESNET,
    )
)
"""Renames of Wan 2.2's VAE, whose stages are blocks of their own."""

TEXT_ENCODER = rename_by_rules(((r"^(transformer|text_encoders\.umt5xxl\.transformer)\.", ""),))
VISION = rename_by_rules(((r"^vision_model\.", ""),))
