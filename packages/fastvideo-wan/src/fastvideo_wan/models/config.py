"""The shape of a Wan transformer, read from the `transformer/config.json` of a diffusers folder."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fastvideo_core.errors import CheckpointError
from fastvideo_wan.models.config_file import config_fields, read_config

Count = Annotated[int, Field(ge=1)]

CLASS_NAMES = ("WanTransformer3DModel", "CausalWanTransformer3DModel")
"""Values of `_class_name` that this transformer can stand in for."""

CAUSAL_KEYS = ("local_attn_size", "sink_size", "num_frames_per_block", "sliding_window_num_frames")
"""Keys of causal checkpoints that say how they are used; they fix no parameter."""

IMAGE_CONTEXT_TEXT_TOKENS = 512
"""Text length that Wan 2.1 image-to-video weights assume; a fixed number in the releases, not a config key."""


class WanTransformerConfig(BaseModel):
    """Everything that fixes the parameters of a Wan transformer; names and defaults are those of the config files.

    Attributes:
        patch_size: Latent voxels (frames, rows, columns) that make one token.
        num_attention_heads: Heads of every attention.
        attention_head_dim: Width of a head; even, at least 6 so that each axis has a rotary frequency.
        in_channels: Latent channels in, conditioning channels included (36 for image-to-video).
        out_channels: Latent channels out.
        text_dim: Width of the text encoder's output.
        freq_dim: Width of the sinusoidal time embedding; even.
        ffn_dim: Hidden width of the feed-forward layers.
        num_layers: Transformer blocks.
        cross_attn_norm: Whether a block normalizes the input of its cross-attention.
        qk_norm: Query and key normalization; the releases know one kind.
        eps: Added to variances in all norms of the blocks.
        image_dim: Width of the image encoder's output; None if the weights take no image tokens.
        added_kv_proj_dim: Width of the embedded image tokens; None exactly when `image_dim` is.
        rope_max_seq_len: Longest latent axis, in tokens.
        pos_embed_seq_len: Tokens of a learned position table over the image tokens of a first and a last frame.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    patch_size: tuple[Count, Count, Count] = (1, 2, 2)
    num_attention_heads: Count = 40
    attention_head_dim: Annotated[int, Field(ge=6, multiple_of=2)] = 128
    in_channels: Count = 16
    out_channels: Count = 16
    text_dim: Count = 4096
    freq_dim: Annotated[int, Field(ge=2, multiple_of=2)] = 256
    ffn_dim: Count = 13824
    num_layers: Count = 40
    cross_attn_norm: bool = True
    qk_norm: Literal["rms_norm_across_heads"] = "rms_norm_across_heads"
    eps: Annotated[float, Field(gt=0)] = 1e-6
    image_dim: Count | None = None
    added_kv_proj_dim: Count | None = None
    rope_max_seq_len: Count = 1024
    pos_embed_seq_len: Count | None = None

    @model_validator(mode="after")
    def _image_keys_agree(self) -> Self:
        if (self.image_dim is None) != (self.added_kv_proj_dim is None):
            raise ValueError("image_dim and added_kv_proj_dim must both be set or both be null")
        if self.added_kv_proj_dim not in (None, self.inner_dim):
            raise ValueError(f"added_kv_proj_dim must equal heads times head width, {self.inner_dim}")
        if self.pos_embed_seq_len is not None and self.image_dim is None:
            raise ValueError("pos_embed_seq_len needs image_dim")
        return self

    @property
    def inner_dim(self) -> int:
        """Width of the token stream."""
        return self.num_attention_heads * self.attention_head_dim

    @property
    def patch_volume(self) -> int:
        """Latent voxels in one token."""
        return math.prod(self.patch_size)

    @property
    def is_image_conditioned(self) -> bool:
        """Whether cross-attention also reads image tokens (Wan 2.1 image-to-video)."""
        return self.image_dim is not None

    @classmethod
    def from_diffusers(cls, raw: Mapping[str, Any]) -> Self:
        """Check the contents of a `transformer/config.json`.

        Args:
            raw: The parsed file; absent keys take the format's defaults.

        Raises:
            CheckpointError: If the file describes another class, has an unknown key, or a value out of range.
        """
        fields = config_fields(
            raw, label="transformer", class_names=CLASS_NAMES, known=(*cls.model_fields, *CAUSAL_KEYS)
        )
        fields = {name: value for name, value in fields.items() if name not in CAUSAL_KEYS}
        try:
            return cls.model_validate(fields)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "transformer config"
            raise CheckpointError(f"{where}={first['input']!r}: {first['msg']}") from error

    @classmethod
    def from_folder(cls, folder: Path) -> Self:
        """Read `config.json` from a transformer's folder.

        Raises:
            CheckpointError: If the file is absent or not JSON, or as for `from_diffusers`.
        """
        return cls.from_diffusers(read_config(folder, label="transformer"))
