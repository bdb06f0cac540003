"""Requests that outlive the process: a journal of what was accepted, and checkpoints of how far it has come."""

from fastvideo_core.runtime.durable.base import FinishedNode, Identity, NodeState, RefusedJob, RunningNode, SavedJob
from fastvideo_core.runtime.durable.policy import CheckpointAccount, CheckpointPolicy, CheckpointTotals
from fastvideo_core.runtime.durable.store import StateStore

__all__ = [
    "CheckpointAccount",
    "CheckpointPolicy",
    "CheckpointTotals",
    "FinishedNode",
    "Identity",
    "NodeState",
    "RefusedJob",
    "RunningNode",
    "SavedJob",
    "StateStore",
]
