"""`python -m fastvideo_wan.shapes.train --config FILE [--stage vae|latents|dit|all]`"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from fastvideo_core.errors import FastVideoError
from fastvideo_wan.shapes.train.config import TrainConfig, read_config

STAGES = ("vae", "latents", "dit")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the stages that were asked for; each goes on where it was stopped. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m fastvideo_wan.shapes.train", description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="JSON file of settings")
    parser.add_argument("--stage", choices=(*STAGES, "all"), default="all", help="what to run; default: all, in order")
    arguments = parser.parse_args(argv)
    try:
        config = read_config(arguments.config)
    except FastVideoError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    for stage in STAGES if arguments.stage == "all" else (arguments.stage,):
        run_stage(stage, config)
    return 0


def run_stage(stage: str, config: TrainConfig) -> None:
    """Run one stage in as many processes as the settings say."""
    from fastvideo_wan.shapes.train.dit_stage import train_dit
    from fastvideo_wan.shapes.train.latents_stage import write_latents
    from fastvideo_wan.shapes.train.vae_stage import train_vae
    from fastvideo_wan.shapes.train.workers import run_workers

    jobs = {"vae": train_vae, "latents": write_latents, "dit": train_dit}
    run_workers(jobs[stage], config.num_processes, config)


if __name__ == "__main__":
    sys.exit(main())
