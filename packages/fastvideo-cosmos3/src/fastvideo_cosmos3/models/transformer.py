"""The mixture of transformers with its heads: text in, tokens out; video, sound and action in, velocities out.

Shape letters: B rows; S tokens of text; G tokens that are generated; C width; V vocabulary; N layers; Z keys and
values; H heads; D width of a head; T, K actions and their width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fastvideo_cosmos3.models.config import TransformerConfig
from fastvideo_cosmos3.models.layer import MixtureLayer, RMSNorm, Tables
from fastvideo_cosmos3.models.rotary import rotary_tables

__all__ = ["Cosmos3Transformer", "DomainLinear", "VisualTokens"]

_TIME_CHANNELS = 256
_MAX_PERIOD = 10000


class DomainLinear(nn.Module):
    """A linear layer with weights of its own for each embodiment.

    Args:
        input_size: Width in.
        output_size: Width out.
        num_domains: Embodiments.
    """

    def __init__(self, input_size: int, output_size: int, num_domains: int) -> None:
        super().__init__()
        self.sizes = (input_size, output_size)
        self.fc = nn.Embedding(num_domains, output_size * input_size)
        self.bias = nn.Embedding(num_domains, output_size)

    def forward(self, x_TK: Tensor, domain: int) -> Tensor:
        """Return (T, output_size) for the actions of one embodiment."""
        weight = self.fc.weight[domain].view(1, *self.sizes).expand(x_TK.shape[0], -1, -1)
        # Row by row, as the reference multiplies: its bits depend on that.
        return torch.bmm(x_TK.unsqueeze(1), weight).squeeze(1) + self.bias.weight[domain]


class _TimeEmbedder(nn.Module):
    """Two linear layers behind the sines of a timestep."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear_1 = nn.Linear(_TIME_CHANNELS, width)
        self.linear_2 = nn.Linear(width, width)

    def forward(self, times_G: Tensor) -> Tensor:
        """Return (G, C) of scaled timesteps."""
        half = _TIME_CHANNELS // 2
        exponents = -math.log(_MAX_PERIOD) * torch.arange(half, dtype=torch.float32, device=times_G.device) / half
        angles = times_G[:, None].float() * torch.exp(exponents)[None, :]
        waves = torch.cat((angles.cos(), angles.sin()), dim=-1).to(self.linear_1.weight.dtype)
        return self.linear_2(F.silu(self.linear_1(waves)))


class VisualTokens:
    """Tokens of images or video within a text.

    Args:
        places_S: Where they are in the text.
        embeds_SC: What stands there in place of the token's own embedding.
        deep_NSC: What is added to the hidden states after each of the first layers.
    """

    __slots__ = ("deep_NSC", "embeds_SC", "places_S")

    def __init__(self, places_S: Tensor, embeds_SC: Tensor, deep_NSC: Sequence[Tensor]) -> None:
        self.places_S = places_S
        self.embeds_SC = embeds_SC
        self.deep_NSC = deep_NSC


