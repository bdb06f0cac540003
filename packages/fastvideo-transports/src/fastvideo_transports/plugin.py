"""The plugin of the shared-memory transport. Imports no torch."""

from __future__ import annotations

import os
from collections.abc import Sequence

from fastvideo_core.extend import TransportSpec, hookimpl

__all__ = ["transports", "why_not"]

HOOK_VERSIONS = ">=1.0,<2"


@hookimpl
def transports() -> Sequence[TransportSpec]:
    """Return the transport."""
    return [
        TransportSpec(
            "shm",
            "fastvideo_transports.shm:SharedMemoryTransport",
            "between processes of one machine, through shared memory",
            crosses_processes=True,
            crosses_hosts=False,
            available="fastvideo_transports.plugin:why_not",
        )
    ]


def why_not() -> str | None:
    """Return why it cannot run on this machine, or None."""
    return None if hasattr(os, "memfd_create") else "needs anonymous shared memory, as Linux has it"
