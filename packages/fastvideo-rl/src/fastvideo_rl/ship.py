"""The result of a run is a card: a folder with all components, the recipe, and what of the ladder holds."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from fastvideo_core.card import (
    CheckpointManifest,
    CheckpointSource,
    DataRef,
    ModelCard,
    ParityLevel,
    ParitySpec,
    ParityTestSpec,
    RecipeSpec,
)
from fastvideo_core.card.base import JsonScalar
from fastvideo_core.errors import ConfigError
from fastvideo_core.runtime.catalog import CARD_FILE
from fastvideo_core.runtime.weights.files import list_weight_files
from fastvideo_core.runtime.weights.reader import read_tensors
from fastvideo_core.runtime.weights.whole import whole_checkpoint
from fastvideo_rl.gate.c2 import MAX_PREDICTION_ERROR, BehaviorReport
from fastvideo_rl.gate.c3 import DistributionReport
from fastvideo_rl.train.assemble import Plan

__all__ = ["make_card", "ship_card"]

_PARITY_FILE = "parity.json"


def ship_card(
    plan: Plan,
    weights: Mapping[str, Mapping[str, Tensor]],
    folder: Path,
    *,
    num_steps: int,
    gate: BehaviorReport | None,
    figures: Mapping[str, JsonScalar],
    distribution: DistributionReport | None = None,
) -> ModelCard:
    """Write a card's folder, whole or not at all.

    Args:
        plan: The run.
        weights: New weights by component, in the layout of the card's files.
        folder: Where to; what is there of an earlier run is replaced.
        num_steps: Outer steps that were made.
        gate: What the gate found at the start.
        figures: What was measured.
        distribution: What the check of distributions found.

    Raises:
        ConfigError: The card's files name tensors in another way than its modules.
    """
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    with whole_checkpoint(plan.card.checkpoint) as parent:
        _copy_files(plan, parent, partial)
        for name, tensors in weights.items():
            _write_component(plan.card, name, tensors, parent, partial)
    card = make_card(plan, folder, num_steps=num_steps, gate=gate, figures=figures)
    (partial / CARD_FILE).write_text(card.model_dump_json(indent=2) + "\n", encoding="utf-8")
    report: dict[str, Any] = {
        "level": None if gate is None else gate.level.value,
        "report": None if gate is None else str(gate),
    }
    if distribution is not None:
        report["distribution"] = {**asdict(distribution), "is_same": distribution.is_same, "report": str(distribution)}
    (partial / _PARITY_FILE).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)
    return card


def make_card(
    plan: Plan,
    folder: Path,
    *,
    num_steps: int,
    gate: BehaviorReport | None,
    figures: Mapping[str, JsonScalar],
) -> ModelCard:
    """Return the card of a run's result; arguments as of `ship_card`."""
    config, card = plan.config, plan.card
    recipe = RecipeSpec(
        method=plan.spec.name,
        parents=tuple(dict.fromkeys((plan.parent.model_id, plan.teacher.model_id))),
        data_contract=_data(plan),
        assumes_loop=plan.program.generator.loop,
        assumes_precision=card.recipe.assumes_precision,
        consistency_required=plan.required,
        settings=_settings(plan, num_steps),
    )
    is_likelihood = gate is not None and gate.num_densities > 0
    reached = gate is not None and gate.level is ParityLevel.C2
    update = {
        "model_id": config.result.model_id,
        "title": config.result.title or f"{card.title or card.model_id}, after {plan.spec.name}",
        "license": card.license if config.result.license is None else config.result.license,
        "recipe": recipe,
        "parity": _parity(card, plan.program.generator.loop, is_reached=reached, is_likelihood=is_likelihood),
        "checkpoint": _checkpoint(plan, folder),
        "figures": dict(figures),
    }
    return ModelCard.from_json(card.model_copy(update=update).model_dump_json(), origin=str(folder))


def _copy_files(plan: Plan, parent: Path, target: Path) -> None:
    """Copy the parent's files but for those of components that are kept where they are."""
    manifest, kept = plan.card.checkpoint, _kept_ids(plan)
    for load_id, files in manifest.components.items():
        if files.folder and load_id not in kept and not (target / files.folder).exists():
            shutil.copytree(parent / files.folder, target / files.folder)
    for extra in ("model_index.json", "scheduler"):
        if (parent / extra).is_file():
            shutil.copy(parent / extra, target / extra)
        elif (parent / extra).is_dir():
            shutil.copytree(parent / extra, target / extra, dirs_exist_ok=True)


