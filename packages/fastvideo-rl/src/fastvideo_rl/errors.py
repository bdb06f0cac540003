"""What can go wrong in training, besides what core names: all are `FastVideoError`s.

ConfigError         (core) a training config that is wrong, before any compute
StateError          (core) a checkpoint that is corrupt, or of another config
ParityError         (core) rollout and training do not agree as the method needs it
TrainingError       training cannot go on
├── DivergedError   a loss or gradient is NaN, infinite or far too large; names the last good checkpoint
└── NoGroupsError   all groups of a step have ended early; says why
"""

from __future__ import annotations

from fastvideo_core.errors import FastVideoError

__all__ = ["DivergedError", "NoGroupsError", "TrainingError"]


class TrainingError(FastVideoError):
    """Training cannot go on."""


class DivergedError(TrainingError):
    """A loss or a gradient is NaN, infinite or far too large; nothing has been updated with it."""


class NoGroupsError(TrainingError):
    """No group of a step is of use: all have ended early, or a reward failed for each."""