class Cosmos3Transformer(nn.Module):
    """Both pathways and all heads; parameters are named as in diffusers checkpoints.

    Args:
        config: The model's shape.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        width = config.hidden_size
        self.embed_tokens = nn.Embedding(config.vocab_size, width)
        self.layers = nn.ModuleList([MixtureLayer(config) for _ in range(config.num_hidden_layers)])
        self.norm = RMSNorm(width, config.rms_norm_eps)
        self.norm_moe_gen = RMSNorm(width, config.rms_norm_eps)
        self.lm_head = nn.Linear(width, config.vocab_size, bias=False)
        self.proj_in = nn.Linear(config.patch_latent_dim, width)
        self.proj_out = nn.Linear(width, config.patch_latent_dim)
        self.time_embedder = _TimeEmbedder(width)
        if config.action_gen:
            self._add_action_heads(config)
        if config.sound_gen:
            self._add_sound_heads(config)

    def _add_action_heads(self, config: TransformerConfig) -> None:
        assert config.action_dim is not None, "the configuration was validated"
        self.action_proj_in = DomainLinear(config.action_dim, config.hidden_size, config.num_embodiment_domains)
        self.action_proj_out = DomainLinear(config.hidden_size, config.action_dim, config.num_embodiment_domains)
        self.action_modality_embed = nn.Parameter(torch.zeros(config.hidden_size))

    def _add_sound_heads(self, config: TransformerConfig) -> None:
        assert config.sound_dim is not None, "the configuration was validated"
        self.audio_proj_in = nn.Linear(config.sound_dim, config.hidden_size)
        self.audio_proj_out = nn.Linear(config.hidden_size, config.sound_dim)
        self.audio_modality_embed = nn.Parameter(torch.zeros(config.hidden_size))

    @property
    def dtype(self) -> torch.dtype:
        """Number format of the weights."""
        return self.embed_tokens.weight.dtype

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.embed_tokens.weight.device

    def rotary(self, positions_ABS: Tensor) -> Tables:
        """Return the rotary tables of positions, (3, B, S), in the model's format."""
        cos, sin = rotary_tables(self.config, positions_ABS.to(self.device))
        return cos.to(self.dtype), sin.to(self.dtype)

    def understand(
        self,
        ids_BS: Tensor,
        tables: Tables,
        *,
        past_NZBSHD: Tensor | None = None,
        mask: Tensor | None = None,
        visual: VisualTokens | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Run text through the causal pathway.

        Args:
            ids_BS: New tokens.
            tables: Their positions.
            past_NZBSHD: Keys and values of the tokens before them, and room for their own behind, which is filled; None
                if they are the first.
            mask: Which keys each new token sees, (B, 1, S, past + S), true where it does; None where a plain causal
                mask over the new tokens says it.
            visual: Images and video in the text; only for a single row.

        Returns:
            Normed hidden states, (B, S, C), and the new tokens' keys and values, (N, 2, B, S, H, D).
        """
        hidden = self.embed_tokens(ids_BS)
        if visual is not None:
            hidden = hidden.index_put((torch.zeros_like(visual.places_S), visual.places_S), visual.embeds_SC)
        own = []
        for index, layer in enumerate(self._mixture_layers()):
            past = None if past_NZBSHD is None else past_NZBSHD[index]
            hidden, keys_values = layer.understand(hidden, tables, past, mask)
            own.append(keys_values)
            if visual is not None and index < len(visual.deep_NSC):
                hidden = hidden.clone()
                hidden[0, visual.places_S] = hidden[0, visual.places_S] + visual.deep_NSC[index]
        return self.norm(hidden), torch.stack(own)

    def generate(self, tokens_BGC: Tensor, tables: Tables, text_NZBSHD: Tensor, mask: Tensor | None = None) -> Tensor:
        """Run packed tokens through the pathway that generates.

        Args:
            tokens_BGC: What the heads made of video, sound and action.
            tables: Their positions.
            text_NZBSHD: Keys and values of the text.
            mask: Which keys count, (B, 1, 1, S + G), true where they do; None if all do.

        Returns:
            Normed hidden states, (B, G, C).
        """
        hidden = tokens_BGC
        for index, layer in enumerate(self._mixture_layers()):
            hidden = layer.generate(hidden, tables, text_NZBSHD[index], mask)
        return self.norm_moe_gen(hidden)

    def _mixture_layers(self) -> list[MixtureLayer]:
        return cast("list[MixtureLayer]", list(self.layers))

    def embed_times(self, timestep: float, count: int) -> Tensor:
        """Return the embedding of one timestep for `count` tokens, (count, C)."""
        times = torch.full((count,), timestep, dtype=torch.float32, device=self.device) * self.config.timestep_scale
        return self.time_embedder(times).to(self.dtype)
