"""The trainer: a client of the engine that rolls out, scores, updates, and hands the new weights back.

All draws of an outer step follow from the run's seed and the step's number, so that a run that goes on from a
checkpoint makes the same numbers as one that was never stopped.
"""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch

from fastvideo_core.errors import ConfigError, StateError
from fastvideo_core.runtime.engine import Engine
from fastvideo_rl.errors import DivergedError, NoGroupsError
from fastvideo_rl.gate.c2 import BehaviorReport, check_behavior, require_behavior
from fastvideo_rl.gate.c3 import DistributionReport, check_profiles
from fastvideo_rl.methods.base import MethodContext
from fastvideo_rl.program import TrainingProgram
from fastvideo_rl.rewards.scorer import Scorer
from fastvideo_rl.rollout.records import BehaviorRecord, Group
from fastvideo_rl.rollout.roller import GroupPlan, Roller
from fastvideo_rl.sync import SyncReport, WeightSyncPlan, open_transport, sync_weights
from fastvideo_rl.train.assemble import (
    Plan,
    blank_sample,
    make_roles,
    open_engine,
    rollout_parameters,
    teacher_program,
)
from fastvideo_rl.train.checkpoints import Checkpoints
from fastvideo_rl.train.logs import RunLog
from fastvideo_rl.train.optimizers import RoleOptimizer
from fastvideo_rl.train.processes import Processes
from fastvideo_rl.train.sheets import make_sheet, write_sheet

__all__ = ["StepReport", "Trainer", "make_clips"]

MAX_EMPTY_STEPS = 10
"""Outer steps in a row without a usable group after which a run ends."""


@dataclass(frozen=True, slots=True)
class StepReport:
    """What became of an outer step.

    Attributes:
        step: Its number, from 1.
        num_steps: How many there are.
        numbers: What was measured.
        reasons: Why groups ended before their time.
        remaining_s: Seconds that are left if it goes on like this.
    """

    step: int
    num_steps: int
    numbers: dict[str, float]
    reasons: tuple[str, ...] = ()
    remaining_s: float | None = None

    def __str__(self) -> str:
        shown = ("reward", "loss", "kl", "deviation", "old_deviation", "grad_norm", "samples_per_s")
        parts = [f"{name} {self.numbers[name]:.4g}" for name in shown if name in self.numbers]
        left = "" if self.remaining_s is None else f"  {self.remaining_s / 60:.1f} min left"
        return f"step {self.step}/{self.num_steps}  {'  '.join(parts)}{left}"


@dataclass(slots=True)
class _Timing:
    """How long the steps of this process have taken."""

    seconds: list[float] = field(default_factory=list)

    def remaining_s(self, num_left: int) -> float | None:
        recent = self.seconds[-20:]
        return num_left * sum(recent) / len(recent) if recent else None


