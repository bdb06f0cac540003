"""From a config to all that a run needs; what is wrong is found here, before any compute."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fastvideo_core.cache.pools import CacheBudget
from fastvideo_core.card import ModelCard, ParityLevel, resolve_ref
from fastvideo_core.errors import ConfigError, FastVideoError, describe_failure
from fastvideo_core.extend.base import MethodSpec
from fastvideo_core.extend.extensions import Extensions, resolve_plugin_ref
from fastvideo_core.extend.plugins import find_plugins
from fastvideo_core.request.base import new_request_id
from fastvideo_core.runtime.catalog import Catalog
from fastvideo_core.runtime.engine import Engine, RuntimeOptions
from fastvideo_core.runtime.samplers import with_samplers
from fastvideo_core.runtime.scheduler.base import SchedulerConfig
from fastvideo_rl.methods.base import Method
from fastvideo_rl.options import nearest_name, read_options
from fastvideo_rl.program import TrainingProgram
from fastvideo_rl.rewards.base import Sample
from fastvideo_rl.rewards.scorer import RewardChoice, check_choices
from fastvideo_rl.train.config import TrainConfig
from fastvideo_rl.train.data import LatentSamples, PromptList
from fastvideo_rl.train.logs import check_wandb
from fastvideo_rl.train.lora import add_lora
from fastvideo_rl.train.roles import Role, Roles, copy_role

__all__ = [
    "BUILT_IN",
    "Plan",
    "blank_sample",
    "load_extensions",
    "make_plan",
    "make_roles",
    "open_engine",
    "rollout_parameters",
    "teacher_program",
]

BUILT_IN = ("method.fastvideo", "reward.fastvideo", "sampler.sde")
"""Plugins that training switches on of itself; a reward that the installed families bring is on too."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A checked run.

    Attributes:
        config: The config.
        extensions: What is on.
        method: The method.
        spec: Its description.
        parent: The card that is trained from.
        teacher: The card whose samples are to be matched: the same, or another one.
        card: The student's card: the parent, or what distillation makes of it.
        program: What is run of it.
        prompts: Prompts; None for a run on data.
        data: Samples; None for a run on prompts.
        judged_prompts: Prompts that the result is judged on; None where there are none.
    """

    config: TrainConfig
    extensions: Extensions
    method: Method
    spec: MethodSpec
    parent: ModelCard
    teacher: ModelCard
    card: ModelCard
    program: TrainingProgram
    prompts: PromptList | None
    data: LatentSamples | None
    judged_prompts: PromptList | None

    @property
    def judged_by(self) -> tuple[RewardChoice, ...]:
        """The rewards that the result is judged by."""
        return self.config.evaluation.rewards or self.config.rewards

    @property
    def judged_parameters(self) -> dict[str, Any]:
        """Request parameters of the samples that the result is judged by."""
        given = self.config.evaluation.parameters
        return self.config.rollout.parameters if given is None else given

    @property
    def fingerprint(self) -> str:
        """A digest of all that decides what comes out: the config, and what it trains on."""
        data = () if self.data is None else (*self.data.files, *self.data.prompts)
        trained_on = "\0".join([*(self.prompts.prompts if self.prompts else ()), *data])
        return hashlib.sha256(f"{self.config.fingerprint()}\0{trained_on}".encode()).hexdigest()[:24]

    @property
    def required(self) -> ParityLevel:
        """The level between rollout and training that is needed: the method's, or the card's own if that is higher."""
        levels = list(ParityLevel)
        return max(ParityLevel(self.spec.required_level), self.card.recipe.consistency_required, key=levels.index)

    @property
    def has_teacher(self) -> bool:
        """Whether the method asks the teacher."""
        return "teacher" in self.spec.roles


def load_extensions(config: TrainConfig) -> Extensions:
    """Switch on what training needs, and what the config names.

    Raises:
        PluginError: A plugin is not installed, or fails.
    """
    rewards = [entry.name for entry in find_plugins() if entry.name.startswith("reward.")]
    names: dict[str, Mapping[str, Any]] = {name: {} for name in (*BUILT_IN, *rewards)}
    return Extensions.load({**names, **config.plugins}, strict=True)


def make_plan(config: TrainConfig, *, world_size: int = 1) -> Plan:
    """Check a config against what is installed.

    Raises:
        FastVideoError: The first thing that is wrong.
    """
    config.check_division(world_size)
    extensions = load_extensions(config)
    spec, method = _method(config, extensions)
    parent = Catalog.installed().find(config.card)
    teacher = parent if config.teacher is None else _teacher_card(config, spec)
    card = parent if config.student is None else _student_card(config, parent)
    if "teacher" in spec.roles and config.student is None and config.teacher is None:
        raise ConfigError(
            f"{spec.name} distils into another loop; say which, or name a teacher", field="student", value=None
        )
    program = TrainingProgram.of(with_samplers(card, extensions), config.task)
    prompts = None if config.prompts is None else PromptList.read(Path(config.prompts), config.seed)
    data = None if config.data is None else LatentSamples.read(Path(config.data), config.seed)
    judged = config.evaluation.prompts
    judged_prompts = prompts if judged is None else PromptList.read(Path(judged), 0, field="evaluation.prompts")
    plan = Plan(config, extensions, method, spec, parent, teacher, card, program, prompts, data, judged_prompts)
    _check(plan)
    return plan


def open_engine(plan: Plan, card: ModelCard, *, most: int | None = None) -> Engine:
    """Open an engine for a card of a run, with room for a whole step's samples at a time."""
    rollout = plan.config.rollout
    most = most or rollout.group_size * rollout.num_groups
    config = SchedulerConfig(max_running=max(16, most), max_queued=max(1024, 2 * most), max_batch=rollout.group_size)
    budgets = {name: CacheBudget(size) for name, size in plan.config.caches.items() if name in card.caches}
    return Engine.open(
        card,
        device=plan.config.device,
        precision=plan.config.precision,
        tasks=(plan.program.task,) if plan.program.task in card.capabilities.tasks else None,
        extensions=plan.extensions,
        options=RuntimeOptions(scheduler=config, caches=budgets),
    )


