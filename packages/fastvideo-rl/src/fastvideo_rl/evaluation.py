"""What a card is worth by a run's rewards: alone, beside another, and in the card that a run ships.

Shape letters: F, Y, X pixel frames, rows, columns; 3 RGB.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fastvideo_core.card import ModelCard
from fastvideo_core.errors import ConfigError
from fastvideo_core.runtime.catalog import CARD_FILE, Catalog
from fastvideo_rl.rewards.scorer import Scorer
from fastvideo_rl.rollout.records import BehaviorRecord, Group
from fastvideo_rl.ship import ship_card
from fastvideo_rl.train.assemble import Plan, open_engine
from fastvideo_rl.train.config import BarConfig
from fastvideo_rl.train.sheets import make_sheet, write_sheet
from fastvideo_rl.train.trainer import make_clips

if TYPE_CHECKING:
    from fastvideo_rl.train.trainer import Trainer

__all__ = [
    "Difference",
    "Scores",
    "compare",
    "differences",
    "evaluate",
    "find_baseline",
    "find_result",
    "ship_run",
]

NUM_FIGURES = 16
"""Samples behind the figures in a shipped card."""


@dataclass(frozen=True, slots=True)
class Scores:
    """Rewards of a card.

    Attributes:
        card: The card.
        means: Mean of each reward, and of their weighted sum as `reward`.
        errors: Standard errors of these means.
        rows: The numbers behind them, one a sample.
        clips_FYX3: The samples.
    """

    card: str
    means: dict[str, float]
    errors: dict[str, float]
    rows: dict[str, list[float]]
    clips_FYX3: list[npt.NDArray[np.uint8]]

    @property
    def num_samples(self) -> int:
        """How many samples there are."""
        return len(self.clips_FYX3)


def evaluate(plan: Plan, card: str | ModelCard, num_samples: int, *, sheet: Path | None = None) -> Scores:
    """Score what a card makes of the prompts that a run is judged on, with the seeds 0, 1, and so on.

    Args:
        plan: The run: its prompts, request parameters and rewards.
        card: Itself, its id, or its folder.
        num_samples: How many.
        sheet: Where to write a picture of them; None writes none.

    Raises:
        ConfigError: The run has no rewards or no prompts.
        FastVideoError: A sample could not be made, or a reward failed.
    """
    _check(plan)
    prompts = _prompts(plan, num_samples)
    found = Catalog.installed().find(card) if isinstance(card, str) else card
    with open_engine(plan, found, most=num_samples) as engine:
        name = engine.card.model_id
        task = plan.config.task or engine.card.capabilities.default_task
        clips = make_clips(engine, task, prompts, plan.judged_parameters)
        fps = float(engine.card.task(task).defaults().get("fps") or 1.0)  # type: ignore[arg-type]  # a number
    scores = _score(plan, name, prompts, clips, fps)
    if sheet is not None:
        write_sheet(sheet, make_sheet(clips), prompts)
    return scores


@dataclass(frozen=True, slots=True)
class Difference:
    """One reward of two cards on the same prompts and seeds.

    Attributes:
        name: The reward.
        before: Mean of the card that the run is measured against.
        after: Mean of the other one.
        error: Standard error of the difference, sample by sample.
        gained: Share of what was missing to the reward's maximum that was gained; None where nothing was, or where
            there is no maximum.
        bar: What the config asks for; "" for nothing.
        is_met: Whether it is met; None where nothing is asked for.
    """

    name: str
    before: float
    after: float
    error: float
    gained: float | None
    bar: str
    is_met: bool | None


def differences(plan: Plan, before: Scores, after: Scores) -> list[Difference]:
    """Return what became of each reward, and whether it is what the config asks for.

    Args:
        plan: The run.
        before: Scores of the card that it is measured against.
        after: Scores of its result, of the same prompts and seeds.
    """
    names = {choice.label: choice.name for choice in plan.judged_by}
    found = []
    for name, mean in after.means.items():
        rows = np.array(after.rows[name]) - np.array(before.rows[name])
        maximum = plan.extensions.rewards[names[name]].maximum if name in names else None
        missing = None if maximum is None else maximum - before.means[name]
        gained = None if not missing or missing <= 0 else (mean - before.means[name]) / missing
        bar = plan.config.evaluation.bars.get(name, BarConfig())
        found.append(
            Difference(
                name, before.means[name], mean, float(np.std(rows) / math.sqrt(len(rows))), gained,
                *_verdict(bar, before.means[name] - mean, gained),
            )
        )  # fmt: skip
    return found


def _verdict(bar: BarConfig, loss: float, gained: float | None) -> tuple[str, bool | None]:
    """Return a bar in words, and whether it is met; what had nothing missing has gained all of it."""
    words, met = [], []
    if bar.max_loss is not None:
        words.append(f"not lower by more than {bar.max_loss:g}")
        met.append(loss <= bar.max_loss + 1e-9)
    if bar.min_gain is not None:
        words.append(f"gains {bar.min_gain:.0%} of what is missing")
        met.append(gained is None or gained >= bar.min_gain)
    return ", ".join(words), all(met) if met else None


def find_baseline(plan: Plan) -> str:
    """Return the card that a run is measured against: its teacher, or the one that it begins with."""
    return (plan.config.teacher or plan.config.card) if plan.has_teacher else plan.config.card


def compare(
    plan: Plan, cards: Sequence[str], num_samples: int, *, sheet: Path | None = None
) -> tuple[Scores, Scores, dict[str, float]]:
    """Score two cards on the same prompts and seeds.

    Returns:
        Both, and the share of samples in which the second one's reward is the higher.
    """
    _check(plan)
    found = [Catalog.installed().find(card) for card in cards]  # both are there before samples of one are made
    one, other = (evaluate(plan, card, num_samples) for card in found)
    better = {name: float(np.mean(np.array(other.rows[name]) > np.array(one.rows[name]))) for name in one.rows}
    if sheet is not None:
        pairs = [clip for pair in zip(one.clips_FYX3, other.clips_FYX3, strict=True) for clip in pair]
        captions = [f"{one.card} | {other.card}: {prompt}" for prompt in _prompts(plan, num_samples)]
        write_sheet(sheet, make_sheet(pairs), captions)
    return one, other, better


def find_result(plan: Plan) -> str:
    """Return the folder of a run's card, or the card that the run begins with where there is none yet."""
    folder = _result_folder(plan)
    return str(folder) if (folder / CARD_FILE).is_file() else plan.config.card