class Trainer:
    """One run. Open it as a context manager; `run` trains to the end.

    Args:
        plan: The checked run.
        processes: Who else trains.
    """

    def __init__(self, plan: Plan, processes: Processes | None = None) -> None:
        self.plan = plan
        self.processes = processes or Processes()
        self.folder = Path(plan.config.output)
        self.step = 0
        self.gate: BehaviorReport | None = None
        self.last_sync: SyncReport | None = None
        self._num_empty = 0
        self._timing = _Timing()
        self._engine_role = ""
        self.engine = open_engine(plan, plan.card)
        self.teacher: Engine | None = open_engine(plan, plan.teacher) if plan.has_teacher else None
        self._scorer: Scorer | None = None
        self._log: RunLog | None = None
        try:
            self._prepare()
        except BaseException:
            self.close()
            raise

    def _prepare(self) -> None:
        plan, config = self.plan, self.plan.config
        self._program = TrainingProgram.of(self.engine.card, config.task)
        self._teacher_roller = None
        if self.teacher is not None:
            self._teacher_roller = Roller(self.teacher, teacher_program(plan, self.teacher.card))
        has_frames = bool(config.rewards) and plan.method.needs_rewards
        self.roller = Roller(
            self.engine, self._program, has_frames=has_frames, attention_backend=plan.extensions.attention
        )
        self.roles = make_roles(plan, self.engine, self.teacher)
        trained = {name: role for name, role in self.roles.roles.items() if role.is_trained}
        for name, role in self.roles.roles.items():
            if name != "teacher":
                for module in role.parts:
                    self.processes.shard(module)
        self.optimizers = {name: RoleOptimizer(name, role, config.optimizer) for name, role in trained.items()}
        self.checkpoints = Checkpoints(self.folder, config.num_checkpoints)
        self._transport = open_transport(config.transport, plan.extensions)
        self._check_sync()
        if plan.method.needs_rewards:
            self._scorer = Scorer(config.rewards, plan.extensions)
            self._scorer.check_shapes(blank_sample(plan))

    def resume(self) -> None:
        """Go on from the newest checkpoint.

        Raises:
            StateError: There is none, it is damaged, or of another config.
        """
        saved = self.checkpoints.newest()
        if saved.fingerprint != self.plan.fingerprint:
            raise StateError(
                f"{saved.folder} is of another config: resume with the one that the run began with, or begin anew in "
                "another folder"
            )
        self.checkpoints.load(saved, self._kept_roles(), self.optimizers)
        self.step = saved.step
        self._engine_role = ""

    def run(self, told: Callable[[StepReport], None] = lambda _: None) -> None:
        """Train to the end, from where it is.

        Raises:
            ConfigError: The folder holds another run, or an earlier part of this one, and it was not resumed.
            ParityError: Training does not agree with the rollout as the method needs it.
            DivergedError: A loss or gradient is NaN, infinite or far too large.
            NoGroupsError: Too many steps in a row had no usable group.
        """
        self._check_folder()
        self._sync(self.plan.method.behavior_role)
        self._open_gate()
        config = self.plan.config
        if self.processes.is_first:
            name = config.result.model_id
            self._log = RunLog(self.folder, first_step=self.step, wandb_project=config.wandb_project, name=name)
        if self.step == 0:
            self._show_sheet()
        while self.step < self.plan.config.num_steps:
            told(self.train_once())

    def train_once(self) -> StepReport:
        """Make one outer step: samples, rewards, updates; then weights, logs, checkpoint."""
        started_at = time.perf_counter()
        config, step = self.plan.config, self.step
        context = self._context(step)
        groups, numbers = self._gather(step)
        items = self.plan.method.items([group for group in groups if group.reason is None], context)
        numbers |= self._learn(items, context)
        self.step += 1
        numbers |= {"seconds": time.perf_counter() - started_at}
        numbers["samples_per_s"] = self._num_samples() / numbers["seconds"]
        self._timing.seconds.append(numbers["seconds"])
        if self._log is not None:
            self._log.note(self.step, numbers)
        is_last = self.step == config.num_steps
        if is_last or self.step % config.save_every == 0:
            self.save()
        if config.sheet_every is not None and (is_last or self.step % config.sheet_every == 0):
            self._show_sheet()
        reasons = tuple(group.reason for group in groups if group.reason is not None)
        left = self._timing.remaining_s(config.num_steps - self.step)
        return StepReport(self.step, config.num_steps, numbers, reasons, left)

    def check_distribution(self) -> DistributionReport | None:
        """Return whether rollouts and single requests draw from one distribution, with the weights that are shipped."""
        count, prompts = self.plan.config.result.distribution_samples, self.plan.prompts
        if count is None or prompts is None:
            return None
        self._sync(self.shipped_role)
        parameters = rollout_parameters(self.plan, self.step)
        return check_profiles(self.roller, prompts.prompts[0], parameters, num_samples=count)

    def save(self) -> Path:
        """Write a checkpoint of where it is."""
        facts = {"card": self.plan.parent.model_id, "gate": None if self.gate is None else str(self.gate)}
        return self.checkpoints.save(
            self.step, self.plan.fingerprint, self._kept_roles(), self.optimizers, self.processes, facts
        )

    def close(self) -> None:
        """Let go of the engines, and write what logs have left."""
        for one in (self._scorer, self.teacher, self.engine, self._log):
            if one is not None:
                one.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check_folder(self) -> None:
        if self.step == 0 and self.checkpoints.list():
            raise ConfigError(
                "holds a run already; resume it, or choose another folder", field="output", value=str(self.folder)
            )
        self.processes.wait()

    def _kept_roles(self) -> dict[str, Any]:
        """Return the roles that change: a reference and a teacher follow from the card."""
        fixed = ("reference", "teacher")
        return {name: role for name, role in self.roles.roles.items() if name not in fixed}

    def _num_samples(self) -> int:
        return self.plan.config.rollout.group_size * self.plan.config.rollout.num_groups

    def _context(self, step: int) -> MethodContext:
        config = self.plan.config
        generator = torch.Generator().manual_seed(_number(config.seed, step, self.processes.rank))
        spec = self.roles.spec
        scale = int(spec.options.get("num_train_timesteps", 1000))
        return MethodContext(self.roles, step, config.num_steps, config.seed, generator, scale)

    def _gather(self, step: int) -> tuple[list[Group], dict[str, float]]:
        """Return a step's groups, and what is to be said of them."""
        if self.plan.method.source == "data":
            return [self._data_group(step)], {}
        self._sync(self.plan.method.behavior_role)
        groups = []
        for group in self._roll(step):
            groups.append(group)
            if self._scorer is not None:
                self._scorer.submit(group)  # scored while the others are still made
        if self._scorer is not None:
            self._scorer.settle()
        for group in groups:
            for record in group.records:
                record.frames_FYX3 = None
                if not self.plan.method.needs_steps:
                    record.steps = ()
        return groups, self._summary(groups)

    def _roll(self, step: int) -> Iterator[Group]:
        plan, mine = self.plan, self._num_mine()
        assert plan.prompts is not None, "a plan that rolls out has prompts"
        first = step * plan.config.rollout.num_groups + self.processes.rank * mine
        parameters = rollout_parameters(plan, step)
        wanted = [
            GroupPlan(prompt, _seeds(plan.config.seed, first + i, plan.config.rollout.group_size), parameters)
            for i, prompt in enumerate(plan.prompts.take(first, mine))
        ]
        return self.roller.stream(wanted)

    def _num_mine(self) -> int:
        return self.plan.config.rollout.num_groups // self.processes.size

    def _data_group(self, step: int) -> Group:
        """Return a step's samples of the data, with their prompts encoded, as a group of records."""
        assert self.plan.data is not None, "a plan on data has some"
        count = self.plan.config.rollout.group_size * self._num_mine()
        samples = self.plan.data.take(step * count * self.processes.size + self.processes.rank * count, count)
        inputs = self.roller.encode([prompt for prompt, _ in samples], self.plan.config.rollout.parameters)
        schedule: Any = None
        facts: Any = None
        records = [
            BehaviorRecord(prompt, 0, {}, given, schedule, (), latents, "", facts)
            for (prompt, latents), given in zip(samples, inputs, strict=True)
        ]
        return Group("data", records)

    def _summary(self, groups: Sequence[Group]) -> dict[str, float]:
        records = [record for group in groups for record in group.records]
        numbers = {"groups_ended": float(sum(group.reason is not None for group in groups))}
        if self._scorer is not None and records:
            rewards = torch.tensor([record.reward for record in records], dtype=torch.float64)
            numbers |= {"reward": float(rewards.mean()), "reward_std": float(rewards.std(correction=0))}
            for name in records[0].rewards:
                numbers[f"reward/{name}"] = sum(record.rewards[name] for record in records) / len(records)
        return self.processes.means(numbers) if self.processes.size > 1 and records else numbers

    def _learn(self, items: list[Any], context: MethodContext) -> dict[str, float]:
        """Update whose turn it is, and what follows it; a step without items in some process changes nothing."""
        if self.processes.largest(float(not items)) > 0:
            self._num_empty += 1
            if self._num_empty >= MAX_EMPTY_STEPS:
                raise NoGroupsError(
                    f"step {context.step}: {MAX_EMPTY_STEPS} steps in a row had nothing to train on, for reasons that "
                    f"were told; the last good checkpoint is {self._last_checkpoint()}"
                )
            return {"items": 0.0}
        self._num_empty = 0
        self._ask_teacher(items, context)
        player, config = self.plan.method.player(context.step), self.plan.config
        parts = _parts(items, config.optimizer.num_updates, context.generator)
        totals: dict[str, float] = {"items": float(len(items))}
        for part in parts:
            found = self._accumulate(part, context)
            norm = self.optimizers[player].update(context.step, self._last_checkpoint())
            for name, value in {**found, "grad_norm": norm}.items():
                totals[name] = totals.get(name, 0.0) + value / len(parts)
        self.plan.method.ended(context)
        if player == "student" and config.weights.ema_decay is not None:
            self.roles.blend("ema", "student", config.weights.ema_decay)
        self._engine_role = ""
        return totals

    def _accumulate(self, items: Sequence[Any], context: MethodContext) -> dict[str, float]:
        """Add up the gradients of micro-batches, weighted by their items over all processes; return mean metrics."""
        size = self.plan.config.optimizer.micro_batch
        batches = [items[i : i + size] for i in range(0, len(items), size)]
        share = self.processes.size / self.processes.total(float(len(items)))
        # All processes gather and scatter shards together: those with fewer micro-batches add some that weigh nothing.
        num_idle = int(self.processes.largest(float(len(batches)))) - len(batches)
        metrics: dict[str, float] = {}
        for batch, weight in [*((batch, float(len(batch))) for batch in batches), *[(batches[0], 0.0)] * num_idle]:
            loss = self.plan.method.loss(batch, context)
            value = float(loss.value.detach())
            if self.processes.largest(float(not torch.isfinite(loss.value.detach()))) > 0:
                raise DivergedError(
                    f"step {context.step}: the loss is {value}; nothing has been updated with it; the last good "
                    f"checkpoint is {self._last_checkpoint()}"
                )
            torch.autograd.backward(loss.value * (weight * share))
            for name, number in loss.metrics.items():
                metrics[name] = metrics.get(name, 0.0) + number * weight / len(items)
        return self.processes.means(metrics) if self.processes.size > 1 else metrics

    def _ask_teacher(self, items: Sequence[Any], context: MethodContext) -> None:
        """Let the teacher's loop encode the step's prompts, its unconditional branch included."""
        if self._teacher_roller is None:
            return
        prompts = list(dict.fromkeys(item.prompt for item in items))
        scale = self.plan.config.method.options.get("guidance_scale", 4.0)
        inputs = self._teacher_roller.encode(prompts, {"guidance_scale": max(scale, 1.001)})
        context.teacher_inputs = dict(zip(prompts, inputs, strict=True))

    def _check_sync(self) -> None:
        for role, one in self.roles.roles.items():
            if one.spec is not None:  # it predicts in another loop, and is never rolled out
                continue
            weights = self.roles.weights(role)
            for component, tensors in weights.items():
                shapes = {role: {name: tuple(tensor.shape) for name, tensor in tensors.items()}}
                self._sync_plan(role, component).validate(
                    self.engine, shapes, world_size=self.processes.size, transports=self.plan.extensions.transports
                )

    def _sync_plan(self, role: str, component: str) -> WeightSyncPlan:
        axes = {} if self.processes.size == 1 else {"fsdp": self.processes.size}
        config = self.plan.config
        return WeightSyncPlan(role, component, axes, {}, transport=config.transport, mode=config.sync_mode)

    def _sync(self, role: str) -> None:
        """Let the engine have a role's weights, unless it has them."""
        if self._engine_role == role:
            return
        version = f"{self.plan.fingerprint[:8]}-{role}-{self.step}"
        for component, tensors in self.roles.weights(role).items():
            plan = self._sync_plan(role, component)
            self.last_sync = sync_weights(plan, self.engine, tensors, version, transport=self._transport)
        self._engine_role = role

    def _open_gate(self) -> None:
        """Refuse to train unless training agrees with the rollout as it has to."""
        plan = self.plan
        if plan.method.source == "data" or plan.prompts is None:
            return
        seeds = tuple(range(min(2, plan.config.rollout.group_size)))
        self.gate = check_behavior(
            self.roller, self.roles, plan.method.behavior_role, plan.prompts.prompts[0],
            rollout_parameters(plan, 0), seeds=seeds,
        )  # fmt: skip
        require_behavior(self.gate, plan.required)

    def _show_sheet(self) -> None:
        """Make a sheet of samples with the weights that will be shipped."""
        config = self.plan.config
        if config.sheet_every is None or not self.processes.is_first:
            return
        prompts = self.plan.prompts.prompts if self.plan.prompts is not None else self.plan.data.prompts  # type: ignore[union-attr]
        chosen = [prompts[i % len(prompts)] for i in range(config.num_sheet_samples)]
        if self.processes.size == 1:
            self._sync(self.shipped_role)
        clips = make_clips(self.engine, self._program.task, chosen, config.rollout.parameters)
        picture = make_sheet(clips)
        write_sheet(self.folder / "sheets" / f"step-{self.step:08d}.png", picture, chosen)
        if self._log is not None:
            self._log.show(self.step, "samples", picture)

    @property
    def shipped_role(self) -> str:
        """The role whose weights are shipped."""
        config = self.plan.config
        return config.result.role or ("ema" if config.weights.ema_decay is not None else "student")

    def _last_checkpoint(self) -> str:
        found = self.checkpoints.list()
        return str(found[-1]) if found else "none: the card itself"


