"""What a prompt means to the blocks: cross-attention keys and values, computed once a request.

Shapes: Z layers; B batch rows; L text tokens; M image tokens; N heads; K head width; D = N * K stream width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

NO_TOKEN = float("-inf")
"""Added to the logit of a token that is not there."""


@dataclass(frozen=True, slots=True)
class LayerContext:
    """One layer's part of a `TextContext`; the attributes mean the same."""

    key_BLNK: Tensor
    value_BLNK: Tensor
    bias_BL: Tensor | None
    output_BNLD: Tensor | None
    image_key_BMNK: Tensor | None
    image_value_BMNK: Tensor | None


@dataclass(frozen=True, slots=True)
class TextContext:
    """Cross-attention keys and values of all layers; only tensors, so that a request's state can hold it.

    A context is exact (`bias_BL` is None: all tokens, as the reference has them) or short: padding tokens are one
    token, whose logit is raised by the logarithm of their number, and keys already carry the weight of the query's
    norm and the scale of the logits.

    Attributes:
        keys_ZBLNK: Normalized text keys.
        values_ZBLNK: Text values.
        bias_BL: Float32, added to the logits of short keys; minus infinity where a row has no such token.
        outputs_ZBNLD: What each token adds to the stream for each head, the output projection included; None where
            going through the values is cheaper.
        image_keys_ZBMNK: Normalized image keys; None without image tokens.
        image_values_ZBMNK: Image values; None without image tokens.
    """

    keys_ZBLNK: Tensor
    values_ZBLNK: Tensor
    bias_BL: Tensor | None = None
    outputs_ZBNLD: Tensor | None = None
    image_keys_ZBMNK: Tensor | None = None
    image_values_ZBMNK: Tensor | None = None

    @property
    def num_rows(self) -> int:
        """Batch rows."""
        return self.keys_ZBLNK.shape[1]

    @property
    def is_exact(self) -> bool:
        """Whether this is the reference's form."""
        return self.bias_BL is None

    def layer(self, index: int) -> LayerContext:
        """Return views of one layer."""
        outputs, image_keys, image_values = self.outputs_ZBNLD, self.image_keys_ZBMNK, self.image_values_ZBMNK
        return LayerContext(
            key_BLNK=self.keys_ZBLNK[index],
            value_BLNK=self.values_ZBLNK[index],
            bias_BL=self.bias_BL,
            output_BNLD=None if outputs is None else outputs[index],
            image_key_BMNK=None if image_keys is None else image_keys[index],
            image_value_BMNK=None if image_values is None else image_values[index],
        )


def join_layers(layers: Sequence[LayerContext]) -> TextContext:
    """Join the parts of all layers, in order."""

    def stack(name: str) -> Tensor | None:
        parts = [getattr(layer, name) for layer in layers]
        return None if parts[0] is None else torch.stack(parts)

    return TextContext(
        keys_ZBLNK=torch.stack([layer.key_BLNK for layer in layers]),
        values_ZBLNK=torch.stack([layer.value_BLNK for layer in layers]),
        bias_BL=layers[0].bias_BL,
        outputs_ZBNLD=stack("output_BNLD"),
        image_keys_ZBMNK=stack("image_key_BMNK"),
        image_values_ZBMNK=stack("image_value_BMNK"),
    )


def stack_contexts(contexts: Sequence[TextContext]) -> TextContext:
    """Join contexts of one model along the batch axis, in order.

    Short contexts may have different token counts; exact ones have the same, and the two kinds do not mix.

    Args:
        contexts: At least one.
    """
    if len(contexts) == 1:
        return contexts[0]
    assert len({context.is_exact for context in contexts}) == 1, "exact and short contexts do not mix"
    num_tokens = max(context.keys_ZBLNK.shape[2] for context in contexts)
    padded = [_pad(context, num_tokens) for context in contexts]
    return TextContext(
        keys_ZBLNK=torch.cat([context.keys_ZBLNK for context in padded], dim=1),
        values_ZBLNK=torch.cat([context.values_ZBLNK for context in padded], dim=1),
        bias_BL=_cat([context.bias_BL for context in padded], dim=0),
        outputs_ZBNLD=_cat([context.outputs_ZBNLD for context in padded], dim=1),
        image_keys_ZBMNK=_cat([context.image_keys_ZBMNK for context in padded], dim=1),
        image_values_ZBMNK=_cat([context.image_values_ZBMNK for context in padded], dim=1),
    )


