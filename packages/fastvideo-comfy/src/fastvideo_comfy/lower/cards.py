"""Which card a workflow's files are, and whether the card takes what the workflow says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fastvideo_comfy.files import CardFile
from fastvideo_comfy.graph.base import FlatNode
from fastvideo_comfy.lower.base import Lowering
from fastvideo_comfy.lower.conditioning import LatentStart
from fastvideo_comfy.lower.models import Clip, model_owners
from fastvideo_comfy.lower.sampling import Sampled, Stage
from fastvideo_core.card import ModelCard, TaskSpec
from fastvideo_core.errors import ParameterError

__all__ = ["LAST_IMAGE", "SPLIT_PARAMETER", "Placed", "check_parameters", "find_target"]

SPLIT_PARAMETER = "expert_switch_step"
"""Parameter of cards with two experts: the step at which the second takes over."""

_GRID, _WIDE_GRID = 16, 32
"""Pixels a token of models on Wan 2.1's VAE, and on Wan 2.2's, whose latents are half as wide and high."""

LAST_IMAGE = "last_image"
"""Input of tasks that take a last frame."""


@dataclass(frozen=True, slots=True)
class Placed:
    """What a workflow's files come to.

    Attributes:
        name: The card, as it is asked for.
        card: The card.
        task: Its task.
        files: Loader node and file of each component.
    """

    name: str
    card: ModelCard
    task: TaskSpec
    files: dict[str, tuple[FlatNode, str]]


def find_target(ctx: Lowering, sampled: Sampled, vae: tuple[FlatNode, str] | None) -> Placed | None:
    """Return the card that the stages' files are, with all other files checked against it."""
    name = _card_name(ctx, sampled.stages)
    card = None if name is None else ctx.find_card(name)
    if name is None:
        return None
    loader = sampled.stages[0].model.loader
    if card is None:
        ctx.fail(loader, "model_not_available", f"card {name} is not installed", "unet_name")
        return None
    start = sampled.start
    task = card.capabilities.tasks.get(start.task)
    if task is None:
        ctx.fail(
            start.node,
            "unsupported_task",
            f"card {name} does no {start.task}",
            allowed=", ".join(card.capabilities.tasks),
        )
        return None
    files = _model_files(sampled.stages)
    checks = [
        _check_latents(ctx, start, name, task),
        _check_text(ctx, sampled, name, files),
        _check_vae(ctx, name, [one for one in (vae, start.images.vae) if one is not None], files),
        _check_images(ctx, start, name, card, task, files),
    ]
    return Placed(name, card, task, files) if all(checks) else None


def _check_latents(ctx: Lowering, start: LatentStart, name: str, task: TaskSpec) -> bool:
    """Refuse latents of another VAE: ComfyUI would make a video of another size than the node says."""
    grid = task.parameters["width"].multiple_of
    own = _WIDE_GRID if start.node.type == "Wan22ImageToVideoLatent" else _GRID
    if grid == own or grid not in (_GRID, _WIDE_GRID):
        return True
    nearest = "Wan22ImageToVideoLatent" if grid == _WIDE_GRID else "EmptyHunyuanLatentVideo"
    message = f"makes latents of another VAE than that of card {name}"
    ctx.fail(start.node, "latent_mismatch", message, nearest=nearest)
    return False


def _model_files(stages: tuple[Stage, ...]) -> dict[str, tuple[FlatNode, str]]:
    names = ("transformer", "transformer_2")
    return {name: (stage.model.loader, stage.model.file) for name, stage in zip(names, stages, strict=False)}


def _card_name(ctx: Lowering, stages: tuple[Stage, ...]) -> str | None:
    """Return the one card whose transformer, or whose experts in order, the files are."""
    wanted = ("transformer", "transformer_2")[: len(stages)]
    owners = [model_owners(ctx, stage.model) for stage in stages]
    if any(not found for found in owners):
        return None
    shared = [
        owner.card
        for owner in owners[0]
        if all(CardFile(owner.card, component) in found for component, found in zip(wanted, owners, strict=True))
    ]
    if not shared:
        found = "; ".join(f"{stage.model.file}: {_described(own)}" for stage, own in zip(stages, owners, strict=True))
        message = (
            f"the files are not the {'experts, in order,' if len(stages) > 1 else 'transformer'} of one card: {found}"
        )
        ctx.fail(stages[-1].model.loader, "model_mismatch", message, "unet_name")
        return None
    name = shared[0]
    card = ctx.find_card(name)
    if card is not None and (len(stages) == 2) != ("transformer_2" in card.components):
        count = "two experts" if "transformer_2" in card.components else "one transformer"
        message = f"card {name} has {count}, the workflow runs {len(stages)} stages"
        ctx.fail(stages[0].node, "model_mismatch", message, "model", allowed=f"a stage for each: {count}")
        return None
    return name


def _described(owners: tuple[CardFile, ...]) -> str:
    return ", ".join(f"{owner.component} of {owner.card}" for owner in owners)