def make_clips(engine: Engine, task: str, prompts: Sequence[str], parameters: dict[str, Any]) -> list[Any]:
    """Return the frames that an engine serves for prompts, with the seeds 0, 1, and so on."""
    known = engine.card.task(task).parameters
    given = {name: value for name, value in parameters.items() if name in known}
    requests = [
        engine.make_request(prompt, task=task, parameters={**given, "seed": seed}, outputs=("video",))
        for seed, prompt in enumerate(prompts)
    ]
    handles = [engine.submit(request) for request in requests]
    return [handle.result().video.frames for handle in handles]


def _seeds(seed: int, index: int, count: int) -> tuple[int, ...]:
    return tuple(random.Random(f"{seed}/group/{index}").sample(range(2**31), count))


def _number(*parts: int) -> int:
    """Return a number that follows from others, for seeds."""
    return int.from_bytes(hashlib.sha256("/".join(map(str, parts)).encode()).digest()[:7], "big")


def _parts(items: list[Any], num_updates: int, generator: torch.Generator) -> list[list[Any]]:
    """Return the items of each update: all of them, or shares of nearly one size in an order that is drawn."""
    count = min(num_updates, len(items))
    if count == 1:
        return [items]
    order = torch.randperm(len(items), generator=generator).tolist()
    return [[items[place] for place in order[i::count]] for i in range(count)]
