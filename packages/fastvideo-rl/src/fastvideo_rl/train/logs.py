"""What a run tells: a line of numbers a step in a file, TensorBoard, and W&B where it is asked for."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fastvideo_core.errors import ConfigError, describe_failure

__all__ = ["RunLog", "check_wandb"]


class RunLog:
    """The logs of a run; only the first process has one.

    Args:
        folder: The run's folder; `metrics.jsonl` and `tensorboard/` are in it.
        first_step: Steps that are done; what was logged of later ones, before a crash, is dropped.
        wandb_project: Project of Weights & Biases; None leaves it out.
        name: Name of the run there.

    Raises:
        ConfigError: W&B is asked for and not installed.
    """

    def __init__(self, folder: Path, *, first_step: int = 0, wandb_project: str | None = None, name: str = "") -> None:
        from tensorboardX import SummaryWriter

        folder.mkdir(parents=True, exist_ok=True)
        self._wandb = None if wandb_project is None else _open_wandb(wandb_project, name, folder)
        path = folder / "metrics.jsonl"
        kept = _kept_lines(path, first_step)
        path.write_text("".join(kept), encoding="utf-8")
        self._lines = path.open("a", encoding="utf-8")
        purge = first_step + 1 if first_step else None
        self._board = SummaryWriter(str(folder / "tensorboard"), purge_step=purge, flush_secs=10)

    def note(self, step: int, numbers: Mapping[str, float]) -> None:
        """Write the numbers of a step."""
        self._lines.write(json.dumps({"step": step, **numbers}) + "\n")
        self._lines.flush()
        for name, value in numbers.items():
            self._board.add_scalar(name, value, step)
        if self._wandb is not None:
            self._wandb.log(dict(numbers), step=step)

    def show(self, step: int, name: str, picture_YX3: npt.NDArray[np.uint8]) -> None:
        """Show a picture, bytes (rows, columns, 3)."""
        self._board.add_image(name, picture_YX3, step, dataformats="HWC")
        if self._wandb is not None:
            import wandb

            self._wandb.log({name: wandb.Image(picture_YX3)}, step=step)

    def close(self) -> None:
        """Write what is left."""
        self._lines.close()
        self._board.close()
        if self._wandb is not None:
            self._wandb.finish()


def _kept_lines(path: Path, first_step: int) -> list[str]:
    """Return the whole lines of steps up to one."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
    whole = [line for line in lines if line.endswith("\n")]
    return [line for line in whole if json.loads(line)["step"] <= first_step]


def check_wandb(project: str | None) -> None:
    """Refuse a run that is to be logged to Weights & Biases where that is not installed.

    Raises:
        ConfigError: It is not.
    """
    if project is not None and find_spec("wandb") is None:
        raise ConfigError(
            "Weights & Biases is not installed", field="wandb_project", value=project,
            allowed="null, or `pip install fastvideo-rl[wandb]`",
        )  # fmt: skip


def _open_wandb(project: str, name: str, folder: Path) -> Any:
    """Open the run there, or go on with it: the folder remembers which it is."""
    check_wandb(project)
    import wandb

    path = folder / "wandb-id.txt"
    run_id = path.read_text(encoding="utf-8").strip() if path.exists() else secrets.token_hex(8)
    try:
        run = wandb.init(project=project, name=name or None, dir=str(folder), id=run_id, resume="allow")
    except Exception as error:
        raise ConfigError(
            f"Weights & Biases takes no run: {describe_failure(error)}", field="wandb_project", value=project,
            allowed="null, a project that you are logged in to, or WANDB_MODE=offline",
        ) from error  # fmt: skip
    path.write_text(f"{run_id}\n", encoding="utf-8")
    return run
