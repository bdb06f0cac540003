"""Last stage: write the model in diffusers' layout in 16 bits, judge those very weights, and write its card.

What is written: `model_index.json`, `transformer/`, `vae/`, `text_encoder/`, `tokenizer/`, `scheduler/`, `recipe.json`
(settings, seeds and figures) and `card.json`.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from fastvideo_core.card import CheckpointSource, DataRef, ModelCard, RecipeSpec
from fastvideo_wan.cards.build import make_card
from fastvideo_wan.cards.facts import WanFacts
from fastvideo_wan.models.vae import WanVAE
from fastvideo_wan.models.vae_config import WanVAEConfig
from fastvideo_wan.shapes.evaluation import ATTRIBUTES, Case, Row, held_out_cases, judge_clips, summarise
from fastvideo_wan.shapes.measure import Judged, make_and_judge
from fastvideo_wan.shapes.sheets import from_frames, write_sheet
from fastvideo_wan.shapes.tokenizer import TEXT_LENGTH, save_tokenizer
from fastvideo_wan.shapes.train.config import TrainConfig
from fastvideo_wan.shapes.train.decoder_stage import load_polished_vae
from fastvideo_wan.shapes.train.latents_stage import batch_of, draw_pixels, draw_scenes, encode_scenes, save_vae
from fastvideo_wan.shapes.train.model import ShapesModel
from fastvideo_wan.shapes.train.vae_stage import psnr
from fastvideo_wan.shapes.train.words_stage import load_taught_model

DTYPE = torch.float16
FPS = 8.0
TRAINED = ("vae", "decoder", "dit", "words")
EVALUATION_SEED = 20_000  # not the one that evaluations during training use
RECONSTRUCT_PIXELS = 8 * 17 * 64 * 64  # decoded at a time
SHEET_CLIPS = 48


def ship(config: TrainConfig, folder: Path, *, num_cases: int = 100, notes: str = "") -> dict[str, Any]:
    """Write the model that a run has made, and judge it by what the engine makes of the written files.

    Args:
        config: The run's settings.
        folder: Where to write; files of the same names are replaced.
        num_cases: Held-out prompts on which the written weights are judged; other lengths and sizes get a tenth.
        notes: In what the run differed from its settings, if in anything; kept in `recipe.json`.

    Returns:
        The content of `recipe.json`.
    """
    vae = load_polished_vae(config)
    model = load_taught_model(config)
    write_components(model, vae, folder, flow_shift=config.dit.time_shift)
    round_weights(vae)
    recipe: dict[str, Any] = {
        "settings": json.loads(config.model_dump_json(exclude={"folder"})),
        "steps_done": {
            name: steps_done(config.folder / f"{name}.safetensors") for name in ("vae", "decoder", "dit", "words")
        },
        "evaluation_seed": EVALUATION_SEED,
        "dtype": str(DTYPE).removeprefix("torch."),
        "notes": notes,
        "figures": {"reconstructed": judge_reconstructed(vae, config, num_cases)},
    }
    _write_json(folder / "recipe.json", recipe)
    write_card(folder)
    recipe["figures"] |= judge_written(config, folder, num_cases)
    _write_json(folder / "recipe.json", recipe)
    write_card(folder)
    return recipe


def write_card(folder: Path) -> None:
    """Write `card.json` from a shipped folder's `recipe.json` and configurations."""
    recipe = json.loads((folder / "recipe.json").read_text(encoding="utf-8"))
    config = TrainConfig.model_validate({"folder": folder, **recipe["settings"]})
    card = shapes_card(config, WanVAEConfig.from_folder(folder / "vae"), recipe["figures"])
    (folder / "card.json").write_text(card.model_dump_json(indent=2) + "\n", encoding="utf-8")


def steps_done(checkpoint: Path) -> int:
    """Return the number of optimiser steps behind a checkpoint; 0 if there is none."""
    if not checkpoint.exists():
        return 0
    with safe_open(checkpoint, framework="pt") as file:
        return int(file.metadata()["step"])


