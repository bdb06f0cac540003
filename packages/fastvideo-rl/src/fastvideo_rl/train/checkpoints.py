"""Checkpoints: all that a run goes on from, to the bit, in safetensors and JSON; written whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from fastvideo_core.errors import StateError, describe_failure
from fastvideo_rl.train.optimizers import RoleOptimizer, shard_like
from fastvideo_rl.train.processes import Processes
from fastvideo_rl.train.roles import Role

__all__ = ["Checkpoints", "SavedRun"]

_FORMAT = "fastvideo-rl/1"
_STATE = "state.json"


@dataclass(frozen=True, slots=True)
class SavedRun:
    """Where a run was.

    Attributes:
        folder: The checkpoint.
        step: Outer steps that were done.
        fingerprint: What the config said.
        facts: What else the trainer wanted to know again.
    """

    folder: Path
    step: int
    fingerprint: str
    facts: dict[str, Any]


class Checkpoints:
    """The checkpoints of a run.

    Args:
        folder: The run's folder.
        num_kept: How many are kept.
    """

    def __init__(self, folder: Path, num_kept: int) -> None:
        self._folder = folder / "checkpoints"
        self._num_kept = num_kept

    def save(
        self,
        step: int,
        fingerprint: str,
        roles: Mapping[str, Role],
        optimizers: Mapping[str, RoleOptimizer],
        processes: Processes,
        facts: Mapping[str, Any],
    ) -> Path:
        """Write a checkpoint after `step` outer steps, and drop the oldest; all processes call it, the first writes."""
        target = self._folder / f"step-{step:08d}"
        parts = {f"role-{name}": _gathered(_tensors(role)) for name, role in roles.items()}
        parts |= {f"optimizer-{name}": _gathered(one.tensors()) for name, one in optimizers.items()}
        if processes.is_first:
            partial = target.with_name(f".{target.name}.partial")
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            for name, tensors in parts.items():
                save_file(tensors, partial / f"{name}.safetensors")
            state = {"format": _FORMAT, "step": step, "fingerprint": fingerprint, "facts": dict(facts)}
            (partial / _STATE).write_text(json.dumps(state, indent=2) + "\n", encoding="utf-8")
            _sync_folder(partial)
            shutil.rmtree(target, ignore_errors=True)
            partial.rename(target)
            _sync_folder(self._folder, deep=False)
            for old in self.list()[: -self._num_kept]:
                shutil.rmtree(old)
        processes.wait()
        return target

    def list(self) -> list[Path]:
        """Return the checkpoints, oldest first."""
        return sorted(self._folder.glob("step-*")) if self._folder.is_dir() else []

    def newest(self) -> SavedRun:
        """Return the newest checkpoint.

        Raises:
            StateError: There is none, or it cannot be read.
        """
        found = self.list()
        if not found:
            raise StateError(f"{self._folder} holds no checkpoint; begin the run with `fastvideo rl train`")
        path = found[-1] / _STATE
        try:
            state = json.loads(path.read_text(encoding="utf-8"))
            if state["format"] != _FORMAT:
                raise StateError(f"{path} is of format {state['format']!r}; this is {_FORMAT!r}")
            return SavedRun(found[-1], int(state["step"]), str(state["fingerprint"]), dict(state["facts"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StateError(f"{path} cannot be read: {describe_failure(error)}") from error

    @staticmethod
    def load(saved: SavedRun, roles: Mapping[str, Role], optimizers: Mapping[str, RoleOptimizer]) -> None:
        """Give roles and optimizers what a checkpoint holds.

        Raises:
            StateError: It is damaged, or of other roles.
        """
        for name, role in roles.items():
            _restore_role(role, _read(saved.folder / f"role-{name}.safetensors"), name)
        for name, optimizer in optimizers.items():
            optimizer.restore(_read(saved.folder / f"optimizer-{name}.safetensors"))


def _tensors(role: Role) -> dict[str, Tensor]:
    return {
        f"{component}.{name}": tensor.detach()
        for component, module in role.modules.items()
        for name, tensor in module.state_dict().items()
    }


def _gathered(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors gathered and on the CPU, each with memory of its own."""
    whole = {name: one.full_tensor() if hasattr(one, "full_tensor") else one for name, one in tensors.items()}
    return {name: one.detach().to("cpu", copy=True).contiguous() for name, one in whole.items()}


def _read(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (OSError, SafetensorError, ValueError) as error:
        raise StateError(f"{path} cannot be read: {describe_failure(error)}") from error


def _restore_role(role: Role, tensors: Mapping[str, Tensor], name: str) -> None:
    own = _named(role)
    if wrong := sorted(set(own) ^ set(tensors)):
        raise StateError(f"the checkpoint's {name} has other weights: {', '.join(wrong[:3])}")
    with torch.no_grad():
        for key, tensor in own.items():
            tensor.copy_(shard_like(tensors[key], tensor))


def _named(role: Role) -> dict[str, Tensor]:
    return {
        f"{component}.{name}": tensor
        for component, module in role.modules.items()
        for name, tensor in module.state_dict(keep_vars=True).items()
    }


def _sync_folder(folder: Path, *, deep: bool = True) -> None:
    for path in [*(folder.iterdir() if deep else ()), folder]:
        number = os.open(path, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)
