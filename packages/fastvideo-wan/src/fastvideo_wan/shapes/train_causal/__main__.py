"""Train the causal shapes model: `python -m fastvideo_wan.shapes.train_causal --config FILE [--stage NAME]`.

Stages: `latents` and `causal`, which go on where they were stopped, and `ship`, which writes the finished model. `card`
writes a shipped folder's card anew after the card's format has changed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from fastvideo_core.errors import FastVideoError
from fastvideo_wan.shapes.train.config import read_settings
from fastvideo_wan.shapes.train_causal.config import CausalConfig

STAGES = ("latents", "causal")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the stages that were asked for; each goes on where it was stopped. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m fastvideo_wan.shapes.train_causal", description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="JSON file of settings")
    parser.add_argument(
        "--stage", choices=(*STAGES, "ship", "card", "all"), default="all", help="default: all, in order"
    )
    parser.add_argument("--output", type=Path, help="folder that `ship` writes; default: FOLDER/wan-shapes-causal")
    parser.add_argument("--num-cases", type=int, default=100, help="streams on which `ship` judges; default: 100")
    parser.add_argument("--num-long", type=int, help="streams of 60 chunks on which it judges; default: as many")
    parser.add_argument("--notes", default="", help="what the run did otherwise than its settings say, for recipe.json")
    arguments = parser.parse_args(argv)
    try:
        config = read_settings(arguments.config, CausalConfig)
        if arguments.stage != "card":
            config.read_base()
    except FastVideoError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    for stage in (*STAGES, "ship") if arguments.stage == "all" else (arguments.stage,):
        if stage in STAGES:
            run_stage(stage, config)
        else:
            run_ship(stage, config, arguments)
    return 0


def run_ship(stage: str, config: CausalConfig, arguments: argparse.Namespace) -> None:
    """Write the model and print the judge's tables, or write its card only."""
    from fastvideo_wan.shapes.train_causal.ship_stage import ship, write_card

    folder = arguments.output or config.folder / "wan-shapes-causal"
    if stage == "card":
        write_card(folder)
        return
    ship(config, folder, num_cases=arguments.num_cases, num_long=arguments.num_long, notes=arguments.notes)


def run_stage(stage: str, config: CausalConfig) -> None:
    """Run one stage in as many processes as the settings say."""
    from fastvideo_wan.shapes.train.workers import run_workers
    from fastvideo_wan.shapes.train_causal.causal_stage import train_causal
    from fastvideo_wan.shapes.train_causal.latents_stage import write_latents

    jobs = {"latents": write_latents, "causal": train_causal}
    run_workers(jobs[stage], config.num_processes, config)


if __name__ == "__main__":
    sys.exit(main())
