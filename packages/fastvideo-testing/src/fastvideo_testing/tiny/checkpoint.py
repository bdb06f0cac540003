"""Writes a checkpoint of the tiny family: weights drawn from a seed, configurations, and the card."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from fastvideo_core.card import ModelCard
from fastvideo_testing.tiny.card import tiny_card
from fastvideo_testing.tiny.plugin import PIPELINE_NAME

if TYPE_CHECKING:
    from torch import nn

__all__ = ["write_tiny_checkpoint"]


def write_tiny_checkpoint(
    folder: Path, *, seed: int = 0, make_card: Callable[[Path], ModelCard] = tiny_card
) -> ModelCard:
    """Write a checkpoint into a folder, which is made if it is missing, and return its card.

    Args:
        folder: Where; files that are there are replaced.
        seed: Decides the weights.
        make_card: Makes the card that is written beside them.
    """
    import torch
    from safetensors.torch import save_file

    for name, (file_name, build) in _modules().items():
        place = folder / name
        place.mkdir(parents=True, exist_ok=True)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            save_file(dict(build().state_dict()), place / file_name)
        (place / "config.json").write_text(json.dumps(_config_fields()), encoding="utf-8")
    (folder / "model_index.json").write_text(json.dumps({"_class_name": PIPELINE_NAME}), encoding="utf-8")
    card = make_card(folder)
    (folder / "card.json").write_text(card.model_dump_json(indent=2), encoding="utf-8")
    return card


def _modules() -> Mapping[str, tuple[str, Callable[[], nn.Module]]]:
    from fastvideo_testing.tiny.model import TinyConfig, TinyTextEncoder, TinyTransformer, TinyVae

    config = TinyConfig()
    return {
        "text_encoder": ("model.safetensors", lambda: TinyTextEncoder(config)),
        "transformer": ("diffusion_pytorch_model.safetensors", lambda: TinyTransformer(config)),
        "vae": ("diffusion_pytorch_model.safetensors", lambda: TinyVae(config)),
    }


def _config_fields() -> dict[str, int]:
    from fastvideo_testing.tiny.model import TinyConfig

    return TinyConfig().model_dump()