def write_components(model: ShapesModel, vae: WanVAE, folder: Path, *, flow_shift: float) -> None:
    """Write every component's folder and `model_index.json`."""
    save_vae(vae, folder / "vae", DTYPE)
    _write_transformer(model, folder / "transformer")
    copy.deepcopy(model.text_encoder).to(DTYPE).save_pretrained(folder / "text_encoder")
    save_tokenizer(folder / "tokenizer")
    _write_json(
        folder / "scheduler" / "scheduler_config.json",
        {
            "_class_name": "UniPCMultistepScheduler",
            "num_train_timesteps": 1000,
            "prediction_type": "flow_prediction",
            "use_flow_sigmas": True,
            "flow_shift": flow_shift,
            "solver_order": 2,
        },
    )
    _write_json(
        folder / "model_index.json",
        {
            "_class_name": "WanPipeline",
            "scheduler": ["diffusers", "UniPCMultistepScheduler"],
            "text_encoder": ["transformers", "UMT5EncoderModel"],
            "tokenizer": ["transformers", "PreTrainedTokenizerFast"],
            "transformer": ["diffusers", "WanTransformer3DModel"],
            "vae": ["diffusers", "AutoencoderKLWan"],
        },
    )


def _write_transformer(model: ShapesModel, folder: Path) -> None:
    config = model.transformer.config.model_dump(mode="json")
    _write_json(folder / "config.json", {"_class_name": "WanTransformer3DModel", **config})
    weights = {name: tensor.to(DTYPE).contiguous() for name, tensor in model.transformer.state_dict().items()}
    save_file(weights, folder / "diffusion_pytorch_model.safetensors", {"format": "pt"})


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


@torch.no_grad()
def round_weights(module: torch.nn.Module) -> None:
    """Give the weights the values that the written files hold."""
    for tensor in module.parameters():
        tensor.copy_(tensor.to(DTYPE).float())


