"""Train the shapes model: `python -m fastvideo_wan.shapes.train --config FILE [--stage NAME]`.

Stages: `vae`, `latents`, `decoder`, `dit`, `words`, which go on where they were stopped, and `ship`, which writes the
finished model. `card` writes a shipped folder's card anew after the card's format has changed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from fastvideo_core.errors import FastVideoError
from fastvideo_wan.shapes.train.config import TrainConfig, read_config

STAGES = ("vae", "latents", "decoder", "dit", "words")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the stages that were asked for; each goes on where it was stopped. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m fastvideo_wan.shapes.train", description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="JSON file of settings")
    parser.add_argument(
        "--stage", choices=(*STAGES, "ship", "card", "all"), default="all", help="default: all, in order"
    )
    parser.add_argument("--output", type=Path, help="folder that `ship` and `card` write; default: FOLDER/wan-shapes")
    parser.add_argument("--num-cases", type=int, default=100, help="prompts on which `ship` judges; default: 100")
    parser.add_argument("--notes", default="", help="what the run did otherwise than its settings say, for recipe.json")
    arguments = parser.parse_args(argv)
    try:
        config = read_config(arguments.config)
    except FastVideoError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    for stage in (*STAGES, "ship") if arguments.stage == "all" else (arguments.stage,):
        if stage in ("ship", "card"):
            run_ship(stage, config, arguments)
        else:
            run_stage(stage, config)
    return 0


def run_ship(stage: str, config: TrainConfig, arguments: argparse.Namespace) -> None:
    """Write the model and print the judge's table, or write its card only."""
    from fastvideo_wan.shapes.train.ship_stage import ship, write_card

    folder = arguments.output or config.folder / "wan-shapes"
    if stage == "card":
        write_card(folder)
        return
    recipe = ship(config, folder, num_cases=arguments.num_cases, notes=arguments.notes)
    for name, row in recipe["figures"]["generated"].items():
        low, high = row["interval_95"]
        print(f"{name:<11} {row['right']}/{row['n']}  {low:.3f} to {high:.3f}")


def run_stage(stage: str, config: TrainConfig) -> None:
    """Run one stage in as many processes as the settings say."""
    from fastvideo_wan.shapes.train.decoder_stage import train_decoder
    from fastvideo_wan.shapes.train.dit_stage import train_dit
    from fastvideo_wan.shapes.train.latents_stage import write_latents
    from fastvideo_wan.shapes.train.vae_stage import train_vae
    from fastvideo_wan.shapes.train.words_stage import train_words
    from fastvideo_wan.shapes.train.workers import run_workers

    jobs = {
        "vae": train_vae,
        "latents": write_latents,
        "decoder": train_decoder,
        "dit": train_dit,
        "words": train_words,
    }
    run_workers(jobs[stage], config.num_processes, config)


if __name__ == "__main__":
    sys.exit(main())
