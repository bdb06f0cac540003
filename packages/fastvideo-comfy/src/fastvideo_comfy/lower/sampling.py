"""Sampler nodes: one stage, or two that split a schedule between two experts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from fastvideo_comfy.graph.base import FlatNode
from fastvideo_comfy.lower.base import Lowering
from fastvideo_comfy.lower.conditioning import IMAGE_NODES, LatentStart, Prompt, lower_latent, lower_prompt
from fastvideo_comfy.lower.models import ModelChain, lower_model, model_owners
from fastvideo_comfy.names import DROPS, MEMORYLESS, SAMPLERS, sampler_name
from fastvideo_comfy.sigmas import SCHEDULERS, sampler_levels
from fastvideo_core.errors import ParameterError

__all__ = ["SAMPLER_NODES", "Sampled", "Stage", "lower_samples"]

SAMPLER_NODES = ("KSampler", "KSamplerAdvanced", "SamplerCustom", "SamplerCustomAdvanced")
_MAX_STEPS = 1000
_ROUNDING = 1e-7
"""Relative difference of two shifts that are one in float32."""

_FULL = 0.9999
"""From this `denoise` on ComfyUI takes the whole schedule."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One sampler node.

    Attributes:
        node: The node.
        model: Its weights.
        positive: The prompt.
        negative: What is steered away from; None where nothing is.
        cfg: Guidance scale.
        sampler: ComfyUI's sampler.
        scheduler: ComfyUI's scheduler.
        steps: Steps of the whole schedule.
        shift: Flow shift of the schedule.
        seed: Seed of the noise.
        start: First step.
        end: Step before which it ends.
        adds_noise: Whether it begins with noise.
        keeps_noise: Whether it ends at its last level, not at 0.
        is_custom: Whether it is one of the custom sampler nodes.
        extra: Ids of nodes that only set it up.
        places: Node and input that each value comes from.
    """

    node: FlatNode
    model: ModelChain
    positive: Prompt
    negative: Prompt | None
    cfg: float
    sampler: str
    scheduler: str
    steps: int
    shift: float
    seed: int
    start: int = 0
    end: int = _MAX_STEPS
    adds_noise: bool = True
    keeps_noise: bool = False
    is_custom: bool = False
    extra: tuple[str, ...] = ()
    places: dict[str, tuple[FlatNode, str]] | None = None

    def place(self, name: str) -> tuple[FlatNode, str]:
        """Return the node and the input that a value comes from."""
        return (self.places or {}).get(name, (self.node, name))


@dataclass(frozen=True, slots=True)
class Sampled:
    """Sampled latents.

    Attributes:
        stages: One stage, or two.
        start: What they start from.
        sigmas: Levels of the whole schedule.
    """

    stages: tuple[Stage, ...]
    start: LatentStart
    sigmas: tuple[float, ...]

    @property
    def sampler(self) -> str:
        """Name of the sampler with its schedule."""
        first = self.stages[0]
        return sampler_name(first.sampler, first.scheduler, is_custom=first.is_custom)


def lower_samples(ctx: Lowering, node: FlatNode, name: str = "samples") -> Sampled | None:
    """Return what samples the latents behind an input."""
    found = ctx.source(node, name, wanted="sampled latents: KSampler")
    if found is None:
        return None
    last, slot = found
    if last.type not in SAMPLER_NODES:
        ctx.unexpected(node, name, last, ", ".join(SAMPLER_NODES))
        return None
    if slot != 0:
        ctx.fail(last, "unsupported_output", "the estimate before the last step is not kept", "denoised_output")
        return None
    latent_name = "latent_image" if last.type != "SamplerCustom" or "latent_image" in last.inputs else "latent"
    before = ctx.source(last, latent_name, wanted="latents")
    stage = lower_stage(ctx, last)
    if before is None:
        return None
    if before[0].type not in SAMPLER_NODES:
        first, start = None, lower_latent(ctx, last, latent_name)
    else:
        first, start = lower_stage(ctx, before[0]), lower_latent(ctx, before[0])
        if first is None:
            return None
    if start is not None and stage is not None:
        return _whole(ctx, stage, start) if first is None else _split(ctx, first, stage, start)
    # What the prompts do is understood, so that the model files can be judged whatever is wrong with the latents.
    for known in (first, stage):
        if known is not None:
            model_owners(ctx, known.model)
    return None


def lower_stage(ctx: Lowering, node: FlatNode) -> Stage | None:
    """Return one sampler node with everything that it samples with."""
    if node.type in ("KSampler", "KSamplerAdvanced"):
        return _ksampler(ctx, node)
    return _sampler_custom(ctx, node) if node.type == "SamplerCustom" else _sampler_custom_advanced(ctx, node)


def _ksampler(ctx: Lowering, node: FlatNode) -> Stage | None:
    is_advanced = node.type == "KSamplerAdvanced"
    model = lower_model(ctx, node)
    guided = _guided(ctx, node)
    sampler, scheduler = _sampler(ctx, node), _scheduler(ctx, node)
    steps = ctx.integer(node, "steps", 1, _MAX_STEPS)
    seed = ctx.seed(node, "noise_seed" if is_advanced else "seed")
    denoise = 1.0 if is_advanced else _denoise(ctx, node)
    window = _window(ctx, node) if is_advanced else {}
    if model is None or guided is None or sampler is None or scheduler is None or window is None:
        return None
    if steps is None or seed is None or denoise is None:
        return None
    stage = Stage(
        node, model, guided[0], guided[1], guided[2], sampler, scheduler, steps, model.shift, seed,
        places={"seed": (node, "noise_seed" if is_advanced else "seed"), "shift": (model.shift_node, "shift")},
    )  # fmt: skip
    return replace(stage, **window)


def _window(ctx: Lowering, node: FlatNode) -> dict[str, Any] | None:
    """Return which steps a KSamplerAdvanced makes, and with what noise."""
    start = ctx.integer(node, "start_at_step", 0, 10000)
    end = ctx.integer(node, "end_at_step", 0, 10000)
    switches = [
        ctx.choice(node, name, ("enable", "disable"), "not a switch")
        for name in ("add_noise", "return_with_leftover_noise")
    ]
    if start is None or end is None or None in switches:
        return None
    adds, keeps = (switch == "enable" for switch in switches)
    return {"start": start, "end": end, "adds_noise": adds, "keeps_noise": keeps}


def _guided(ctx: Lowering, node: FlatNode) -> tuple[Prompt, Prompt | None, float] | None:
    """Return positive, negative and guidance scale of a node that has all three."""
    positive, cfg = lower_prompt(ctx, node, "positive"), ctx.number(node, "cfg", 0.0, 100.0)
    negative = lower_prompt(ctx, node, "negative")
    if positive is None or negative is None or cfg is None:
        return None
    if cfg == 1:
        return positive, None if negative.is_zeroed else negative, float(cfg)
    if cfg < 1:
        message = "a scale below 1 weakens the prompt, which no guidance policy of a card does"
        ctx.fail(node, "value_smaller_than_min", message, "cfg", got=cfg, allowed="1 or more", nearest="1")
        return None
    if negative.is_zeroed:
        message = "guidance against zeros: a card steers away from a text"
        ctx.fail(node, "unsupported_input", message, "negative", allowed="CLIPTextEncode", nearest="an empty text")
        return None
    return positive, negative, float(cfg)


def _sampler(ctx: Lowering, node: FlatNode) -> str | None:
    return ctx.choice(node, "sampler_name", SAMPLERS, "no such sampler here")


def _scheduler(ctx: Lowering, node: FlatNode) -> str | None:
    return ctx.choice(node, "scheduler", SCHEDULERS, "no such scheduler here")


def _denoise(ctx: Lowering, node: FlatNode) -> float | None:
    denoise = ctx.number(node, "denoise", 0.0, 1.0)
    if denoise is None or denoise > _FULL:
        return denoise
    message = "a part of the schedule, from given latents, which no loop of a card does"
    ctx.fail(node, "unsupported_denoise", message, "denoise", got=denoise, allowed="1", nearest="1")
    return None


def _helper(ctx: Lowering, node: FlatNode, name: str, types: tuple[str, ...]) -> FlatNode | None:
    """Return the node behind an input that has to be of one of some types."""
    found = ctx.source(node, name, wanted=", ".join(types))
    if found is None:
        return None
    if found[0].type not in types:
        ctx.unexpected(node, name, found[0], ", ".join(types))
        return None
    return found[0]


@dataclass(frozen=True, slots=True)
class _Custom:
    """What the nodes around a custom sampler say."""

    sampler: str
    scheduler: str
    steps: int
    model: ModelChain
    nodes: tuple[FlatNode, ...]


def _custom_parts(ctx: Lowering, node: FlatNode) -> _Custom | None:
    select = _helper(ctx, node, "sampler", ("KSamplerSelect",))
    sigmas = _helper(ctx, node, "sigmas", ("BasicScheduler",))
    sampler = None if select is None else _sampler(ctx, select)
    if sigmas is None:
        return None
    scheduler, steps = _scheduler(ctx, sigmas), ctx.integer(sigmas, "steps", 1, _MAX_STEPS)
    denoise, model = _denoise(ctx, sigmas), lower_model(ctx, sigmas)
    if sampler is None or select is None or scheduler is None or steps is None or denoise is None or model is None:
        return None
    return _Custom(sampler, scheduler, steps, model, (select, sigmas))


def _custom_stage(
    node: FlatNode,
    parts: _Custom,
    model: ModelChain,
    guided: tuple[Prompt, Prompt | None, float],
    seed: int,
    extra: tuple[FlatNode, ...],
    places: dict[str, tuple[FlatNode, str]],
) -> Stage:
    select, sigmas = parts.nodes
    return Stage(
        node, model, guided[0], guided[1], guided[2], parts.sampler, parts.scheduler, parts.steps,
        parts.model.shift, seed,
        is_custom=True,
        extra=tuple(one.node_id for one in (select, sigmas, *extra)),
        places={
            "steps": (sigmas, "steps"),
            "sampler_name": (select, "sampler_name"),
            "shift": (parts.model.shift_node, "shift"),
            **places,
        },
    )  # fmt: skip


def _sampler_custom(ctx: Lowering, node: FlatNode) -> Stage | None:
    parts, model, guided = _custom_parts(ctx, node), lower_model(ctx, node), _guided(ctx, node)
    seed, adds = ctx.seed(node, "noise_seed"), ctx.value(node, "add_noise")
    if adds.is_known and adds.value is not True:
        ctx.fail(node, "unsupported_input", "without noise it starts from given latents", "add_noise", allowed="true")
        return None
    if parts is None or model is None or guided is None or seed is None or not adds.is_known:
        return None
    return _custom_stage(node, parts, model, guided, seed, (), {"seed": (node, "noise_seed")})


def _sampler_custom_advanced(ctx: Lowering, node: FlatNode) -> Stage | None:
    parts = _custom_parts(ctx, node)
    noise = _helper(ctx, node, "noise", ("RandomNoise",))
    guider = _helper(ctx, node, "guider", ("CFGGuider", "BasicGuider"))
    seed = None if noise is None else ctx.seed(noise, "noise_seed")
    if guider is None or noise is None:
        return None
    model, guided = lower_model(ctx, guider), _guider(ctx, guider)
    if parts is None or model is None or guided is None or seed is None:
        return None
    places = {"seed": (noise, "noise_seed"), "cfg": (guider, "cfg")}
    return _custom_stage(node, parts, model, guided, seed, (noise, guider), places)


def _guider(ctx: Lowering, guider: FlatNode) -> tuple[Prompt, Prompt | None, float] | None:
    if guider.type == "CFGGuider":
        return _guided(ctx, guider)
    positive = lower_prompt(ctx, guider, "conditioning")
    return None if positive is None else (positive, None, 1.0)


def _whole(ctx: Lowering, stage: Stage, start: LatentStart) -> Sampled | None:
    """Return one stage that makes all steps."""
    if stage.start != 0 or stage.end < stage.steps:
        name = "start_at_step" if stage.start else "end_at_step"
        message = "a part of a schedule by itself"
        ctx.fail(stage.node, "unsupported_window", message, name, allowed="all steps, or two nodes that share them")
        return None
    if not stage.adds_noise:
        ctx.fail(stage.node, "unsupported_input", "without noise there is nothing to denoise", "add_noise")
        return None
    return _sampled(ctx, (stage,), start)


def _split(ctx: Lowering, first: Stage, second: Stage, start: LatentStart) -> Sampled | None:
    """Return two stages that share one schedule."""
    problems = _split_problems(first, second)
    for stage, name, message in problems:
        ctx.fail(stage.node, "unsupported_split", message, name, allowed="two stages of one schedule")
    return None if problems else _sampled(ctx, (first, second), start)


def _split_problems(first: Stage, second: Stage) -> list[tuple[Stage, str, str]]:
    """Return stage, input and message of everything that keeps two stages from being one schedule."""
    if first.node.type != "KSamplerAdvanced" or second.node.type != "KSamplerAdvanced":
        return [(second, "latent_image", "a second sampler on sampled latents")]
    return [*_schedule_problems(first, second), *_window_problems(first, second), *_guidance_problems(first, second)]


def _schedule_problems(first: Stage, second: Stage) -> list[tuple[Stage, str, str]]:
    found = [
        (second, label, f"{getattr(second, name)} here, {getattr(first, name)} in the stage before")
        for name, label in (("sampler", "sampler_name"), ("scheduler", "scheduler"), ("steps", "steps"))
        if getattr(first, name) != getattr(second, name)
    ]
    if first.sampler not in MEMORYLESS:
        names = ", ".join(MEMORYLESS)
        found.append((second, "sampler_name", f"{first.sampler} forgets its steps at the split; samplers: {names}"))
    if abs(first.shift / second.shift - 1) > _ROUNDING:
        found.append((second, "model", f"shift {second.shift:g} here, {first.shift:g} before: two schedules"))
    return found


def _window_problems(first: Stage, second: Stage) -> list[tuple[Stage, str, str]]:
    found: list[tuple[Stage, str, str]] = []
    if first.start != 0 or not first.adds_noise or not first.keeps_noise:
        found.append((first, "return_with_leftover_noise", "the first stage begins with noise at step 0 and keeps it"))
    if second.adds_noise or second.keeps_noise or second.end < second.steps:
        found.append((second, "add_noise", "the second stage adds no noise and goes to the last step"))
    if not 0 < first.end < first.steps or first.end != second.start:
        found.append((second, "start_at_step", f"begins at {second.start}, the stage before ends at {first.end}"))
    return found


def _guidance_problems(first: Stage, second: Stage) -> list[tuple[Stage, str, str]]:
    found: list[tuple[Stage, str, str]] = []
    texts = [(stage.positive.text, stage.negative and stage.negative.text) for stage in (first, second)]
    if texts[0] != texts[1]:
        found.append((second, "positive", "the stages have different prompts"))
    if (first.cfg == 1) != (second.cfg == 1):
        found.append((second, "cfg", "one stage is guided and the other is not"))
    return found


def _sampled(ctx: Lowering, stages: tuple[Stage, ...], start: LatentStart) -> Sampled | None:
    first = stages[0]
    if first.sampler in DROPS and first.steps < 2:
        node, name = first.place("steps")
        ctx.fail(node, "value_smaller_than_min", "UniPC makes no step of one alone", name, got=1, nearest="2")
        return None
    try:
        drops = first.sampler in DROPS and not first.is_custom
        sigmas = sampler_levels(first.scheduler, first.steps, first.shift, drops_last_but_one=drops)
    except ParameterError as error:
        node, name = first.place("steps")
        ctx.fail(node, "custom_validation_failed", str(error), name, got=first.steps)
        return None
    if not _belongs_together(stages, start):
        ctx.fail(first.node, "unsupported_input", "prompts and latents come from different image nodes", "positive")
        return None
    return Sampled(stages, start, sigmas)


def _belongs_together(stages: tuple[Stage, ...], start: LatentStart) -> bool:
    """Whether all prompts pass through the node that makes the latents, where that is one that adds images to them."""
    wanted = start.node.node_id if start.node.type in IMAGE_NODES else None
    prompts = [prompt for stage in stages for prompt in (stage.positive, stage.negative) if prompt is not None]
    return all((prompt.through and prompt.through.node_id) == wanted for prompt in prompts)