def blank_sample(plan: Plan) -> Sample:
    """Return a sample of the run's size that shows nothing, to try rewards on."""
    task = plan.program.card.task(plan.program.task)
    values: dict[str, Any] = {**task.defaults(), **rollout_parameters(plan, 0)}
    frames, rows, columns = (int(values.get(name) or 1) for name in ("num_frames", "height", "width"))
    assert plan.prompts is not None, "a plan with rewards has prompts"
    return Sample(plan.prompts.prompts[0], np.zeros((frames, rows, columns, 3), dtype=np.uint8), 1.0)


def teacher_program(plan: Plan, card: ModelCard) -> TrainingProgram:
    """Return what is run of a teacher's card: the student's task where it has that, else its own default."""
    task = plan.program.task
    return TrainingProgram.of(card, task if task in card.capabilities.tasks else None)


def make_roles(plan: Plan, engine: Engine, teacher: Engine | None) -> Roles:
    """Make the roles of a run from the weights that engines hold.

    Args:
        plan: The run.
        engine: The engine that rolls out; the student's first weights are copies of its.
        teacher: The teacher's engine, whose own modules the teacher role is.

    Raises:
        ConfigError: An adapter has no place.
    """
    config, names = plan.config, plan.program.trained
    held = Role({name: engine.instance.component(name) for name in names}, is_trained=False)
    roles = {"student": _as_trained(held, config)}
    if teacher is not None:
        program = teacher_program(plan, teacher.card)
        parts = {name: teacher.instance.component(name) for name in program.trained}
        roles["teacher"] = Role(parts, is_trained=False, spec=teacher.card.loops[program.generator.loop])
    for name in plan.spec.roles:
        if name == "critic":
            # It scores whole samples as the teacher does, and begins as the teacher.
            roles[name] = _as_trained(roles["teacher"], config)
        elif name not in ("student", "teacher"):
            roles[name] = copy_role(roles["student"], is_trained=False)
    if config.weights.ema_decay is not None:
        roles["ema"] = copy_role(roles["student"], is_trained=False)
    spec = plan.program.card.loops[plan.program.generator.loop]
    return Roles(spec, roles, is_checkpointed=config.weights.is_checkpointed)


def _as_trained(role: Role, config: TrainConfig) -> Role:
    """Return a copy of a role, in float32, all of whose weights are trained, or adapters beside them."""
    modules = {name: copy.deepcopy(module).float().requires_grad_(True) for name, module in role.modules.items()}
    weights = config.weights
    if weights.kind == "lora":
        for module in modules.values():
            add_lora(module, rank=weights.rank, alpha=weights.alpha, targets=weights.targets, seed=config.seed)
    return Role(modules, is_trained=True, spec=role.spec)


def _method(config: TrainConfig, extensions: Extensions) -> tuple[MethodSpec, Method]:
    name, known = config.method.name, extensions.training_methods
    spec = known.get(name)
    if spec is None:
        raise ConfigError(
            "no such method", field="method.name", value=name, allowed=", ".join(sorted(known)),
            nearest=nearest_name(name, known),
        )  # fmt: skip
    options = read_options(f"method {name}", spec, config.method.options, field="method.options")
    method: Method = resolve_plugin_ref(f"method {name}", spec)(options)
    return spec, method


