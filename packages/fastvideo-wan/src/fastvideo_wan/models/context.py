"""What a prompt means to the blocks: cross-attention keys and values, computed once a request.

Shapes: Z layers; B batch rows; L text tokens; M image tokens; N heads; K head width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class LayerContext:
    """One layer's part of a `TextContext`."""

    key_BLNK: Tensor
    value_BLNK: Tensor
    image_key_BMNK: Tensor | None
    image_value_BMNK: Tensor | None


@dataclass(frozen=True, slots=True)
class TextContext:
    """Cross-attention keys and values of all layers; only tensors, so that a request's state can hold it.

    Attributes:
        keys_ZBLNK: Normalized text keys.
        values_ZBLNK: Text values.
        image_keys_ZBMNK: Normalized image keys; None without image tokens.
        image_values_ZBMNK: Image values; None without image tokens.
    """

    keys_ZBLNK: Tensor
    values_ZBLNK: Tensor
    image_keys_ZBMNK: Tensor | None = None
    image_values_ZBMNK: Tensor | None = None

    @property
    def num_rows(self) -> int:
        """Batch rows."""
        return self.keys_ZBLNK.shape[1]

    def layer(self, index: int) -> LayerContext:
        """Return views of one layer."""
        image_keys, image_values = self.image_keys_ZBMNK, self.image_values_ZBMNK
        return LayerContext(
            key_BLNK=self.keys_ZBLNK[index],
            value_BLNK=self.values_ZBLNK[index],
            image_key_BMNK=None if image_keys is None else image_keys[index],
            image_value_BMNK=None if image_values is None else image_values[index],
        )


def stack_contexts(contexts: Sequence[TextContext]) -> TextContext:
    """Join contexts along the batch axis, in order; their token counts must agree.

    Args:
        contexts: At least one.
    """
    first = contexts[0]
    if len(contexts) == 1:
        return first
    image_keys = [context.image_keys_ZBMNK for context in contexts if context.image_keys_ZBMNK is not None]
    image_values = [context.image_values_ZBMNK for context in contexts if context.image_values_ZBMNK is not None]
    assert len(image_keys) in (0, len(contexts)), "contexts of one model either all have image tokens or none"
    return TextContext(
        keys_ZBLNK=torch.cat([context.keys_ZBLNK for context in contexts], dim=1),
        values_ZBLNK=torch.cat([context.values_ZBLNK for context in contexts], dim=1),
        image_keys_ZBMNK=torch.cat(image_keys, dim=1) if image_keys else None,
        image_values_ZBMNK=torch.cat(image_values, dim=1) if image_values else None,
    )
