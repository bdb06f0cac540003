"""What is trained on besides rollouts: prompts of a text file, and latents with prompts of a folder.

Shape letters: 1 one row; C channels; T, H, W latent frames, rows, columns.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fastvideo_core.errors import ConfigError, MediaError
from fastvideo_core.request.media.tensors import load_latents

__all__ = ["INDEX_FILE", "LatentSamples", "PromptList"]

INDEX_FILE = "index.jsonl"


@dataclass(frozen=True, slots=True)
class PromptList:
    """Prompts in an order that follows from a seed: all of them once, in another order each time through.

    Attributes:
        prompts: The prompts.
        seed: Seed of the orders.
    """

    prompts: tuple[str, ...]
    seed: int

    @classmethod
    def read(cls, path: Path, seed: int, *, field: str = "prompts") -> PromptList:
        """Read a text file with a prompt a line; empty lines are left out.

        Args:
            path: The file.
            seed: Seed of the orders.
            field: Where it is named in the config.

        Raises:
            ConfigError: It cannot be read, or there is none in it.
        """
        try:
            lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
            raise ConfigError(f"cannot be read: {reason}", field=field, value=str(path)) from error
        prompts = tuple(dict.fromkeys(line for line in lines if line))
        if not prompts:
            raise ConfigError("holds no prompt", field=field, value=str(path), allowed="a prompt a line")
        return cls(prompts, seed)

    def take(self, first: int, count: int) -> list[str]:
        """Return prompts from a place in the endless sequence on."""
        return [self._at(index) for index in range(first, first + count)]

    def _at(self, index: int) -> str:
        turn, place = divmod(index, len(self.prompts))
        order = list(range(len(self.prompts)))
        random.Random(f"{self.seed}/{turn}").shuffle(order)
        return self.prompts[order[place]]


@dataclass(frozen=True, slots=True)
class LatentSamples:
    """Latents with prompts, as `fastvideo generate --output x.safetensors` writes them.

    The folder's `index.jsonl` has a line `{"prompt": …, "latents": "file.safetensors"}` for each sample. All files are
    read once at the beginning, so that nothing is found out late.

    Attributes:
        folder: Where they are.
        prompts: Prompt of each.
        files: File of each, relative to the folder.
        seed: Seed of the orders.
    """

    folder: Path
    prompts: tuple[str, ...]
    files: tuple[str, ...]
    seed: int

    @classmethod
    def read(cls, folder: Path, seed: int) -> LatentSamples:
        """Read the index and look at every file.

        Raises:
            ConfigError: The index is missing or wrong, a file cannot be read, or shapes differ.
        """
        rows = [_row(folder, number, line) for number, line in _lines(folder)]
        if not rows:
            raise ConfigError("holds no sample", field="data", value=str(folder / INDEX_FILE))
        shapes = {}
        for _, file in rows:
            shapes[_shape(folder, file)] = file
        if len(shapes) > 1:
            found = "; ".join(f"{file} has {list(shape)}" for shape, file in shapes.items())
            raise ConfigError(
                f"latents of several shapes: {found}", field="data", value=str(folder), allowed="one shape"
            )
        return cls(folder, tuple(prompt for prompt, _ in rows), tuple(file for _, file in rows), seed)

    def take(self, first: int, count: int) -> list[tuple[str, Tensor]]:
        """Return prompts and latents (1, C, T, H, W) from a place in the endless sequence on."""
        return [self._at(index) for index in range(first, first + count)]

    def _at(self, index: int) -> tuple[str, Tensor]:
        turn, place = divmod(index, len(self.files))
        order = list(range(len(self.files)))
        random.Random(f"{self.seed}/{turn}").shuffle(order)
        chosen = order[place]
        return self.prompts[chosen], torch.from_numpy(load_latents(self.folder / self.files[chosen])).unsqueeze(0)


def _lines(folder: Path) -> list[tuple[int, str]]:
    path = folder / INDEX_FILE
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise ConfigError(f"cannot be read: {reason}", field="data", value=str(path)) from error
    return [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]


def _row(folder: Path, number: int, line: str) -> tuple[str, str]:
    where = f"{folder / INDEX_FILE}, line {number}"
    try:
        row = json.loads(line)
        prompt, file = row["prompt"], row["latents"]
    except (ValueError, KeyError, TypeError):
        raise ConfigError("not a sample", field=where, value=line[:80], allowed='{"prompt": …, "latents": …}') from None
    if not isinstance(prompt, str) or not prompt.strip() or not isinstance(file, str):
        raise ConfigError("not a sample", field=where, value=line[:80], allowed="a prompt, and the name of a file")
    return prompt, file


def _shape(folder: Path, file: str) -> tuple[int, ...]:
    try:
        return tuple(load_latents(folder / file, field="data").shape)
    except MediaError as error:
        raise ConfigError(error.reason, field="data", value=str(folder / file), allowed=error.allowed) from error