def _teacher_card(config: TrainConfig, spec: MethodSpec) -> ModelCard:
    if "teacher" not in spec.roles:
        raise ConfigError(f"{spec.name} asks no teacher", field="teacher", value=config.teacher, allowed="null")
    card = Catalog.installed().find(config.teacher or "")
    loop = card.loops[TrainingProgram.of(card).generator.loop]
    if any(card.caches[name].cache_class == "slab_kv" for name in loop.cache_policy.reads if name in card.caches):
        raise ConfigError(
            "makes its samples chunk by chunk; a teacher looks at whole ones", field="teacher", value=config.teacher
        )
    return card


def _student_card(config: TrainConfig, parent: ModelCard) -> ModelCard:
    assert config.student is not None
    ref = config.student.name
    if not ref.startswith("fastvideo_"):
        raise ConfigError("not a function of an installed package", field="student.name", value=ref)
    try:
        card = resolve_ref(ref)(parent, **config.student.options)
    except FastVideoError:
        raise
    except Exception as error:
        raise ConfigError(f"gives no card: {describe_failure(error)}", field="student.name", value=ref) from error
    if not isinstance(card, ModelCard):
        raise ConfigError(f"gives a {type(card).__name__}", field="student.name", value=ref, allowed="a ModelCard")
    return card


def _check(plan: Plan) -> None:
    config, method = plan.config, plan.method
    check_wandb(config.wandb_project)
    if method.source == "data" and plan.data is None:
        raise ConfigError(f"{plan.spec.name} trains on samples", field="data", value=None, allowed="a folder")
    if method.source == "rollouts" and plan.prompts is None:
        raise ConfigError(f"{plan.spec.name} trains on rollouts", field="prompts", value=None, allowed="a text file")
    if method.needs_rewards and not config.rewards:
        raise ConfigError(f"{plan.spec.name} needs a reward", field="rewards", value=[], allowed="at least one")
    if method.needs_rewards and config.rollout.group_size < 2:
        raise ConfigError(
            "a sample has no advantage over itself", field="rollout.group_size", value=1, allowed="2 or more", nearest=2
        )
    roles = {*plan.spec.roles, *(("ema",) if config.weights.ema_decay is not None else ())}
    _check_kept(plan)
    if config.result.role is not None and config.result.role not in roles:
        raise ConfigError(
            "no such role in this run", field="result.role", value=config.result.role, allowed=", ".join(sorted(roles)),
            nearest=nearest_name(config.result.role, roles),
        )  # fmt: skip
    check_choices(config.rewards, plan.extensions)
    check_choices(config.evaluation.rewards, plan.extensions, field="evaluation.rewards")
    labels = [choice.label for choice in plan.judged_by]
    for name in config.evaluation.bars:
        if name not in labels:
            raise ConfigError(
                "no such reward in this evaluation", field="evaluation.bars", value=name,
                allowed=", ".join(labels) or "none", nearest=nearest_name(name, labels),
            )  # fmt: skip
    if plan.prompts is not None:
        parameters = rollout_parameters(plan, 0)
        plan.program.rollout(plan.prompts.prompts[0], {**parameters, "seed": 0}, request_id=new_request_id())
    if plan.judged_prompts is not None and config.evaluation.parameters is not None:
        judged = {**plan.judged_parameters, "seed": 0}
        plan.program.rollout(plan.judged_prompts.prompts[0], judged, request_id=new_request_id())


def _check_kept(plan: Plan) -> None:
    """Refuse to leave components where they are that are trained, that are not there, or whose place may move."""
    names = plan.card.components
    trained = {plan.card.components[name].load_id for name in plan.program.trained}
    for name in plan.config.result.kept:
        if name not in names:
            raise ConfigError(
                "the card has no such component", field="result.kept", value=name, allowed=", ".join(names),
                nearest=nearest_name(name, names),
            )  # fmt: skip
        load_id = names[name].load_id
        if load_id in trained:
            raise ConfigError("it is trained, so it is another one's", field="result.kept", value=name)
        if plan.card.checkpoint.source_of(load_id).kind == "folder":
            raise ConfigError(
                "the parent's files are in a local folder, which may move", field="result.kept", value=name,
                allowed="components of packages and hub repositories",
            )  # fmt: skip


def rollout_parameters(plan: Plan, step: int) -> dict[str, Any]:
    """Return the request parameters of a step's rollouts: the config's, and the method's own over them."""
    task = plan.program.card.task(plan.program.task)
    given = plan.config.rollout.parameters
    own = plan.method.rollout_parameters(step, plan.config.seed, {**task.defaults(), **given})
    known = {name: value for name, value in own.items() if name in task.parameters}
    return {**given, **known}
