"""The attention backend of a model: which one is chosen, whether it can run here, and who takes it.

A component's factory says with `takes_attention` that it builds the backend in; torch's own needs no word.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch

from fastvideo_core.card import ModelCard, resolve_ref
from fastvideo_core.errors import ParameterError
from fastvideo_core.extend.base import AttentionBackendSpec
from fastvideo_core.extend.extensions import Extensions, resolve_plugin_ref

__all__ = ["AttentionBackend", "AttentionFunction", "attention_takers", "choose_attention", "takes_attention"]

AttentionFunction = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""Softmax attention of (query, key, value), all (B, S, N, K), with logits over the square root of K; (B, S, N, K)."""

_FactoryT = TypeVar("_FactoryT", bound=Callable[..., object])
_MARK = "fastvideo_takes_attention"


@dataclass(frozen=True, slots=True)
class AttentionBackend:
    """A backend that has been chosen.

    Attributes:
        spec: Its description.
        function: What computes.
    """

    spec: AttentionBackendSpec
    function: AttentionFunction

    def check(self, device: torch.device, precision: str) -> None:
        """Refuse a device or a number format that it does not run in.

        Raises:
            ParameterError: With what it runs in.
        """
        for field, value, allowed in (
            ("device", device.type, self.spec.devices),
            ("precision", precision, self.spec.precisions),
        ):
            if value not in allowed:
                raise ParameterError(
                    f"the attention backend {self.spec.name} does not run in it", field=field, value=value,
                    allowed=", ".join(allowed),
                )  # fmt: skip


def takes_attention(factory: _FactoryT) -> _FactoryT:
    """Mark a component's factory: it builds `ComponentSource.attention` in, where there is one."""
    setattr(factory, _MARK, True)
    return factory


def attention_takers(card: ModelCard) -> tuple[str, ...]:
    """Return the components of a card that take a backend."""
    return tuple(name for name, spec in card.components.items() if getattr(resolve_ref(spec.factory), _MARK, False))


def choose_attention(extensions: Extensions | None, card: ModelCard) -> AttentionBackend | None:
    """Return the backend that a model of a card is loaded with; None for torch's own.

    Args:
        extensions: What is on, with the chosen name.
        card: The card.

    Raises:
        ParameterError: There is no such backend, it cannot run here, or no component of the card takes it.
        PluginError: It cannot be imported.
    """
    if extensions is None or extensions.attention == "sdpa":
        return None
    name, known = extensions.attention, extensions.attention_backends
    if name not in known:
        raise ParameterError(
            "no plugin that is on brings such a backend", field="attention", value=name,
            allowed=", ".join(["sdpa", *known]),
        )  # fmt: skip
    spec = known[name]
    if spec.available is not None:
        reason = resolve_plugin_ref(f"attention backend {name}", spec, "available")()
        if reason is not None:
            raise ParameterError(f"cannot run here: {reason}", field="attention", value=name, allowed="sdpa")
    if not attention_takers(card):
        raise ParameterError(
            f"no component of card {card.model_id} takes another backend", field="attention", value=name, allowed="sdpa"
        )
    return AttentionBackend(spec, resolve_plugin_ref(f"attention backend {name}", spec))