def ship_run(trainer: Trainer) -> Path:
    """Write the card of a run that has ended; all processes call it, the first writes.

    Returns:
        Its folder.
    """
    plan, folder = trainer.plan, _result_folder(trainer.plan)
    weights = trainer.roles.weights(trainer.shipped_role)
    distribution = trainer.check_distribution()

    def ship(figures: dict[str, Any]) -> None:
        ship_card(
            plan,
            weights,
            folder,
            num_steps=trainer.step,
            gate=trainer.gate,
            figures=figures,
            distribution=distribution,
        )

    if trainer.processes.is_first:
        ship({})
        if plan.judged_by and plan.judged_prompts is not None:
            scores = evaluate(plan, str(folder), NUM_FIGURES)
            ship({**{name: round(mean, 6) for name, mean in scores.means.items()}, "num_samples": NUM_FIGURES})
    trainer.processes.wait()
    return folder


def _result_folder(plan: Plan) -> Path:
    return Path(plan.config.output) / plan.config.result.model_id


def _check(plan: Plan) -> None:
    if not plan.judged_by:
        raise ConfigError("there is nothing to score by", field="rewards", value=[], allowed="at least one")
    if plan.judged_prompts is None:
        raise ConfigError("there is nothing to make samples of", field="prompts", value=None, allowed="a text file")


def _prompts(plan: Plan, count: int) -> list[str]:
    assert plan.judged_prompts is not None
    known = plan.judged_prompts.prompts
    return [known[index % len(known)] for index in range(count)]


def _score(plan: Plan, card: str, prompts: Sequence[str], clips: list[npt.NDArray[np.uint8]], fps: float) -> Scores:
    nothing: Any = None
    # Each in a group of its own: a reward that fails for one says nothing of the others.
    groups = [
        Group(prompt, [BehaviorRecord(prompt, seed, {}, {}, nothing, (), nothing, "", nothing, clip, fps)])
        for seed, (prompt, clip) in enumerate(zip(prompts, clips, strict=True))
    ]
    with Scorer(plan.judged_by, plan.extensions) as scorer:
        for group in groups:
            scorer.submit(group)
        scorer.settle()
    failed = [group.reason for group in groups if group.reason is not None]
    if failed:
        raise ConfigError(f"{len(failed)} of {len(groups)} samples have no score: {failed[0]}", field="rewards")
    records = [group.records[0] for group in groups]
    names = list(records[0].rewards)
    rows = {"reward": [record.reward for record in records]}
    rows |= {name: [record.rewards[name] for record in records] for name in names}
    means = {name: float(np.mean(values)) for name, values in rows.items()}
    errors = {name: float(np.std(values) / math.sqrt(len(values))) for name, values in rows.items()}
    return Scores(card, means, errors, rows, clips)
