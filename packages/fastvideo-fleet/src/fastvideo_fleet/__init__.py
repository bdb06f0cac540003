"""Fleets of FastVideo workers that serve streaming sessions.

Importing it imports neither torch nor numpy: the command line finds it through the entry point `command.fleet`.

    costs         what a chunk costs on a worker with n sessions, and the fixed calibrations
    fleet         what a fleet is made of: kinds of workers, prices, start-up, transfer times
    traces        session traces: the CSV format, its checks, the seeded generator
    control       pure decisions: placement, autoscaling, the policies made of them
    sim           the event-driven simulator that runs a policy on a trace
    oracle        best placements and best budgets, known only in hindsight
    card          the DeploymentCard and its cost model
    cli           `fastvideo fleet …`
"""

from __future__ import annotations

__all__ = ["card", "cli", "control", "costs", "errors", "fleet", "oracle", "sim", "traces"]
