"""The scorer: rewards by name and weight, resident in an engine of their own.

An engine of their own lets them have another device, and keeps what they do out of the way of the samples' steps.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fastvideo_core.card import (
    CapabilityMatrix,
    CheckpointManifest,
    CheckpointSource,
    ComponentFiles,
    ComponentSpec,
    DataRef,
    InputSpec,
    LoopSpec,
    ModelCard,
    RecipeSpec,
    TaskSpec,
)
from fastvideo_core.errors import ConfigError, ExecutionError, FastVideoError, describe_failure
from fastvideo_core.extend.base import RewardSpec
from fastvideo_core.extend.extensions import Extensions, resolve_plugin_ref
from fastvideo_core.program import ConstantEdge, InlineProgram, InputEdge, ModelLoopNode
from fastvideo_core.request.base import OutputSpec, Request, TextPart, VideoPart
from fastvideo_core.request.media.rates import as_fps
from fastvideo_core.request.media.videos import VideoClip
from fastvideo_core.request.parameters import ResolvedParameters
from fastvideo_core.runtime.engine import Engine, RequestHandle, RuntimeOptions
from fastvideo_core.runtime.instance import LoadedComponent, ModelInstance
from fastvideo_core.runtime.prepare import PreparedRequest
from fastvideo_core.runtime.scheduler.base import SchedulerConfig
from fastvideo_rl.options import nearest_name, read_options
from fastvideo_rl.rewards.base import Reward, Sample
from fastvideo_rl.rewards.loop import check_scores
from fastvideo_rl.rollout.records import Group

__all__ = ["RewardChoice", "Scorer", "check_choices", "make_rewards"]

_LOGGER = logging.getLogger(__name__)
_LOOP = "reward_batch"
_HERE = "fastvideo_rl.rewards.loop"
MAX_RUNNING = 1024
"""Samples that are scored at a time; they wait for nothing but their one step."""


class RewardChoice(BaseModel):
    """A reward of a run.

    Attributes:
        name: The reward, as its plugin calls it.
        weight: By what it is multiplied before it is added to the others; below zero for what is to be avoided.
        options: Its options.
        as_name: What it is called in reports, where one reward is there twice with different options.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    weight: float = Field(default=1.0, allow_inf_nan=False)
    options: dict[str, Any] = Field(default_factory=dict)
    as_name: str | None = Field(default=None, pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")

    @property
    def label(self) -> str:
        """What it is called in reports."""
        return self.as_name or self.name


def make_rewards(choices: Sequence[RewardChoice], extensions: Extensions) -> dict[str, Reward]:
    """Make the rewards of a run, by label.

    Raises:
        ConfigError: There is no such reward, a label is there twice, or an option is wrong.
        PluginError: A reward cannot be made.
    """
    check_choices(choices, extensions)
    return {choice.label: _make(choice, extensions.rewards[choice.name]) for choice in choices}


def check_choices(choices: Sequence[RewardChoice], extensions: Extensions, *, field: str = "rewards") -> None:
    """Refuse rewards that are not there, or that share a label, and options that are wrong; nothing is loaded.

    Raises:
        ConfigError: The first thing that is wrong.
    """
    labels: set[str] = set()
    for choice in choices:
        spec = extensions.rewards.get(choice.name)
        if spec is None:
            known = sorted(extensions.rewards)
            raise ConfigError(
                "no such reward", field=field, value=choice.name, allowed=", ".join(known) or "none",
                nearest=nearest_name(choice.name, known),
            )  # fmt: skip
        if choice.label in labels:
            raise ConfigError("named twice; give one another as_name", field=field, value=choice.label)
        labels.add(choice.label)
        read_options(f"reward {choice.name}", spec, choice.options, field=f"{field}.{choice.label}")


def _make(choice: RewardChoice, spec: RewardSpec) -> Reward:
    options = read_options(f"reward {choice.name}", spec, choice.options, field=f"rewards.{choice.label}")
    make = resolve_plugin_ref(f"reward {choice.name}", spec)
    try:
        reward: Reward = make(options)
    except FastVideoError:
        raise
    except (ValidationError, Exception) as error:
        raise ConfigError(
            f"the reward cannot be made: {describe_failure(error)}", field="rewards", value=choice.name
        ) from error
    return reward


class Scorer:
    """Scores groups, asynchronously: `submit` hands samples over, `settle` waits for them.

    Args:
        choices: The rewards and their weights.
        extensions: What plugins bring.
    """

    def __init__(self, choices: Sequence[RewardChoice], extensions: Extensions) -> None:
        self.choices = tuple(choices)
        rewards = make_rewards(choices, extensions)
        self._card = _card(tuple(rewards))
        components = {name: LoadedComponent(reward, None) for name, reward in rewards.items()}
        instance = ModelInstance(self._card, "rewards", components, precision="float32", device=torch.device("cpu"))
        config = SchedulerConfig(max_running=MAX_RUNNING, max_queued=1 << 20)
        self.engine = Engine(instance, options=RuntimeOptions(scheduler=config))
        self._rewards = rewards
        self._program = _program(tuple(rewards))
        self._waiting: dict[str, tuple[Group, int, RequestHandle]] = {}
        self._count = 0

    def check_shapes(self, sample: Sample) -> None:
        """Refuse rewards that do not give one number for each sample, on one that means nothing.

        A reward that fails on it, or has no score for it, is let through: it may do better with samples.

        Raises:
            ConfigError: A reward gives something else.
        """
        for name, reward in self._rewards.items():
            try:
                scores = reward.score([sample, sample])
            except Exception as error:  # noqa: BLE001 - on what means nothing a reward may do anything
                _LOGGER.info("reward %s has no score for a blank sample: %s", name, describe_failure(error))
                continue
            try:
                check_scores(name, scores, 2)
            except ExecutionError as error:
                raise ConfigError(describe_failure(error), field="rewards", value=name) from error

    def submit(self, group: Group) -> None:
        """Let the samples of a group be scored."""
        for index, record in enumerate(group.records):
            assert record.frames_FYX3 is not None, "samples that are scored were decoded"
            request_id = f"score-{self._count}"
            self._count += 1
            clip = VideoClip(record.frames_FYX3, as_fps(record.fps or 1.0))
            prepared = self._prepare(request_id, record.prompt, clip)
            self._waiting[request_id] = (group, index, self.engine.submit_prepared(prepared))

    def settle(self) -> None:
        """Wait for all samples that were handed over, and note rewards and their weighted sums in the records.

        A group of which a reward fails, or is NaN, has ended, with that as the reason.
        """
        waiting, self._waiting = self._waiting, {}
        for group, index, handle in waiting.values():
            try:
                captured = handle.result().captured
            except FastVideoError as error:
                group.end(f"a reward failed: {describe_failure(error)}")
                continue
            if group.reason is None:
                record = group.records[index]
                record.rewards = {choice.label: float(captured[choice.label]["score"]) for choice in self.choices}
                record.reward = sum(choice.weight * record.rewards[choice.label] for choice in self.choices)

    def close(self) -> None:
        """Let go of the rewards."""
        self.engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _prepare(self, request_id: str, prompt: str, clip: VideoClip) -> PreparedRequest:
        request = Request(
            request_id=request_id,
            task="score",
            inputs=(
                TextPart(name="prompt", text=prompt),
                VideoPart(name="video", frames=clip.frames, fps=float(clip.fps)),
            ),
            outputs=OutputSpec(capture_behavior=True),
        )
        inputs: Mapping[str, Any] = {"prompt": prompt, "video": clip}
        nothing = ResolvedParameters({}, {})
        return PreparedRequest(request, self._card, self._program, self._program.nodes, nothing, {}, inputs)


def _program(names: tuple[str, ...]) -> InlineProgram:
    nodes = tuple(
        ModelLoopNode(
            node_id=name,
            loop=_LOOP,
            inputs={
                "prompt": InputEdge(name="prompt"),
                "video": InputEdge(name="video"),
                "reward": ConstantEdge(value=name),
            },
        )
        for name in names
    )
    return InlineProgram(program_id="rl.score", nodes=nodes)


def _card(names: tuple[str, ...]) -> ModelCard:
    """Return the card of some rewards: one loop, and a component for each."""
    loop = LoopSpec(
        loop_id=_LOOP,
        loop=f"{_HERE}:ScoreLoop",
        step=f"{_HERE}:run_step",
        state_schema=f"{_HERE}:ScoreState",
        step_schema=f"{_HERE}:ScorePayload",
        result_schema=f"{_HERE}:ScoreValues",
        step_cost_model=f"{_HERE}:plan_cost",
        components=names,
        outputs=("score",),
        is_generative=True,
    )
    task = TaskSpec(
        program="fastvideo_rl.rewards.scorer:Scorer",
        inputs={"prompt": InputSpec(modality="text"), "video": InputSpec(modality="video")},
        outputs={"score": "text"},
    )
    return ModelCard(
        model_id="rewards",
        family="rl",
        components={
            name: ComponentSpec(
                component_id=name, kind="reward_head", load_id=name, factory="fastvideo_rl.rewards.scorer:make_rewards"
            )
            for name in names
        },
        loops={_LOOP: loop},
        capabilities=CapabilityMatrix(tasks={"score": task}, default_task="score"),
        recipe=RecipeSpec(method="base", data_contract=DataRef(name="none"), assumes_loop=_LOOP),
        checkpoint=CheckpointManifest(
            source=CheckpointSource(kind="package", location="fastvideo_rl:"),
            components={name: ComponentFiles(folder="") for name in names},
        ),
    )
