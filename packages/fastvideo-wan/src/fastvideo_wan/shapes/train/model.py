"""Transformer and text encoder as one module that is trained, and what it is conditioned on.

Shape letters: N clips, L text tokens, E text width, C latent channels, T latent frames, H rows, W columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import UMT5Config, UMT5EncoderModel

from fastvideo_wan.models.config import WanTransformerConfig
from fastvideo_wan.models.transformer import WanTransformer
from fastvideo_wan.shapes.tokenizer import PAD, TEXT_LENGTH, VOCABULARY_SIZE, build_tokenizer
from fastvideo_wan.shapes.train.config import DitStage

ADAMW_NAMES = (
    "patch_embedding",
    "proj_out",
    "time_embedder.linear_1",
    "shared.weight",
    "embed_tokens",
    "relative_attention_bias",
)
"""Parts of the names of parameters that Muon does not suit: first and last layers, and tables."""


def transformer_config(stage: DitStage, latent_channels: int) -> WanTransformerConfig:
    """Return the transformer's shape."""
    return WanTransformerConfig(
        patch_size=(1, 2, 2),
        num_attention_heads=stage.num_heads,
        attention_head_dim=stage.head_dim,
        in_channels=latent_channels,
        out_channels=latent_channels,
        text_dim=stage.text_dim,
        freq_dim=256,
        ffn_dim=stage.ffn_dim,
        num_layers=stage.num_layers,
        rope_max_seq_len=64,
    )


def text_config(stage: DitStage) -> UMT5Config:
    """Return the text encoder's shape; no dropout, since the captions are endless."""
    return UMT5Config(
        vocab_size=VOCABULARY_SIZE,
        d_model=stage.text_dim,
        d_kv=32,
        d_ff=2 * stage.text_dim,
        num_layers=stage.text_layers,
        num_heads=4,
        dropout_rate=0.0,
        pad_token_id=0,
        eos_token_id=1,
        tie_word_embeddings=True,
    )


class ShapesModel(nn.Module):
    """What the last stage trains: `transformer` and `text_encoder`.

    Args:
        stage: Their shapes.
        latent_channels: Channels of the latents.
    """

    transformer_class: ClassVar[type[WanTransformer]] = WanTransformer

    def __init__(self, stage: DitStage, latent_channels: int) -> None:
        super().__init__()
        self.transformer = self.transformer_class(transformer_config(stage, latent_channels))
        self.text_encoder = UMT5EncoderModel(text_config(stage))
        self._set_first_weights()

    @torch.no_grad()
    def _set_first_weights(self) -> None:
        """Let every block start near the identity and the output at zero, which makes large steps safe."""
        nn.init.zeros_(self.transformer.proj_out.weight)
        nn.init.zeros_(self.transformer.condition_embedder.time_proj.weight)
        nn.init.zeros_(self.transformer.condition_embedder.time_proj.bias)
        nn.init.normal_(self.text_encoder.shared.weight, std=0.5)

    def encode_text(self, ids_NL: Tensor, mask_NL: Tensor) -> Tensor:
        """Return the encoder's output, zero at padding, shape (N, L, E)."""
        hidden: Tensor = self.text_encoder(ids_NL, mask_NL).last_hidden_state
        return hidden * mask_NL.unsqueeze(-1)

    def velocity(self, noisy_NCTHW: Tensor, times_N: Tensor, text_NLE: Tensor) -> Tensor:
        """Return the predicted noise minus clean latents at noise levels `times_N` from 0 to 1."""
        context = self.transformer.prepare_context(text_NLE)
        predicted: Tensor = self.transformer(noisy_NCTHW, times_N * 1000, context)
        return predicted


def tokenize(tokenizer: Tokenizer, captions: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Return ids and mask of captions, padded or cut to `TEXT_LENGTH`, both int64, shape (N, L)."""
    tokenizer.enable_truncation(TEXT_LENGTH)
    tokenizer.enable_padding(length=TEXT_LENGTH, pad_id=0, pad_token=PAD)
    encodings = tokenizer.encode_batch(list(captions))
    return torch.tensor([e.ids for e in encodings]), torch.tensor([e.attention_mask for e in encodings])


def new_tokenizer() -> Tokenizer:
    """Return the tokenizer that `tokenize` takes."""
    return build_tokenizer()
