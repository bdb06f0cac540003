"""Last stage: write the model in diffusers' layout in 16 bits, judge those weights on the engine, write its card."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from fastvideo_core.card import CheckpointSource, DataRef, ModelCard, RecipeSpec
from fastvideo_wan.cards.causal import LOOP_ID, CausalFacts, make_causal_card
from fastvideo_wan.cards.facts import WanFacts
from fastvideo_wan.models.vae_config import WanVAEConfig
from fastvideo_wan.shapes.evaluation import Row, summarise
from fastvideo_wan.shapes.scenes import FRAME_SIZE
from fastvideo_wan.shapes.sheets import from_frames, write_sheet
from fastvideo_wan.shapes.stream_measure import StreamCase, StreamMade, judge_chunk, make_streams, stream_cases
from fastvideo_wan.shapes.streams import num_frames
from fastvideo_wan.shapes.tokenizer import TEXT_LENGTH
from fastvideo_wan.shapes.train.checkpoint import load_average
from fastvideo_wan.shapes.train.ship_stage import FPS, round_weights, steps_done, summary_line, write_components
from fastvideo_wan.shapes.train_causal.causal_stage import CHECKPOINT
from fastvideo_wan.shapes.train_causal.config import CausalConfig
from fastvideo_wan.shapes.train_causal.model import CausalShapesModel

EVALUATION_SEED = 30_000  # not the one that evaluations during training use
SWITCH_CHUNK = 4
CHUNKS_TO_FOLLOW = 3
DRIFT_CHUNKS = 60
NUM_CHUNKS = 7
NUM_STREAMS = 16
SHEET_STREAMS = 24


def ship(
    config: CausalConfig, folder: Path, *, num_cases: int = 100, num_long: int | None = None, notes: str = ""
) -> dict[str, Any]:
    """Write the model that a run has made, and judge it by the streams that the engine makes of the written files.

    Args:
        config: The run's settings.
        folder: Where to write; files of the same names are replaced.
        num_cases: Streams whose prompt changes.
        num_long: Streams of 60 chunks; None makes as many.
        notes: In what the run differed from its settings, if in anything; kept in `recipe.json`.

    Returns:
        The content of `recipe.json`.
    """
    base = config.read_base()
    vae = base.load_vae()
    model = CausalShapesModel(base.dit, vae.config.z_dim)
    model.load_state_dict(load_average(config.folder / CHECKPOINT))
    write_components(model, vae, folder, flow_shift=config.causal.time_shift)
    _mark_causal(config, folder)
    round_weights(vae)
    recipe: dict[str, Any] = {
        "settings": json.loads(config.model_dump_json(exclude={"folder", "base"})),
        "base_settings": json.loads(base.settings.model_dump_json(exclude={"folder"})),
        "steps_done": {"causal": steps_done(config.folder / CHECKPOINT)},
        "evaluation_seed": EVALUATION_SEED,
        "notes": notes,
        "figures": {},
    }
    _write(folder, recipe)
    recipe["figures"] = judge_written(config, folder, num_cases, num_cases if num_long is None else num_long)
    _write(folder, recipe)
    return recipe


def _write(folder: Path, recipe: dict[str, Any]) -> None:
    (folder / "recipe.json").write_text(json.dumps(recipe, indent=2) + "\n", encoding="utf-8")
    write_card(folder)


def write_card(folder: Path) -> None:
    """Write `card.json` from a shipped folder's `recipe.json` and configurations."""
    recipe = json.loads((folder / "recipe.json").read_text(encoding="utf-8"))
    config = CausalConfig.model_validate({"folder": folder, **recipe["settings"]})
    dit = recipe["base_settings"]["dit"]
    card = causal_card(config, dit, WanVAEConfig.from_folder(folder / "vae"), recipe["figures"])
    (folder / "card.json").write_text(card.model_dump_json(indent=2) + "\n", encoding="utf-8")


