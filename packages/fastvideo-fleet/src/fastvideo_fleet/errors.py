"""Errors of this package, in core's tree.

FastVideoError
├── InputError
│   ├── TraceError          a trace that cannot be read, or that contradicts itself
│   └── FleetError          a fleet, a policy or a card that makes no sense
└── DecisionError           a policy decided what the fleet cannot do: a fault of the policy
"""

from __future__ import annotations

from fastvideo_core.errors import FastVideoError, InputError

__all__ = ["DecisionError", "FleetError", "TraceError"]


class TraceError(InputError):
    """A trace cannot be read, or contradicts itself."""


class FleetError(InputError):
    """A fleet, a policy's setting or a deployment card makes no sense."""


class DecisionError(FastVideoError):
    """A policy's decision breaks a rule: a full or draining worker, a session on two GPUs, a budget out of bounds."""
