"""The finished model that a run begins with, read from the folder that its own training has written."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TypeVar

from safetensors.torch import load_file
from torch import Tensor

from fastvideo_core.errors import ParameterError
from fastvideo_wan.models.vae import WanVAE
from fastvideo_wan.shapes.train.config import DitStage, TrainConfig
from fastvideo_wan.shapes.train.latents_stage import load_vae
from fastvideo_wan.shapes.train.model import ShapesModel

SHIPPED = Path(__file__).parents[2] / "data" / "wan-shapes"
_LAYER = re.compile(r"blocks\.(\d+)\.")
ModelT = TypeVar("ModelT", bound=ShapesModel)


class Base:
    """A model as the `ship` stage of `fastvideo_wan.shapes.train` writes it.

    Args:
        folder: With `recipe.json`, `vae`, `transformer` and `text_encoder`.
        dropped_layers: Indices of the transformer's layers that are left out.

    Raises:
        ParameterError: If the folder holds no such model, or not so many layers.
    """

    def __init__(self, folder: Path, dropped_layers: tuple[int, ...] = ()) -> None:
        try:
            recipe = json.loads((folder / "recipe.json").read_text(encoding="utf-8"))
        except OSError as error:
            message = "must be a folder that `python -m fastvideo_wan.shapes.train --stage ship` has written"
            raise ParameterError(
                f"{message}: {error.strerror}: recipe.json", field="base", value=str(folder)
            ) from error
        self.folder = folder
        self.settings = TrainConfig.model_validate({"folder": folder, **recipe["settings"]})
        num_layers = self.settings.dit.num_layers
        self.kept = [layer for layer in range(num_layers) if layer not in dropped_layers]
        if not self.kept or len(self.kept) + len(set(dropped_layers)) != num_layers:
            raise ParameterError(
                f"must name some of the base's layers 0 to {num_layers - 1}, not all",
                field="dropped_layers",
                value=str(dropped_layers),
            )

    @property
    def dit(self) -> DitStage:
        """The transformer's shape, without the layers that are left out."""
        return self.settings.dit.model_copy(update={"num_layers": len(self.kept)})

    def load_vae(self) -> WanVAE:
        """Read the autoencoder, in float32."""
        return load_vae(self.folder / "vae")

    def load_model(self, model_class: type[ModelT]) -> ModelT:
        """Return a model of a class with the transformer's and the text encoder's weights, in float32."""
        vae = json.loads((self.folder / "vae" / "config.json").read_text(encoding="utf-8"))
        model = model_class(self.dit, int(vae["z_dim"]))
        weights = load_file(self.folder / "transformer" / "diffusion_pytorch_model.safetensors")
        model.transformer.load_state_dict(self._kept_weights(weights))
        encoder = load_file(self.folder / "text_encoder" / "model.safetensors")
        encoder.setdefault("encoder.embed_tokens.weight", encoder["shared.weight"])  # tied, so it is written once
        model.text_encoder.load_state_dict({name: tensor.float() for name, tensor in encoder.items()})
        return model

    def _kept_weights(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        kept = {}
        for name, tensor in weights.items():
            found = _LAYER.match(name)
            if found and int(found[1]) not in self.kept:
                continue
            at = f"blocks.{self.kept.index(int(found[1]))}." if found else ""
            kept[at + name[len(found[0]) if found else 0 :]] = tensor.float()
        return kept


def read_base(config: TrainConfig) -> Base | None:
    """Read what a run begins with; None if it begins with nothing.

    Raises:
        ParameterError: If there is no such model in the folder, or its nets have other shapes than the run's settings.
    """
    if config.base is None:
        return None
    base = Base(SHIPPED if config.base == SHIPPED.name else Path(config.base))
    for name in ("num_heads", "head_dim", "num_layers", "ffn_dim", "text_dim", "text_layers"):
        got, allowed = getattr(config.dit, name), getattr(base.dit, name)
        if got != allowed:
            message = f"must be {allowed}, as in the base {config.base!r}, whose weights the run begins with"
            raise ParameterError(message, field=f"dit.{name}", value=str(got))
    return base


def first_model(config: TrainConfig, latent_channels: int) -> ShapesModel:
    """Return the model before a run's first step: the base's, or one with random weights.

    Words that the base did not know have ids that its table held as spare ones, with rows that nothing has trained.
    """
    base = read_base(config)
    return ShapesModel(config.dit, latent_channels) if base is None else base.load_model(ShapesModel)