def split_context(context: TextContext, num_rows: Sequence[int]) -> list[TextContext]:
    """Cut a context into contexts of some rows each, in order, each with memory of its own.

    Args:
        context: The whole.
        num_rows: Rows of each part; they add up to the whole's.
    """
    parts = {name: _split(getattr(context, name), num_rows, dim) for name, dim in _BATCH_AXES.items()}
    return [TextContext(**{name: rows[index] for name, rows in parts.items()}) for index in range(len(num_rows))]


def context_row(context: TextContext, row: int) -> TextContext:
    """Return one row of a context, in the whole's memory."""

    def narrow(name: str, dim: int) -> Any:
        part = getattr(context, name)
        return None if part is None else part.narrow(dim, row, 1)

    return TextContext(**{name: narrow(name, dim) for name, dim in _BATCH_AXES.items()})


def select_rows(context: TextContext, row_R: Tensor) -> TextContext:
    """Return some rows of a context, each as often as it is named; int64, shape (R,); differentiable."""

    def select(name: str, dim: int) -> Any:
        part = getattr(context, name)
        return None if part is None else part.index_select(dim, row_R)

    return TextContext(**{name: select(name, dim) for name, dim in _BATCH_AXES.items()})


_BATCH_AXES = {
    "keys_ZBLNK": 1,
    "values_ZBLNK": 1,
    "bias_BL": 0,
    "outputs_ZBNLD": 1,
    "image_keys_ZBMNK": 1,
    "image_values_ZBMNK": 1,
}


def _split(value: Tensor | None, num_rows: Sequence[int], dim: int) -> list[Any]:
    """Return copies of some rows each; of what is not there, as many times None."""
    if value is None:
        return [None] * len(num_rows)
    return [value] if len(num_rows) == 1 else [part.clone() for part in value.split(list(num_rows), dim=dim)]


def _cat(parts: Sequence[Tensor | None], dim: int) -> Tensor | None:
    """Concatenate what every context has; None for what one of them lacks."""
    present = [part for part in parts if part is not None]
    return torch.cat(present, dim=dim) if len(present) == len(parts) else None


def _pad(context: TextContext, num_tokens: int) -> TextContext:
    """Append tokens that no query attends to, up to `num_tokens`."""
    missing = num_tokens - context.keys_ZBLNK.shape[2]
    if missing == 0:
        return context
    assert context.bias_BL is not None, "exact contexts of one model have one length"
    outputs = context.outputs_ZBNLD
    return TextContext(
        keys_ZBLNK=F.pad(context.keys_ZBLNK, (0, 0, 0, 0, 0, missing)),
        values_ZBLNK=F.pad(context.values_ZBLNK, (0, 0, 0, 0, 0, missing)),
        bias_BL=F.pad(context.bias_BL, (0, missing), value=NO_TOKEN),
        outputs_ZBNLD=None if outputs is None else F.pad(outputs, (0, 0, 0, missing)),
        image_keys_ZBMNK=context.image_keys_ZBMNK,
        image_values_ZBMNK=context.image_values_ZBMNK,
    )


def merge_padding(text_BLE: Tensor, num_tokens: int | None = None) -> tuple[Tensor, Tensor]:
    """Merge the equal tokens at the end of each row into one.

    A softmax over `n` equal keys gives them together the weight of one key whose logit is higher by `log(n)`.

    Args:
        text_BLE: Text encoder's output, zero-padded.
        num_tokens: Tokens to keep, at least one more than the longest text has unless that fills its row; None keeps
            what the longest row needs, which must be looked up in the data.

    Returns:
        The text, cut, and the logits' bias, float32, shape (B, cut L).
    """
    is_last_BL = (text_BLE == text_BLE[:, -1:]).all(dim=-1)
    run_B = is_last_BL.flip(1).cumprod(dim=1).sum(dim=1)
    first_B1 = (text_BLE.shape[1] - run_B).unsqueeze(1)
    num_kept = int(first_B1.max()) + 1 if num_tokens is None else num_tokens
    position_L = torch.arange(num_kept, device=text_BLE.device)
    bias_BL = torch.zeros(text_BLE.shape[0], num_kept, device=text_BLE.device)
    bias_BL = torch.where(position_L == first_B1, run_B.unsqueeze(1).float().log(), bias_BL)
    return text_BLE[:, :num_kept], bias_BL.masked_fill(position_L > first_B1, NO_TOKEN)
