"""Model chains: a loader, adapters and the flow shift on the way to a sampler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fastvideo_comfy.files import CardFile
from fastvideo_comfy.graph.base import FlatNode
from fastvideo_comfy.lower.base import Lowering
from fastvideo_comfy.program import AdapterUse

__all__ = ["DEFAULT_SHIFT", "Clip", "ModelChain", "lower_clip", "lower_model", "lower_vae", "model_owners"]

DEFAULT_SHIFT = 8.0
"""ComfyUI's flow shift of Wan models where no node sets one."""

_MAX_CHAIN = 1000


@dataclass(frozen=True, slots=True)
class ModelChain:
    """Weights as a sampler gets them.

    Attributes:
        loader: The loader.
        file: Its file.
        shift: Flow shift.
        shift_node: The node that sets it; the loader, where none does.
        adapters: Adapters, the first one loaded first.
        origin: Ids of all nodes of the chain.
    """

    loader: FlatNode
    file: str
    shift: float
    shift_node: FlatNode
    adapters: tuple[AdapterUse, ...]
    origin: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Clip:
    """A text encoder as a prompt gets it; fields as of `ModelChain`."""

    loader: FlatNode
    file: str
    adapters: tuple[AdapterUse, ...]
    origin: tuple[str, ...]


def lower_model(ctx: Lowering, node: FlatNode, name: str = "model") -> ModelChain | None:
    """Follow a MODEL input back to its loader; the shift nearest to the sampler holds."""
    place: FlatNode = node
    shift: tuple[float, FlatNode] | None = None
    adapters: list[AdapterUse] = []
    origin: list[str] = []
    for _ in range(_MAX_CHAIN):
        found = ctx.source(place, name, wanted="a model: UNETLoader")
        if found is None:
            return None
        place, slot = found
        name = "model"
        if place.node_id in origin:
            ctx.fail(place, "cycle", "its model comes from itself", "model")
            return None
        origin.append(place.node_id)
        if place.type == "UNETLoader":
            return _loaded(ctx, place, shift or (DEFAULT_SHIFT, place), adapters, origin)
        if place.type == "ModelSamplingSD3":
            own = _shift(ctx, place)
            if own is None:
                return None
            shift = shift or (own, place)
        elif place.type in ("LoraLoaderModelOnly", "LoraLoader") and slot == 0:
            adapters = _adapters(ctx, place, "strength_model") + adapters
        else:
            ctx.unexpected(node, "model", place, "UNETLoader, ModelSamplingSD3, LoraLoaderModelOnly, LoraLoader")
            return None
    ctx.fail(
        node, "chain_too_long", "its model chain has no end in sight", "model", allowed=f"{_MAX_CHAIN} nodes at most"
    )
    return None


def _shift(ctx: Lowering, node: FlatNode) -> float | None:
    shift = ctx.number(node, "shift", 0.0, 100.0)
    if shift == 0:
        ctx.fail(node, "value_smaller_than_min", "a flow shift of 0 has no schedule", "shift", allowed="above 0")
        return None
    return shift


def _loaded(
    ctx: Lowering, loader: FlatNode, shift: tuple[float, FlatNode], adapters: list[AdapterUse], origin: list[str]
) -> ModelChain | None:
    file = ctx.file(loader, "unet_name")
    why = "weights run in the number format that the deploy config or the card says"
    dtype = ctx.choice(loader, "weight_dtype", ("default",), why)
    if file is None or dtype is None:
        return None
    return ModelChain(loader, file, float(shift[0]), shift[1], tuple(adapters), tuple(origin))


def model_owners(ctx: Lowering, model: ModelChain) -> tuple[CardFile, ...]:
    """Return the transformers that a model file may be; a problem is noted where none is known."""
    owners = ctx.files.owners(model.file)
    kinds = tuple(owner for owner in owners if owner.component in ("transformer", "transformer_2"))
    if not kinds:
        message = "no card is known for this model file; `--model FILE=CARD` names one"
        nearest = ctx.files.nearest(model.file, "transformer")
        ctx.fail(model.loader, "value_not_in_list", message, "unet_name", got=model.file, nearest=nearest)
    return kinds


def _adapters(ctx: Lowering, node: FlatNode, strength_input: str) -> list[AdapterUse]:
    """Return an adapter node's adapter; none where its strength is zero, as ComfyUI skips it then."""
    strength = ctx.number(node, strength_input, -100.0, 100.0)
    file = ctx.file(node, "lora_name")
    if strength is None or file is None or strength == 0:
        return []
    return [AdapterUse(file=file, strength=float(strength))]


def lower_clip(ctx: Lowering, node: FlatNode, name: str = "clip") -> Clip | None:
    """Follow a CLIP input back to its loader."""
    place, origin = node, list[str]()
    adapters: list[AdapterUse] = []
    for _ in range(_MAX_CHAIN):
        found = ctx.source(place, name, wanted="a text encoder: CLIPLoader")
        if found is None:
            return None
        place, slot = found
        origin.append(place.node_id)
        if place.type == "CLIPLoader":
            file = ctx.file(place, "clip_name")
            return None if file is None else Clip(place, file, tuple(adapters), tuple(origin))
        if place.type == "LoraLoader" and slot == 1:
            adapters = _adapters(ctx, place, "strength_clip") + adapters
        else:
            ctx.unexpected(node, name, place, "CLIPLoader, LoraLoader")
            return None
    return None


def lower_vae(ctx: Lowering, node: FlatNode, name: str = "vae") -> tuple[FlatNode, str] | None:
    """Return the loader and the file behind a VAE input."""
    found = ctx.source(node, name, wanted="a VAE: VAELoader")
    if found is None:
        return None
    loader: Any = found[0]
    if loader.type != "VAELoader":
        ctx.unexpected(node, name, loader, "VAELoader")
        return None
    file = ctx.file(loader, "vae_name")
    return None if file is None else (loader, file)
