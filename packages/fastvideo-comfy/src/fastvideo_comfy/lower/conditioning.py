"""Prompts, images and latents: what a sampler is conditioned on, and the task that follows from it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from fastvideo_comfy.graph.base import FlatNode
from fastvideo_comfy.lower.base import Lowering
from fastvideo_comfy.lower.models import Clip, lower_clip, lower_vae

__all__ = ["IMAGE_NODES", "Conditioning", "LatentStart", "Picture", "Prompt", "lower_latent", "lower_prompt"]

_WEIGHTED = re.compile(r"(?<!\\)[()]")
_EMBEDDING = re.compile(r"\bembedding:", re.IGNORECASE)
_MAX_SIZE = 16384
IMAGE_NODES = ("WanImageToVideo", "WanFirstLastFrameToVideo")
"""Nodes that add images to both prompts and make the latents with them."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """An encoded text.

    Attributes:
        text: The text.
        clip: The encoder.
        origin: Ids of its nodes.
        through: The node that adds images to it, if there is one.
        is_zeroed: Whether ConditioningZeroOut makes it zeros.
    """

    text: str
    clip: Clip
    origin: tuple[str, ...]
    through: FlatNode | None = None
    is_zeroed: bool = False


@dataclass(frozen=True, slots=True)
class Picture:
    """An image file.

    Attributes:
        node: The loader.
        file: Its file.
    """

    node: FlatNode
    file: str


@dataclass(frozen=True, slots=True)
class Conditioning:
    """Images that a video begins and ends with.

    Attributes:
        first: Its first frame.
        last: Its last frame.
        vision: What the vision encoder sees, with its file.
        vae: File of the VAE that encodes them.
    """

    first: Picture | None = None
    last: Picture | None = None
    vision: tuple[Picture, FlatNode, str] | None = None
    vae: tuple[FlatNode, str] | None = None


@dataclass(frozen=True, slots=True)
class LatentStart:
    """What a sampler starts from.

    Attributes:
        node: The node that makes it.
        width: Width in pixels.
        height: Height in pixels.
        length: Pixel frames.
        images: Images.
        task: The card's task.
        origin: Ids of its nodes.
    """

    node: FlatNode
    width: int
    height: int
    length: int
    images: Conditioning
    task: Literal["text_to_video", "image_to_video"]
    origin: tuple[str, ...]


def lower_prompt(ctx: Lowering, node: FlatNode, name: str) -> Prompt | None:
    """Follow a CONDITIONING input back to its text."""
    through: FlatNode | None = None
    origin: list[str] = []
    is_zeroed = False
    place = node
    for _ in range(100):
        found = ctx.source(place, name, wanted="a prompt: CLIPTextEncode")
        if found is None:
            return None
        place, slot = found
        origin.append(place.node_id)
        if place.type == "CLIPTextEncode":
            return _encoded(ctx, place, through, tuple(origin), is_zeroed=is_zeroed)
        if place.type in IMAGE_NODES and slot < 2 and through is None:
            through, name = place, ("positive", "negative")[slot]
        elif place.type == "ConditioningZeroOut":
            is_zeroed, name = True, "conditioning"
        else:
            ctx.unexpected(node, name, place, "CLIPTextEncode, WanImageToVideo, WanFirstLastFrameToVideo")
            return None
    return None


def _encoded(
    ctx: Lowering, node: FlatNode, through: FlatNode | None, origin: tuple[str, ...], *, is_zeroed: bool
) -> Prompt | None:
    text, clip = ctx.text(node, "text"), lower_clip(ctx, node)
    if text is None or clip is None:
        return None
    if _WEIGHTED.search(text):
        message = "round brackets weight words, which no text encoder of a card does"
        ctx.fail(node, "weighted_prompt", message, "text", allowed=r"text without ( and ), or \( and \)")
        return None
    if _EMBEDDING.search(text):
        ctx.fail(node, "embedding_prompt", "the text names a textual inversion, which no card takes", "text")
        return None
    plain = text.replace(r"\(", "(").replace(r"\)", ")")
    return Prompt(plain, clip, (*origin, *clip.origin), through, is_zeroed)


def lower_latent(ctx: Lowering, node: FlatNode, name: str = "latent_image") -> LatentStart | None:
    """Return what a sampler's latent input starts from."""
    found = ctx.source(node, name, wanted="empty latents: EmptyHunyuanLatentVideo")
    if found is None:
        return None
    place, slot = found
    if place.type == "EmptyHunyuanLatentVideo":
        return _sized(ctx, place, Conditioning(), "text_to_video", ())
    if place.type == "Wan22ImageToVideoLatent":
        return _first_frame_latent(ctx, place)
    if place.type in IMAGE_NODES and slot == 2:
        return _image_latent(ctx, place)
    ctx.unexpected(node, name, place, "EmptyHunyuanLatentVideo, WanImageToVideo, Wan22ImageToVideoLatent")
    return None