def _checkpoint(plan: Plan, folder: Path) -> CheckpointManifest:
    manifest, kept = plan.card.checkpoint, _kept_ids(plan)
    components = {
        load_id: files.model_copy(update={"source": manifest.source_of(load_id) if load_id in kept else None})
        for load_id, files in manifest.components.items()
    }
    return CheckpointManifest(
        source=CheckpointSource(kind="folder", location=str(folder.resolve())), components=components
    )


def _kept_ids(plan: Plan) -> set[str]:
    return {plan.card.components[name].load_id for name in plan.config.result.kept}


def _parity(card: ModelCard, loop_id: str, *, is_reached: bool, is_likelihood: bool) -> ParitySpec:
    """Return the parent's obligations, with C2 where the gate reached it."""
    tests = tuple(test for test in card.parity.tests if test.level is not ParityLevel.C2)
    if not is_reached:
        return card.parity.model_copy(update={"tests": tests})
    behavior = ParityTestSpec(
        test_id="behavior",
        level=ParityLevel.C2,
        subject=loop_id,
        reference="train-forward",
        check="fastvideo_rl.gate.c2:check_card",
        exact_bits=False,
        max_relative_error=MAX_PREDICTION_ERROR,
    )
    consistency = "log_prob" if is_likelihood else "prediction"
    return card.parity.model_copy(update={"tests": (*tests, behavior), "train_consistency": consistency})


def _data(plan: Plan) -> DataRef:
    if plan.data is not None and plan.method.source == "data":
        return DataRef(
            name=plan.data.folder.name, num_samples=len(plan.data.files), description="Latents with prompts."
        )
    assert plan.prompts is not None, "a run has data or prompts"
    rewards = ", ".join(f"{one.weight:g} {one.label}" for one in plan.config.rewards) or "none"
    return DataRef(
        name=Path(plan.config.prompts or "").name,
        num_samples=len(plan.prompts.prompts),
        description=f"Rollouts of the card's own for these prompts; rewards: {rewards}.",
    )


def _settings(plan: Plan, num_steps: int) -> dict[str, JsonScalar]:
    config = plan.config
    kept = config.model_dump(mode="json", include={"method", "rollout", "optimizer", "weights", "rewards", "seed"})
    return {"steps_done": num_steps, "fingerprint": plan.fingerprint, **_flat("", kept)}


def _flat(prefix: str, value: Any) -> dict[str, JsonScalar]:
    if isinstance(value, dict):
        return {key: one for name, part in value.items() for key, one in _flat(f"{prefix}{name}.", part).items()}
    name = prefix.removesuffix(".")
    return {name: value if isinstance(value, (str, int, float, bool)) or value is None else json.dumps(value)}


def _write_component(card: ModelCard, name: str, tensors: Mapping[str, Tensor], parent: Path, target: Path) -> None:
    """Write a component's weights in the number formats that its files have, in one file."""
    files = card.checkpoint.components[card.components[name].load_id]
    if files.key_map is not None or files.only is not None:
        raise ConfigError("its files have names of their own, which cannot be written", field="card", value=name)
    found = list_weight_files(parent, files.folder)
    formats = {key: tensor.dtype for key, tensor in read_tensors(found)}
    if wrong := sorted(set(formats) ^ set(tensors)):
        raise ConfigError(f"its files and its module differ in {wrong[0]}", field="card", value=name)
    folder = target / files.folder
    for old in [*folder.glob("*.safetensors"), *folder.glob("*.safetensors.index.json")]:
        old.unlink()
    written = {key: tensor.detach().to("cpu", formats[key]).contiguous() for key, tensor in tensors.items()}
    if wrong := [
        key for key, tensor in written.items() if tensor.is_floating_point() and not torch.isfinite(tensor).all()
    ]:
        raise ConfigError(f"does not fit the files' number format: {wrong[0]}", field="card", value=name)
    save_file(written, folder / "diffusion_pytorch_model.safetensors", {"format": "pt"})
