"""From an output node to a request, and to the nodes of the program that make it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fastvideo_comfy.files import FOLDERS
from fastvideo_comfy.graph.base import FlatNode
from fastvideo_comfy.lower.base import Lowering
from fastvideo_comfy.lower.cards import LAST_IMAGE, SPLIT_PARAMETER, Placed, check_parameters, find_target
from fastvideo_comfy.lower.models import lower_vae
from fastvideo_comfy.lower.sampling import Sampled, lower_samples
from fastvideo_comfy.program import (
    ArtifactEdge,
    ComponentEdge,
    ComponentNode,
    ImageNode,
    LoopNode,
    OutputFile,
    OutputNode,
    OutputRequest,
    TextNode,
)
from fastvideo_core.card import resolve_ref
from fastvideo_core.program import ArtifactNode, InlineProgram, ModelLoopNode, TensorEdge
from fastvideo_core.program.base import ConstantEdge

__all__ = ["Lowered", "lower_output"]

_MAX_FPS = 1000.0


@dataclass(frozen=True, slots=True)
class Lowered:
    """One output.

    Attributes:
        request: The request.
        nodes: Nodes of the program.
    """

    request: OutputRequest
    nodes: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class _Frames:
    """Decoded frames, and what the nodes between say of them."""

    decode: FlatNode
    sampled: Sampled
    vae: tuple[FlatNode, str]
    is_tiled: bool


def lower_output(ctx: Lowering, node: FlatNode, key: str) -> Lowered | None:
    """Return the request of an output node; problems are noted where there is none.

    Args:
        ctx: The compilation.
        node: SaveVideo or SaveImage.
        key: What the ids of its nodes begin with.
    """
    prefix = _prefix(ctx, node)
    made_by: tuple[str, ...] = (node.node_id,)
    fps: tuple[float, FlatNode, str] | None = None
    if node.type == "SaveImage":
        frames = _frames(ctx, node, "images")
        extension: str | None = "png"
    else:
        extension = _format(ctx, node)
        created = _created(ctx, node)
        if created is None:
            return None
        frames, fps = _frames(ctx, created, "images"), _fps(ctx, created)
        made_by = (created.node_id, node.node_id)
        if fps is None:
            return None
    if frames is None or prefix is None or extension is None:
        return None
    placed = find_target(ctx, frames.sampled, frames.vae)
    parameters = None if placed is None else _parameters(ctx, placed, frames, fps)
    if placed is None or parameters is None:
        return None
    return _assemble(key, node, placed, frames, parameters, OutputFile(prefix=prefix, format=extension), made_by)


def _prefix(ctx: Lowering, node: FlatNode) -> str | None:
    prefix = ctx.file(node, "filename_prefix")
    if prefix is not None and "%" in prefix:
        ctx.fail(node, "unsupported_input", "placeholders in the name", "filename_prefix", got=prefix, allowed="no %")
        return None
    return prefix


def _format(ctx: Lowering, node: FlatNode) -> str | None:
    form = ctx.choice(node, "format", ("auto", "mp4"), "not a format that is written with these settings")
    codecs = [name for name in ("codec", "format.codec") if name in node.inputs]
    chosen = [ctx.choice(node, name, ("auto", "h264"), "not a codec that is written") for name in codecs]
    return None if form is None or None in chosen else "mp4"


def _created(ctx: Lowering, node: FlatNode) -> FlatNode | None:
    found = ctx.source(node, "video", wanted="a video: CreateVideo")
    if found is None:
        return None
    created = found[0]
    if created.type != "CreateVideo":
        ctx.unexpected(node, "video", created, "CreateVideo")
        return None
    if "audio" in created.inputs and (sound := ctx.source(created, "audio", wanted="", is_optional=True)):
        ctx.unexpected(created, "audio", sound[0], "no sound: no card that a workflow can name makes any")
        return None
    return created if _has_plain_colour(ctx, created) else None


def _has_plain_colour(ctx: Lowering, created: FlatNode) -> bool:
    """Whether depth and colour are those that files are written with."""
    is_good = True
    for name, allowed in _COLOUR.items():
        if name in created.inputs:
            folded = ctx.value(created, name)
            if folded.is_known and folded.value not in allowed:
                names = ", ".join(map(str, allowed))
                ctx.fail(created, "value_not_in_list", "files are 8 bit sRGB", name, got=folded.value, allowed=names)
                is_good = False
    return is_good


_COLOUR: Mapping[str, tuple[Any, ...]] = {
    "bit_depth": ("auto", 8),
    "color_space": ("sRGB", "auto"),
    "codec": ("none", "auto"),
}


def _fps(ctx: Lowering, created: FlatNode) -> tuple[float, FlatNode, str] | None:
    fps = ctx.number(created, "fps", 0.1, _MAX_FPS)
    return None if fps is None else (fps, created, "fps")


def _frames(ctx: Lowering, node: FlatNode, name: str) -> _Frames | None:
    found = ctx.source(node, name, wanted="decoded frames: VAEDecode")
    if found is None:
        return None
    decode = found[0]
    if decode.type not in ("VAEDecode", "VAEDecodeTiled"):
        ctx.unexpected(node, name, decode, "VAEDecode, VAEDecodeTiled")
        return None
    vae, sampled = lower_vae(ctx, decode), lower_samples(ctx, decode)
    is_tiled = decode.type == "VAEDecodeTiled"
    if is_tiled:
        ctx.notes[decode.node_id] = "tiles have the card's own size"
    return None if vae is None or sampled is None else _Frames(decode, sampled, vae, is_tiled)


def _parameters(
    ctx: Lowering, placed: Placed, frames: _Frames, fps: tuple[float, FlatNode, str] | None
) -> dict[str, Any] | None:
    sampled = frames.sampled
    first, start = sampled.stages[0], sampled.start
    said: dict[str, tuple[Any, FlatNode, str]] = {
        "width": (start.width, start.node, "width"),
        "height": (start.height, start.node, "height"),
        "num_frames": (start.length, start.node, "length"),
        "num_inference_steps": (first.steps, *first.place("steps")),
        "flow_shift": (first.shift, *first.place("shift")),
        "sampler": (sampled.sampler, *first.place("sampler_name")),
        "seed": (first.seed, *first.place("seed")),
        "guidance_scale": (first.cfg, *first.place("cfg")),
    }
    if first.negative is not None:
        said["negative_prompt"] = (first.negative.text, first.node, "negative")
    if fps is not None:
        said["fps"] = fps
    if frames.is_tiled:
        said["vae_tiling"] = (True, frames.decode, "")
    if len(sampled.stages) == 2:
        second = sampled.stages[1]
        said["guidance_scale_2"] = (second.cfg, *second.place("cfg"))
        said[SPLIT_PARAMETER] = (second.start, second.node, "start_at_step")
    return check_parameters(ctx, placed, said)


def _assemble(
    key: str,
    node: FlatNode,
    placed: Placed,
    frames: _Frames,
    parameters: dict[str, Any],
    file: OutputFile,
    made_by: tuple[str, ...],
) -> Lowered:
    sampled = frames.sampled
    first, images = sampled.stages[0], sampled.start.images
    inputs: dict[str, Any] = {"prompt": _text_node(key, first.positive.text, first.positive.origin)}
    for name, picture in (("image", images.first), (LAST_IMAGE, images.last)):
        if picture is not None:
            inputs[name] = ImageNode(node_id=_id(key, name), file=picture.file, origin=(picture.node.node_id,))
    components = _components(key, placed, sampled)
    loops, result = _loops(key, placed, frames, inputs, components, made_by)
    request = OutputRequest(
        output=node.node_id,
        card=placed.name,
        task=sampled.start.task,
        texts={"prompt": first.positive.text},
        images={name: one.node_id for name, one in inputs.items() if isinstance(one, ImageNode)},
        parameters=parameters,
        components={one.component: one.node_id for one in components.values()},
        sigmas=sampled.sigmas,
        file=file,
        result=result,
    )
    return Lowered(request, (*components.values(), *inputs.values(), *loops))


def _id(key: str, name: str) -> str:
    return f"{key}.{name}".replace("_", "-")


def _text_node(key: str, text: str, origin: tuple[str, ...]) -> TextNode:
    return TextNode(node_id=_id(key, "prompt"), text=text, origin=origin[:1])


def _components(key: str, placed: Placed, sampled: Sampled) -> dict[str, ComponentNode]:
    adapters = {
        name: stage.model for name, stage in zip(("transformer", "transformer_2"), sampled.stages, strict=False)
    }
    return {
        name: ComponentNode(
            node_id=_id(key, name),
            component=name,
            file=file,
            folder=FOLDERS[name],
            adapters=adapters[name].adapters if name in adapters else (),
            origin=tuple(reversed(adapters[name].origin)) if name in adapters else (loader.node_id,),
        )
        for name, (loader, file) in placed.files.items()
    }


def _loops(
    key: str,
    placed: Placed,
    frames: _Frames,
    inputs: Mapping[str, Any],
    components: Mapping[str, ComponentNode],
    made_by: tuple[str, ...],
) -> tuple[list[Any], str]:
    """Return the loops of the card's own program for the task, with what each runs on, and the output's id."""
    program: InlineProgram = resolve_ref(placed.task.program)
    artifact = next(name for name, kind in placed.task.outputs.items() if kind == "video")
    nodes: list[Any] = []
    for node in program.needed_for((artifact,)):
        if isinstance(node, ArtifactNode):
            source = TensorEdge(node=_id(key, node.source.node), output=node.source.output)
            nodes.append(OutputNode(node_id=_id(key, "output"), modality="video", source=source, origin=made_by))
        elif node.requires_input is None or node.requires_input in inputs:
            nodes.append(_loop(key, placed, frames, node, inputs, components))
    return nodes, _id(key, "output")


def _loop(
    key: str,
    placed: Placed,
    frames: _Frames,
    node: ModelLoopNode,
    inputs: Mapping[str, Any],
    components: Mapping[str, ComponentNode],
) -> LoopNode:
    edges: dict[str, Any] = {}
    for port, edge in node.inputs.items():
        if isinstance(edge, ConstantEdge):
            edges[port] = edge
        elif isinstance(edge, TensorEdge):
            edges[port] = TensorEdge(node=_id(key, edge.node), output=edge.output)
        elif edge.name in inputs:
            edges[port] = ArtifactEdge(node=inputs[edge.name].node_id)
    spec = placed.card.loops[node.loop]
    weights = {name: ComponentEdge(node=components[name].node_id) for name in spec.components if name in components}
    return LoopNode(
        node_id=_id(key, node.node_id),
        loop=node.loop,
        inputs=edges,
        components=weights,
        origin=_origin(frames, node.loop, is_generative=spec.is_generative),
    )


def _origin(frames: _Frames, loop: str, *, is_generative: bool) -> tuple[str, ...]:
    """Return the workflow's nodes that a loop of the card stands for."""
    sampled = frames.sampled
    if is_generative:
        ids = [one for stage in sampled.stages for one in (stage.node.node_id, *stage.extra)]
    elif loop == "text_encode":
        prompts = [one for stage in sampled.stages for one in (stage.positive, stage.negative) if one is not None]
        ids = [one for prompt in prompts for one in prompt.origin]
    elif loop == "vae_decode":
        ids = [frames.decode.node_id]
    else:
        ids = list(sampled.start.origin)
    return tuple(dict.fromkeys(ids))
