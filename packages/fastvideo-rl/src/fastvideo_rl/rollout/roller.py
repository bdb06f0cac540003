"""The client that rolls out: it hands groups of requests to an engine, and makes records of what comes back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fastvideo_core.errors import FastVideoError, ParameterError, describe_failure
from fastvideo_core.request.base import new_request_id
from fastvideo_core.runtime.engine import Engine, RequestHandle
from fastvideo_core.runtime.prepare import PreparedRequest
from fastvideo_core.runtime.result import GenerationResult
from fastvideo_rl.program import TrainingProgram
from fastvideo_rl.rollout.records import BehaviorRecord, Group, RunFacts, versions_of

__all__ = ["GroupPlan", "PendingGroup", "Roller"]


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """A group to roll out.

    Attributes:
        prompt: What its samples show.
        seeds: Seed of each sample.
        parameters: Parameters of all of them, but for the seed.
    """

    prompt: str
    seeds: tuple[int, ...]
    parameters: Mapping[str, Any]


class PendingGroup:
    """A group that has been handed to the engine."""

    def __init__(self, plan: GroupPlan, handles: Sequence[RequestHandle], roller: Roller) -> None:
        self._plan = plan
        self._handles = list(handles)
        self._roller = roller

    def result(self, timeout_s: float | None = None) -> Group:
        """Wait for all samples; if one fails, or the weights changed among them, the group has ended, with the reason.

        Raises:
            TimeoutError: They take longer.
        """
        records, failures = [], []
        for handle in self._handles:
            try:
                records.append(self._roller.record(self._plan, handle.result(timeout_s)))
            except FastVideoError as error:
                failures.append(describe_failure(error))
        group = Group(self._plan.prompt, records)
        if failures:
            group.end(f"{len(failures)} of {len(self._handles)} samples failed: {failures[0]}")
        elif len(versions := {record.weights_version for record in records}) > 1:
            group.end(f"its samples are of {len(versions)} versions of the weights")
        return group

    def cancel(self, reason: str) -> None:
        """Cancel all its samples at their next step boundary."""
        for handle in self._handles:
            handle.cancel(reason)


class Roller:
    """Rolls out on an engine, which may serve others at the same time.

    The samples of a group share the encoded prompt through the engine's cache, and run in one batch: they are handed
    over while the engine is held, so that all of them begin together.

    Args:
        engine: The engine; its card's loop must record behaviour.
        program: What is run of the card.
        has_frames: Whether samples are decoded, for rewards that look at frames.
        attention_backend: What computes the engine's attention, for the records.
    """

    def __init__(
        self,
        engine: Engine,
        program: TrainingProgram,
        *,
        has_frames: bool = False,
        attention_backend: str = "sdpa",
    ) -> None:
        self.engine = engine
        self.program = program
        self._outputs = ("latents", "video") if has_frames else ("latents",)
        self._facts = _facts(engine, attention_backend)

    def submit(self, plans: Sequence[GroupPlan]) -> list[PendingGroup]:
        """Hand groups to the engine.

        Raises:
            InputError: A prompt or parameter is not allowed; nothing has been handed over then.
        """
        prepared = [self._prepare(plan) for plan in plans]
        with self.engine.paused():
            handles = [[self.engine.submit_prepared(one) for one in group] for group in prepared]
        return [PendingGroup(plan, mine, self) for plan, mine in zip(plans, handles, strict=True)]

    def run(self, plans: Sequence[GroupPlan]) -> list[Group]:
        """Hand groups to the engine and wait for them; see `stream`."""
        return list(self.stream(plans))

    def stream(self, plans: Sequence[GroupPlan]) -> Iterator[Group]:
        """Hand groups to the engine and yield each as it ends, in order; if that is left early, the rest is cancelled.

        Raises:
            InputError: A prompt or parameter is not allowed; nothing has been handed over then.
        """
        pending = self.submit(plans)
        try:
            while pending:
                yield pending[0].result()
                del pending[0]
        finally:
            for one in pending:
                one.cancel("the rollout was left")

    def encode(self, prompts: Sequence[str], parameters: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return what the generating loop would be given for prompts, without drawing a sample.

        Raises:
            FastVideoError: A prompt is not allowed, or a step failed.
        """
        prepared = [
            self.program.prompts_only(prompt, {**parameters, "seed": 0}, request_id=new_request_id())
            for prompt in prompts
        ]
        with self.engine.paused():
            handles = [self.engine.submit_prepared(one) for one in prepared]
        return [self.program.inputs_of(handle.result().captured) for handle in handles]

    def record(self, plan: GroupPlan, result: GenerationResult) -> BehaviorRecord:
        """Make the record of a sample."""
        captured = result.captured[self.program.generator.node_id]
        behavior = captured["behavior"]
        video = result.artifacts.get("video")
        seed = result.seed
        assert seed is not None, "a rollout says its seed"
        versions = versions_of(behavior.steps)
        return BehaviorRecord(
            prompt=plan.prompt,
            seed=seed,
            parameters=dict(result.parameters),
            inputs=self.program.inputs_of(result.captured),
            schedule=behavior.schedule,
            steps=behavior.steps,
            latents_1CTHW=captured["latents"],
            weights_version="+".join(sorted(versions)),
            facts=self._facts,
            frames_FYX3=None if video is None else video.frames,  # type: ignore[attr-defined]  # the task's video
            fps=0.0 if video is None else float(video.fps),  # type: ignore[attr-defined]
        )

    def _prepare(self, plan: GroupPlan) -> list[PreparedRequest]:
        if not plan.seeds or len(set(plan.seeds)) != len(plan.seeds):
            raise ParameterError(
                "each sample has a seed of its own", field="seeds", value=plan.seeds, allowed="distinct"
            )
        return [
            self.program.rollout(
                plan.prompt, {**plan.parameters, "seed": seed}, request_id=new_request_id(), outputs=self._outputs
            )
            for seed in plan.seeds
        ]


def _facts(engine: Engine, attention_backend: str) -> RunFacts:
    hooks = engine.instance.hooks
    return RunFacts(
        model_id=engine.card.model_id,
        precision=engine.instance.precision,
        parallel_plan="",
        attention_backend=attention_backend,
        interceptors=() if hooks is None else tuple(hooks.interceptors),
        is_deterministic=torch.are_deterministic_algorithms_enabled(),
        device=str(engine.instance.device),
        num_threads=torch.get_num_threads(),
    )
