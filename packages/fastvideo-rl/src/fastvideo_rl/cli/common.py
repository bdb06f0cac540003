"""What the training commands have in common."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from fastvideo_core.cli.options import add_quiet_option
from fastvideo_core.cli.parser import Parser
from fastvideo_core.cli.shell import Shell

if TYPE_CHECKING:
    from fastvideo_rl.train.assemble import Plan
    from fastvideo_rl.train.config import TrainConfig
    from fastvideo_rl.train.processes import Processes

__all__ = ["add_config_option", "add_config_options", "read_plan", "read_run", "sheet_path", "train_and_ship"]


def add_config_options(parser: Parser) -> None:
    """Add the flags of `train` and `resume`."""
    add_config_option(parser)
    add_quiet_option(parser)


def add_config_option(parser: Parser) -> None:
    """Add what says which run is meant."""
    parser.add_argument("--config", required=True, metavar="FILE", help="the run's YAML file")
    parser.add_argument("--run-folder", metavar="FOLDER", help="folder of the run (default: the config's `output`)")


def read_run(args: Namespace) -> TrainConfig:
    """Read the config of the run that is meant."""
    from fastvideo_rl.train.config import read_config

    config = read_config(Path(args.config))
    return config if args.run_folder is None else config.model_copy(update={"output": args.run_folder})


def sheet_path(output: str | None) -> Path | None:
    """Return where a sheet goes; one that cannot be written is refused before any samples are made."""
    if output is None:
        return None
    from fastvideo_core.request.media.output import check_output

    return check_output(output, allowed=(".png",)).path


def read_plan(args: Namespace) -> tuple[Plan, Processes]:
    """Read the config, meet the other processes, and check everything; nothing is loaded."""
    from fastvideo_rl.train.assemble import make_plan
    from fastvideo_rl.train.processes import Processes

    config = read_run(args)
    processes = Processes.join(config.device)
    return make_plan(config, world_size=processes.size), processes


def train_and_ship(args: Namespace, shell: Shell, *, is_resumed: bool) -> int:
    """Run to the end, and write the card."""
    from fastvideo_core.cli.progress import open_display

    plan, processes = read_plan(args)
    with open_display(shell, is_quiet=args.quiet or not processes.is_first) as display:
        display.phase(f"loading {plan.card.model_id}")
        from fastvideo_rl.evaluation import ship_run
        from fastvideo_rl.train.trainer import StepReport, Trainer

        def told(report: StepReport) -> None:
            for reason in report.reasons:
                display.note(f"step {report.step}: a group has ended: {reason}")
            display.note(str(report))

        with Trainer(plan, processes) as trainer:
            if is_resumed:
                trainer.resume()
                display.note(f"going on after step {trainer.step}")
            trainer.run(told)
            if trainer.gate is not None:
                display.note(str(trainer.gate))
            folder = ship_run(trainer)
    if processes.is_first:
        shell.say(f"{folder}: fastvideo generate --card {folder} PROMPT")
    return 0