def judge_written(config: TrainConfig, folder: Path, num_cases: int) -> dict[str, Any]:
    """Return the judge's tables of a written model: by default, at half the steps, and at each bucket's size.

    The first clips of each go to sheets in the run's folder.
    """
    from fastvideo_core.runtime.engine import Engine

    first, num_steps = config.buckets[0], config.dit.eval_steps
    wanted = [("generated", first, num_steps, num_cases), ("generated_half_steps", first, num_steps // 2, num_cases)]
    wanted += [(bucket.name, bucket, num_steps, max(1, num_cases // 10)) for bucket in config.buckets[1:]]
    tables: dict[str, Any] = {}
    with Engine.open(folder, device=config.device) as engine:
        for name, bucket, steps, count in wanted:
            size = {"num_frames": bucket.num_frames, "height": bucket.height, "width": bucket.width}
            parameters = {**size, "num_inference_steps": max(1, steps)}
            cases = held_out_cases(count, EVALUATION_SEED, config.world.at(bucket.height, bucket.width))
            judged = list(make_and_judge(engine, cases, parameters))
            tables[name] = summarise([item.scores for item in judged])
            _write_judged(config.folder / "sheets" / f"shipped-{name}", judged[:SHEET_CLIPS])
            print(f"judged {name}: {summary_line(tables[name])}", flush=True)
    others = {bucket.name: tables.pop(bucket.name) for bucket in config.buckets[1:]}
    return {**tables, "generated_at_other_sizes": others}


def _write_judged(path: Path, judged: list[Judged]) -> None:
    write_sheet(path.with_suffix(".png"), torch.stack([from_frames(item.frames) for item in judged]))
    path.with_suffix(".txt").write_text("".join(f"{item.case.prompt}\n" for item in judged), encoding="utf-8")


def summary_line(table: Mapping[str, Row]) -> str:
    """Return a table in one line: the part that is right, by attribute."""
    return "  ".join(f"{name} {row['part']:.2f}" for name, row in table.items())


@torch.no_grad()
def judge_reconstructed(vae: WanVAE, config: TrainConfig, num_clips: int) -> dict[str, Any]:
    """Return the judge's table over decoded latents of drawn clips, and their mean fidelity in decibels, by bucket.

    The first bucket's clips are `num_clips`, the others' a tenth.
    """
    tables: dict[str, Any] = {}
    for index, bucket in enumerate(config.buckets):
        count = num_clips if index == 0 else max(1, num_clips // 10)
        scenes = draw_scenes(config, count, bucket, name="reconstruction")
        scores: list[dict[str, bool]] = []
        errors: list[float] = []
        size = batch_of(bucket, RECONSTRUCT_PIXELS)
        for some in (scenes[i : i + size] for i in range(0, len(scenes), size)):
            decoded = vae.decode(encode_scenes(vae, some, bucket)).clamp(-1, 1)
            errors += (decoded - draw_pixels(some, bucket)).square().mean(dim=(1, 2, 3, 4)).tolist()
            scores += judge_clips(decoded, [Case(f"on {scene.background}", scene, 0) for scene in some])
        tables[bucket.name] = {**summarise(scores), "psnr_db": round(psnr(sum(errors) / len(errors)), 2)}
    first = tables.pop(config.buckets[0].name)
    return {**first, "at_other_sizes": tables}


def shapes_card(config: TrainConfig, vae: WanVAEConfig, figures: dict[str, Any]) -> ModelCard:
    """Return the shipped model's card."""
    facts = WanFacts(
        model_id="wan-shapes",
        title="One coloured shape on a plain background, moving or still: a small Wan that ships with the package",
        source=CheckpointSource(kind="package", location="fastvideo_wan:data/wan-shapes"),
        recipe=_recipe_spec(config),
        spatial_factor=vae.spatial_factor,
        temporal_factor=vae.temporal_factor,
        num_frames=config.buckets[0].num_frames,
        height=config.buckets[0].height,
        width=config.buckets[0].width,
        fps=FPS,
        num_inference_steps=config.dit.eval_steps,
        guidance_scale=config.dit.guidance_scale,
        flow_shift=config.dit.time_shift,
        sampler_options={},
        text_length=TEXT_LENGTH,
        max_frames=config.grid.max_frames,
        min_size=config.grid.min_size,
        max_size=config.grid.max_size,
        default_precision="float32",
        num_heads=config.dit.num_heads,
        figures=_card_figures(figures),
    )
    return make_card(facts)


def _recipe_spec(config: TrainConfig) -> RecipeSpec:
    settings = _flat("", json.loads(config.model_dump_json(exclude={"folder"})))
    data = DataRef(
        name="fastvideo_wan.shapes.scenes",
        license="Apache-2.0",
        num_samples=sum(bucket.num_clips for bucket in config.buckets),
        description="Clips drawn by the package's own generator, captioned in varied wording; a tenth is held out.",
    )
    return RecipeSpec(method="base", data_contract=data, assumes_loop="diffusion_denoise", settings=settings)


def _flat(prefix: str, settings: dict[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, dict):
            flat |= _flat(f"{prefix}{name}.", value)
        else:
            flat[f"{prefix}{name}"] = json.dumps(value) if isinstance(value, list) else value
    return flat


def _card_figures(figures: dict[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {"reconstruction_psnr_db": figures["reconstructed"]["psnr_db"]}
    for name in ATTRIBUTES if "generated" in figures else ():
        row = figures["generated"][name]
        flat[name] = row["part"]
        flat[f"{name}_low"], flat[f"{name}_high"] = row["interval_95"]
        flat["num_prompts"] = row["n"]
    if "generated_half_steps" in figures:
        flat["all_at_half_steps"] = figures["generated_half_steps"]["all"]["part"]
    if others := [table["all"] for table in figures.get("generated_at_other_sizes", {}).values()]:
        flat["all_at_other_sizes"] = round(sum(row["right"] for row in others) / sum(row["n"] for row in others), 4)
        flat["all_at_worst_size"] = min(row["part"] for row in others)
    return flat
