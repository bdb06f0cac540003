"""The plugin of the tiny family: how it knows a checkpoint of its own. Imports no torch.

It brings no card of its own accord, since its weights are in no package: tests write them where they need them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastvideo_core.card import CheckpointSource, ModelCard
from fastvideo_core.extend import hookimpl
from fastvideo_testing.tiny.card import tiny_card

__all__ = ["PIPELINE_NAME", "card_from_layout"]

PIPELINE_NAME = "TinyPipeline"


@hookimpl
def card_from_layout(source: CheckpointSource, index: Mapping[str, Any]) -> ModelCard | None:
    """Describe a tiny checkpoint."""
    return tiny_card(source) if index.get("_class_name") == PIPELINE_NAME else None