def _mark_causal(config: CausalConfig, folder: Path) -> None:
    """Say in the layout's own files that the model makes streams, and with which window."""
    rule = config.causal.rule
    path = folder / "transformer" / "config.json"
    fields = json.loads(path.read_text(encoding="utf-8"))
    fields |= {
        "_class_name": "CausalWanTransformer3DModel",
        "local_attn_size": rule.window_frames,
        "sink_size": rule.sink_frames,
        "num_frames_per_block": rule.chunk_frames,
    }
    path.write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")
    path = folder / "model_index.json"
    index = json.loads(path.read_text(encoding="utf-8"))
    index |= {"_class_name": "WanCausalDMDPipeline", "transformer": ["diffusers", "CausalWanTransformer3DModel"]}
    path.write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def causal_card(
    config: CausalConfig, dit: dict[str, Any], vae: WanVAEConfig, figures: dict[str, dict[str, Row]]
) -> ModelCard:
    """Return the shipped model's card.

    Args:
        config: The run's settings.
        dit: The base run's settings of the transformer.
        vae: The autoencoder's shape.
        figures: The judge's tables, by what was asked for.
    """
    stage = config.causal
    base = WanFacts(
        model_id="wan-shapes-causal",
        title="One coloured shape that moves on and on and follows new prompts: a small causal Wan that ships with the "
        "package",
        source=CheckpointSource(kind="package", location="fastvideo_wan:data/wan-shapes-causal"),
        recipe=_recipe_spec(config),
        spatial_factor=vae.spatial_factor,
        temporal_factor=vae.temporal_factor,
        num_frames=num_frames(NUM_CHUNKS),
        height=FRAME_SIZE,
        width=FRAME_SIZE,
        fps=FPS,
        guidance_scale=None if stage.guidance_scale <= 1 else stage.guidance_scale,
        flow_shift=stage.time_shift,
        text_length=TEXT_LENGTH,
        min_size=FRAME_SIZE,
        max_size=FRAME_SIZE,
        default_precision="float32",
        num_heads=int(dit["num_heads"]),
    )
    return make_causal_card(
        CausalFacts(
            base=base,
            rule=stage.rule,
            steps=stage.steps,
            num_layers=int(dit["num_layers"]) - len(config.dropped_layers),
            width=int(dit["num_heads"]) * int(dit["head_dim"]),
            has_reread=stage.recache_part > 0,
            is_renoised=stage.is_renoised,
            max_pixels=FRAME_SIZE**2,
            num_streams=NUM_STREAMS,
            figures=_card_figures(figures),
        )
    )


def _recipe_spec(config: CausalConfig) -> RecipeSpec:
    stage, schedule = config.causal, config.causal.schedule
    data = DataRef(
        name="fastvideo_wan.shapes.streams",
        license="Apache-2.0",
        num_samples=config.streams.num_streams,
        description="Streams drawn by the package's own generator, captioned in varied wording; a tenth is held out.",
    )
    settings: dict[str, Any] = {
        "seed": config.seed,
        "batch_size": stage.batch_size,
        "num_steps": schedule.num_steps,
        "learning_rate": schedule.learning_rate,
        "max_noise": stage.max_noise,
        "own_part": stage.own_part,
        "recache_part": stage.recache_part,
    }
    return RecipeSpec(
        method="teacher_forcing", parents=("wan-shapes",), data_contract=data, assumes_loop=LOOP_ID, settings=settings
    )


def _card_figures(figures: dict[str, dict[str, Row]]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, table in figures.items():
        row = table["all"]
        flat[f"{name}_all"] = row["part"]
        flat[f"{name}_low"], flat[f"{name}_high"] = row["interval_95"]
        flat[f"{name}_shape"] = table["shape"]["part"]
        flat[f"{name}_streams"] = row["n"]
    return flat


def judge_written(config: CausalConfig, folder: Path, num_cases: int, num_long: int) -> dict[str, dict[str, Row]]:
    """Return the judge's tables of a written model.

    `follows` is the chunk before a change of prompt, `switched` the third chunk after it, `after_60_chunks` the last of
    60 with one prompt. The first streams of each go to sheets in the run's folder.
    """
    from fastvideo_core.runtime.engine import Engine

    follow = SWITCH_CHUNK + CHUNKS_TO_FOLLOW
    short = stream_cases(num_cases, EVALUATION_SEED, (0, SWITCH_CHUNK))
    long = stream_cases(num_long, EVALUATION_SEED + 1, (0,))
    with Engine.open(folder, device=config.device) as engine:
        switched = list(make_streams(engine, short, follow))
        tables = {
            "follows": _table(switched, chunk=SWITCH_CHUNK - 1, turn=0),
            "switched": _table(switched, chunk=follow - 1, turn=1),
        }
        _sheet(config.folder / "sheets" / "shipped-switched", switched[:SHEET_STREAMS])
        lasted = list(make_streams(engine, long, DRIFT_CHUNKS)) if long else []
        if lasted:
            tables["after_60_chunks"] = _table(lasted, chunk=DRIFT_CHUNKS - 1, turn=0)
            _sheet(config.folder / "sheets" / "shipped-60-chunks", lasted[:SHEET_STREAMS])
    for name, table in tables.items():
        print(f"judged {name}: {summary_line(table)}", flush=True)
    return tables


def _table(made: Sequence[StreamMade], *, chunk: int, turn: int) -> dict[str, Row]:
    return summarise([judge_chunk(stream.chunks[chunk], stream.case.case(turn)) for stream in made])


def _sheet(path: Path, made: Sequence[StreamMade]) -> None:
    clips = [torch.cat([from_frames(chunk) for chunk in stream.chunks], dim=1) for stream in made]
    write_sheet(path.with_suffix(".png"), torch.stack(clips))
    path.with_suffix(".txt").write_text("".join(f"{_prompts(stream.case)}\n" for stream in made), encoding="utf-8")


def _prompts(case: StreamCase) -> str:
    return " / ".join(case.prompts)
