"""Single files as a card's checkpoint: a folder in diffusers layout whose weights are links to ComfyUI's files.

The card's own checkpoint gives what single files lack: configurations and the tokenizer. Nothing is copied but these,
and the loader then accounts for every tensor by name and shape, as for any other checkpoint.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from fastvideo_core.card import CheckpointSource, ComponentFiles, ModelCard
from fastvideo_core.errors import CheckpointError
from fastvideo_core.runtime.weights.locate import locate
from fastvideo_core.runtime.weights.needs import HOST_KINDS

__all__ = ["KEY_MAPS", "stage_card"]

KEY_MAPS: Mapping[str, str] = {
    "transformer": "fastvideo_comfy.keys:WAN_TRANSFORMER",
    "transformer_2": "fastvideo_comfy.keys:WAN_TRANSFORMER",
    "text_encoder": "fastvideo_comfy.keys:TEXT_ENCODER",
    "vae": "fastvideo_comfy.keys:WAN_VAE",
    "image_encoder": "fastvideo_comfy.keys:VISION",
}
"""Renames of the Wan family's single files, by component."""

_VAE_22 = "fastvideo_comfy.keys:WAN_VAE_22"
_STEMS = {"transformers": "model", "diffusers": "diffusion_pytorch_model"}


def stage_card(card: ModelCard, files: Mapping[str, Path], folder: Path) -> ModelCard:
    """Return a card whose components come from single files.

    Args:
        card: The card; its own checkpoint gives configurations and the tokenizer.
        files: Files by component.
        folder: An empty folder for the links; it has to stay for as long as the card is used.

    Raises:
        CheckpointError: The family's single files are not known, or the card's own configurations are not there.
    """
    if card.family != "wan":
        raise CheckpointError(f"single files of the {card.family} family are not known; known: wan")
    manifest = card.checkpoint
    bases = _base_folders(card)
    components: dict[str, ComponentFiles] = {}
    for spec in card.components.values():
        described, base = manifest.components[spec.load_id], bases[spec.load_id]
        place = folder / described.folder
        if spec.component_id not in files:
            _link(base / described.folder, place)
            components[spec.load_id] = described.model_copy(update={"source": None})
            continue
        key_map = _key_map(card, spec.component_id, base / described.folder)
        place.mkdir(parents=True)
        shutil.copyfile(base / described.folder / "config.json", place / "config.json")
        _link(files[spec.component_id], place / f"{_STEMS.get(described.layout, 'model')}.safetensors")
        components[spec.load_id] = described.model_copy(
            update={
                "layout": "comfyui",
                "key_map": key_map,
                "only": "fastvideo_comfy.keys:is_weight",
                "source": None,
            }
        )
    place_of = CheckpointSource(kind="folder", location=str(folder), is_gated=manifest.source.is_gated)
    return card.model_copy(
        update={"checkpoint": manifest.model_copy(update={"source": place_of, "components": components})}
    )


def _base_folders(card: ModelCard) -> dict[str, Path]:
    """Return the folders with configurations and host parts by load id; of hub repositories these alone are fetched."""
    manifest = card.checkpoint
    hosts = {spec.load_id for spec in card.components.values() if spec.kind in HOST_KINDS}
    folders: dict[str, Path] = {}
    for source, held in manifest.sources.items():
        if source.kind == "hub":
            from fastvideo_core.runtime.weights.hub import fetch_configs

            fetch_configs(source.location, source.revision)
        host = tuple(manifest.components[load_id].folder for load_id in held if load_id in hosts)
        place = locate(source.kind, source.location, revision=source.revision, components=host).folder
        folders.update(dict.fromkeys(held, place))
    return folders


def _key_map(card: ModelCard, component: str, folder: Path) -> str:
    """Return the renames of a component's single file; those of a VAE follow from its configuration."""
    if component != "vae":
        return KEY_MAPS[component]
    try:
        config = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{folder / 'config.json'} cannot be read: {error}") from error
    if config.get("is_residual"):
        return _VAE_22
    if config.get("num_res_blocks", 2) != 2:
        raise CheckpointError(
            f"single files of the VAE of {card.model_id} are not known: its stages have {config['num_res_blocks']} "
            "residual blocks, those of Wan 2.1 have 2"
        )
    return KEY_MAPS[component]


def _link(target: Path, place: Path) -> None:
    if not target.exists():
        raise CheckpointError(f"{target} is not there")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(target.resolve())
