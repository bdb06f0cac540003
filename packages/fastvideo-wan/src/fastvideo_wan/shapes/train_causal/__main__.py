"""Train the causal shapes model: `python -m fastvideo_wan.shapes.train_causal --config FILE [--stage NAME]`.

Stages: `latents` and `causal`, which go on where they were stopped.
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
    parser.add_argument("--stage", choices=(*STAGES, "all"), default="all", help="default: all, in order")
    arguments = parser.parse_args(argv)
    try:
        config = read_settings(arguments.config, CausalConfig)
    except FastVideoError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    for stage in STAGES if arguments.stage == "all" else (arguments.stage,):
        run_stage(stage, config)
    return 0


def run_stage(stage: str, config: CausalConfig) -> None:
    """Run one stage in as many processes as the settings say."""
    from fastvideo_wan.shapes.train.workers import run_workers
    from fastvideo_wan.shapes.train_causal.causal_stage import train_causal
    from fastvideo_wan.shapes.train_causal.latents_stage import write_latents

    jobs = {"latents": write_latents, "causal": train_causal}
    run_workers(jobs[stage], config.num_processes, config)


if __name__ == "__main__":
    sys.exit(main())
