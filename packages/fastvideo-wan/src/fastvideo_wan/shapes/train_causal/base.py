"""The finished model that a causal run begins with, read from the folder that its own training has written."""

from __future__ import annotations

import json
import re
from pathlib import Path

from safetensors.torch import load_file
from torch import Tensor

from fastvideo_core.errors import ParameterError
from fastvideo_wan.models.vae import WanVAE
from fastvideo_wan.shapes.train.config import DitStage, TrainConfig
from fastvideo_wan.shapes.train.latents_stage import load_vae
from fastvideo_wan.shapes.train_causal.model import CausalShapesModel

SHIPPED = Path(__file__).parents[2] / "data" / "wan-shapes"
_LAYER = re.compile(r"blocks\.(\d+)\.")


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

    def load_model(self) -> CausalShapesModel:
        """Return a causal model with the transformer's and the text encoder's weights, in float32."""
        vae = json.loads((self.folder / "vae" / "config.json").read_text(encoding="utf-8"))
        model = CausalShapesModel(self.dit, int(vae["z_dim"]))
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
