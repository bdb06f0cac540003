"""The shape of the mixture of transformers, read from the `transformer/config.json` of a diffusers folder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from fastvideo_cosmos3.models.config_file import parse_config

__all__ = ["TRANSFORMER_CLASS", "TransformerConfig"]

Count = Annotated[int, Field(ge=1)]

TRANSFORMER_CLASS = "Cosmos3OmniTransformer"


class TransformerConfig(BaseModel):
    """Everything that fixes the parameters of the transformer; names and defaults are those of the config files.

    Attributes:
        hidden_size: Width of both pathways.
        num_hidden_layers: Layers.
        num_attention_heads: Query heads.
        num_key_value_heads: Heads of keys and values.
        head_dim: Width of a head.
        intermediate_size: Width of the feed-forward parts.
        vocab_size: Tokens of the text.
        hidden_act: Activation of the feed-forward parts.
        attention_bias: Whether the projections of attention have a bias.
        attention_dropout: Of training; unused here.
        rms_norm_eps: Added to the variance in norms.
        rope_theta: Base of the rotary frequencies.
        rope_scaling: Where older files keep `rope_axes_dim`, as `mrope_section`.
        rope_axes_dim: Frequencies of the time, row and column axis.
        qk_norm_for_text: Whether the queries and keys of the text are normed.
        use_und_k_norm_for_gen: Whether the generator has a norm of its own for the keys of the text.
        latent_channel: Channels of the video's latents.
        latent_patch_size: Edge of a patch of latents.
        patch_latent_dim: Numbers in a patch.
        base_fps: Frame rate at which positions count frames.
        enable_fps_modulation: Whether positions count time and not frames.
        unified_3d_mrope_reset_spatial_ids: Whether rows and columns are counted from 0.
        unified_3d_mrope_temporal_modality_margin: Positions left free between the text and what is generated.
        timestep_scale: Factor of the timestep before it is embedded.
        action_gen: Whether there are action heads.
        action_dim: Width of an action.
        num_embodiment_domains: Embodiments that the action heads know.
        sound_gen: Whether there are sound heads.
        sound_dim: Channels of the sound's latents.
        sound_latent_fps: Latent frames of sound a second.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    hidden_size: Count = 4096
    num_hidden_layers: Count = 36
    num_attention_heads: Count = 32
    num_key_value_heads: Count = 8
    head_dim: Count = 128
    intermediate_size: Count = 12288
    vocab_size: Count = 151936
    hidden_act: Literal["silu"] = "silu"
    attention_bias: bool = False
    attention_dropout: float = 0.0
    rms_norm_eps: float = 1e-6
    rope_theta: float = 5_000_000.0
    rope_scaling: dict[str, Any] | None = None
    rope_axes_dim: tuple[int, int, int] = (24, 20, 20)
    qk_norm_for_text: Literal[True] = True
    use_und_k_norm_for_gen: bool = False
    latent_channel: Count = 48
    latent_patch_size: Count = 2
    patch_latent_dim: Count = 192
    base_fps: float = 24
    enable_fps_modulation: bool = True
    unified_3d_mrope_reset_spatial_ids: Literal[True] = True
    unified_3d_mrope_temporal_modality_margin: int = 15000
    timestep_scale: float = 0.001
    action_gen: bool = False
    action_dim: Count | None = None
    num_embodiment_domains: Count = 32
    sound_gen: bool = False
    sound_dim: Count | None = None
    sound_latent_fps: float = 25.0

    @field_validator("hidden_act", mode="before")
    @classmethod
    def _not_edge(cls, value: Any) -> Any:
        # Its generator has keys of the text of its own, and its reasoner sees with another encoder.
        if value == "relu2":
            raise ValueError("an Edge checkpoint (relu2) is not supported; Nano and larger ones (silu) are")
        return value

    @model_validator(mode="before")
    @classmethod
    def _axes_of_older_files(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("rope_axes_dim") is None:
            section = (data.get("rope_scaling") or {}).get("mrope_section", (24, 20, 20))
            return {**data, "rope_axes_dim": tuple(section)}
        return data

    @model_validator(mode="after")
    def _parts_agree(self) -> Self:
        if sum(self.rope_axes_dim) != self.head_dim // 2:
            raise ValueError(
                f"rope_axes_dim {list(self.rope_axes_dim)} must add up to head_dim / 2, {self.head_dim // 2}"
            )
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError("num_attention_heads must be a multiple of num_key_value_heads")
        if self.patch_latent_dim != self.latent_channel * self.latent_patch_size**2:
            raise ValueError("patch_latent_dim must be latent_channel times latent_patch_size squared")
        if self.action_gen and self.action_dim is None:
            raise ValueError("action_gen needs action_dim")
        if self.sound_gen and self.sound_dim is None:
            raise ValueError("sound_gen needs sound_dim")
        return self

    @classmethod
    def from_diffusers(cls, raw: Mapping[str, Any]) -> Self:
        """Check the contents of a `transformer/config.json`.

        Raises:
            CheckpointError: The file describes another class, has an unknown key, or what is not supported.
        """
        return parse_config(cls, raw, label="transformer", class_name=TRANSFORMER_CLASS)

    @property
    def kv_token_numbers(self) -> int:
        """Numbers that keys and values of one token of text take, over all layers."""
        return 2 * self.num_hidden_layers * self.num_key_value_heads * self.head_dim
