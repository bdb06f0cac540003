"""The causal transformer and its text encoder as one module that is trained.

Shape letters: N streams, G chunks, L text tokens, E text width, C latent channels, T latent frames, H rows, W columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from tokenizers import Tokenizer
from torch import Tensor

from fastvideo_wan.models.causal import CausalWanTransformer
from fastvideo_wan.models.context import TextContext
from fastvideo_wan.models.transformer import WanTransformer
from fastvideo_wan.shapes.train.model import ShapesModel, tokenize


class CausalShapesModel(ShapesModel):
    """`ShapesModel` with a causal transformer; the weights have the same names and shapes."""

    transformer_class: ClassVar[type[WanTransformer]] = CausalWanTransformer

    @property
    def causal(self) -> CausalWanTransformer:
        """The transformer."""
        assert isinstance(self.transformer, CausalWanTransformer)
        return self.transformer

    def prepare_prompts(self, tokenizer: Tokenizer, prompts: Sequence[str]) -> tuple[TextContext, list[int]]:
        """Return the context of all different prompts, and which of its rows each prompt is."""
        different = list(dict.fromkeys(prompts))
        device = next(self.parameters()).device
        ids, mask = (part.to(device) for part in tokenize(tokenizer, different))
        context = self.transformer.prepare_context(self.encode_text(ids, mask))
        places = {prompt: row for row, prompt in enumerate(different)}
        return context, [places[prompt] for prompt in prompts]


def spread_times(times_NG: Tensor, sizes: Sequence[int]) -> Tensor:
    """Return the noise level of every frame times 1000, from that of its chunk, 0 to 1."""
    return (times_NG * 1000).repeat_interleave(torch.tensor(sizes, device=times_NG.device), dim=1)