def _sized(
    ctx: Lowering, node: FlatNode, images: Conditioning, task: Any, origin: tuple[str, ...]
) -> LatentStart | None:
    sizes = [ctx.integer(node, name, 1, _MAX_SIZE) for name in ("width", "height", "length")]
    batch = ctx.integer(node, "batch_size", 1, 4096)
    if batch is not None and batch != 1:
        message = "a request makes one video"
        ctx.fail(node, "unsupported_batch", message, "batch_size", got=batch, allowed="1", nearest="1")
        return None
    if batch is None or None in sizes:
        return None
    width, height, length = (int(size) for size in sizes if size is not None)
    return LatentStart(node, width, height, length, images, task, (node.node_id, *origin))


def _picture(ctx: Lowering, node: FlatNode, name: str) -> Picture | None:
    found = ctx.source(node, name, wanted="an image: LoadImage", is_optional=True)
    if found is None:
        return None
    place, slot = found
    if place.type != "LoadImage" or slot != 0:
        ctx.unexpected(node, name, place, "LoadImage")
        return None
    file = ctx.file(place, "image")
    return None if file is None else Picture(place, file)


def _has(ctx: Lowering, node: FlatNode, name: str) -> bool:
    """Whether an optional input comes from anywhere."""
    return name in node.inputs and ctx.folder.input(node, name).source is not None


def _first_frame_latent(ctx: Lowering, node: FlatNode) -> LatentStart | None:
    vae = lower_vae(ctx, node)
    if vae is None:
        return None
    if not _has(ctx, node, "start_image"):
        return _sized(ctx, node, Conditioning(), "text_to_video", ())
    first = _picture(ctx, node, "start_image")
    if first is None:
        return None
    return _sized(ctx, node, Conditioning(first, vae=vae), "image_to_video", (first.node.node_id,))


def _image_latent(ctx: Lowering, node: FlatNode) -> LatentStart | None:
    vae = lower_vae(ctx, node)
    names = {"first": "start_image"} | ({"last": "end_image"} if node.type == "WanFirstLastFrameToVideo" else {})
    pictures = {key: _picture(ctx, node, name) for key, name in names.items() if _has(ctx, node, name)}
    vision = _vision(ctx, node)
    if vae is None or None in pictures.values():
        return None
    first, last = pictures.get("first"), pictures.get("last")
    if first is None:
        message = "without a first frame there is no image to begin with"
        ctx.fail(node, "required_input_missing", message, "start_image", allowed="LoadImage")
        return None
    others = [picture.node.node_id for picture in (first, last) if picture is not None]
    if vision is not None:
        others += [vision[0].node.node_id, vision[1].node_id]
    return _sized(ctx, node, Conditioning(first, last, vision, vae), "image_to_video", tuple(dict.fromkeys(others)))


def _vision(ctx: Lowering, node: FlatNode) -> tuple[Picture, FlatNode, str] | None:
    """Return what the vision encoder sees: the image, the encoder's loader and its file."""
    names = [name for name in node.inputs if name.startswith("clip_vision") and _has(ctx, node, name)]
    if not names:
        return None
    if len(names) > 1:
        ctx.fail(node, "unsupported_input", "no card takes two encoded images", names[1], allowed="one")
        return None
    found = ctx.source(node, names[0], wanted="an encoded image: CLIPVisionEncode")
    if found is None:
        return None
    encode = found[0]
    if encode.type != "CLIPVisionEncode":
        ctx.unexpected(node, names[0], encode, "CLIPVisionEncode")
        return None
    return _vision_encoder(ctx, encode)


def _vision_encoder(ctx: Lowering, encode: FlatNode) -> tuple[Picture, FlatNode, str] | None:
    picture = _picture(ctx, encode, "image")
    found = ctx.source(encode, "clip_vision", wanted="a vision encoder: CLIPVisionLoader")
    if found is None or picture is None:
        return None
    loader = found[0]
    if loader.type != "CLIPVisionLoader":
        ctx.unexpected(encode, "clip_vision", loader, "CLIPVisionLoader")
        return None
    file = ctx.file(loader, "clip_name")
    if ctx.choice(encode, "crop", ("none", "center"), "not a way to cut an image") is None:
        return None
    ctx.notes[encode.node_id] = "the card's own preprocessing brings the image to the encoder's size"
    return None if file is None else (picture, loader, file)
