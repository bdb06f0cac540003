"""Keys and values of earlier chunks in plain lists: what training's roll-outs use, and what pools are measured against.

Shapes: B batch rows; S tokens of a chunk; N heads; K head width.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from fastvideo_wan.models.attention import attend
from fastvideo_wan.models.chunks import ChunkRule

KeyValue = tuple[Tensor, Tensor]


@dataclass(slots=True)
class ListedPast:
    """The chunks of one batch of videos that go on in step; a `LayerAttention` for the chunk at hand.

    Attributes:
        rule: Which chunks are attended to.
        chunk: Index of the chunk at hand.
        kept: Keys and values of each earlier chunk that is still needed, by chunk and layer.
        fresh: Those of the chunk at hand, as its last pass left them.
    """

    rule: ChunkRule
    chunk: int = 0
    kept: dict[int, list[KeyValue]] = field(default_factory=dict)
    fresh: list[KeyValue] = field(default_factory=list)

    def __call__(self, layer: int, query_BSNK: Tensor, key_BSNK: Tensor, value_BSNK: Tensor) -> Tensor:
        """Attend to the earlier chunks and to the one at hand; returns (B, S, N, K)."""
        self.fresh[layer:] = [(key_BSNK, value_BSNK)]
        past = [self.kept[chunk][layer] for chunk in self.rule.past(self.chunk)]
        keys = torch.cat([*(key for key, _ in past), key_BSNK], dim=1)
        values = torch.cat([*(value for _, value in past), value_BSNK], dim=1)
        return attend(query_BSNK, keys, values).view_as(query_BSNK)

    def commit(self) -> None:
        """Keep what the last pass left, and go on to the next chunk."""
        self.kept[self.chunk] = self.fresh
        self.chunk, self.fresh = self.chunk + 1, []
        needed = self.rule.past(self.chunk)
        for chunk in [chunk for chunk in self.kept if chunk not in needed]:
            del self.kept[chunk]