def _is_of(ctx: Lowering, file: str, card: str, component: str) -> bool:
    owners = ctx.files.owners(file)
    return CardFile(card, component) in owners or CardFile("", component) in owners


def _check_text(ctx: Lowering, sampled: Sampled, name: str, files: dict[str, tuple[FlatNode, str]]) -> bool:
    prompts = [prompt for stage in sampled.stages for prompt in (stage.positive, stage.negative) if prompt is not None]
    clips = {prompt.clip.loader.node_id: prompt.clip for prompt in prompts}
    good = [_check_clip(ctx, clip, name) for clip in clips.values()]
    if len({(clip.file, clip.adapters) for clip in clips.values()}) > 1:
        ctx.fail(list(clips.values())[-1].loader, "unsupported_input", "the prompts have different text encoders")
        return False
    clip = next(iter(clips.values()))
    if clip.adapters:
        message = "an adapter on the text encoder, which no card declares"
        ctx.fail(clip.loader, "unsupported_adapter", message, allowed="strength_clip 0, or LoraLoaderModelOnly")
        return False
    files["text_encoder"] = (clip.loader, clip.file)
    return all(good)


def _check_clip(ctx: Lowering, clip: Clip, name: str) -> bool:
    kind = ctx.choice(clip.loader, "type", ("wan",), f"not the type of card {name}'s text encoder")
    device = ctx.choice(clip.loader, "device", ("default",), "the deploy config says where a component runs")
    return _check_file(ctx, clip.loader, "clip_name", clip.file, name, "text_encoder") and None not in (kind, device)


def _check_file(ctx: Lowering, loader: FlatNode, input_name: str, file: str, card: str, component: str) -> bool:
    if _is_of(ctx, file, card, component):
        return True
    message = f"not a known {component} of card {card}; `--model FILE=CARD:{component}` names one"
    nearest = ctx.files.nearest(file, component)
    ctx.fail(loader, "value_not_in_list", message, input_name, got=file, nearest=nearest)
    return False


def _check_vae(
    ctx: Lowering, name: str, vaes: list[tuple[FlatNode, str]], files: dict[str, tuple[FlatNode, str]]
) -> bool:
    good = [_check_file(ctx, loader, "vae_name", file, name, "vae") for loader, file in vaes]
    if len({file for _, file in vaes}) > 1:
        ctx.fail(
            vaes[-1][0], "unsupported_input", "images are encoded with one VAE and decoded with another", "vae_name"
        )
        return False
    if vaes:
        files["vae"] = vaes[0]
    return all(good)


def _check_images(
    ctx: Lowering, start: LatentStart, name: str, card: ModelCard, task: TaskSpec, files: dict[str, Any]
) -> bool:
    images, is_good = start.images, True
    if images.last is not None and LAST_IMAGE not in task.inputs:
        ctx.fail(start.node, "unsupported_input", f"card {name} takes no last frame", "end_image", allowed="no image")
        is_good = False
    if images.first is None:
        return is_good
    has_encoder = "image_encoder" in card.components
    if has_encoder and images.vision is None:
        message = f"card {name} also looks at the image with its vision encoder"
        ctx.fail(start.node, "required_input_missing", message, "clip_vision_output", allowed="CLIPVisionEncode")
        return False
    if images.vision is None:
        return is_good
    picture, loader, file = images.vision
    if not has_encoder:
        ctx.notes[loader.node_id] = f"card {name} has no vision encoder and does not look at its result"
        return is_good
    if picture.file != images.first.file:
        message = "the vision encoder sees another image than the first frame"
        ctx.fail(start.node, "unsupported_input", message, "clip_vision_output", allowed="the same image")
        return False
    files["image_encoder"] = (loader, file)
    return _check_file(ctx, loader, "clip_name", file, name, "image_encoder") and is_good


def check_parameters(
    ctx: Lowering, placed: Placed, parameters: dict[str, tuple[Any, FlatNode, str]]
) -> dict[str, Any] | None:
    """Check parameters against the card's own grid.

    Args:
        ctx: The compilation.
        placed: The card and its task.
        parameters: Each value with the node and the input that it comes from.

    Returns:
        The values in the types of the card; None if one is refused.
    """
    checked: dict[str, Any] = {}
    is_good = True
    for name, (value, node, input_name) in parameters.items():
        spec = placed.task.parameters.get(name)
        if spec is None:
            ctx.fail(node, "unsupported_input", f"card {placed.name} takes no {name}", input_name, got=value)
            is_good = False
            continue
        try:
            checked[name] = value if name == "sampler" else spec.validate_value(name, value)
        except ParameterError as error:
            nearest = "" if error.nearest is None else str(error.nearest)
            message = f"card {placed.name} does not take this {name}"
            ctx.fail(
                node, "value_not_on_grid", message, input_name, got=value, allowed=str(error.allowed), nearest=nearest
            )
            is_good = False
    return checked if is_good else None
