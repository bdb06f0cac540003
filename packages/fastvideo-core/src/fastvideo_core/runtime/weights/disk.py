"""Whether files fit on a disk, before they are written."""

from __future__ import annotations

import shutil
from pathlib import Path

from fastvideo_core.errors import ResourceError
from fastvideo_core.runtime.weights.text import format_bytes


def free_disk_bytes(folder: Path) -> int:
    """Return the free bytes where a folder is, or will be once it is made."""
    place = folder.absolute()
    while not place.exists():
        place = place.parent
    return shutil.disk_usage(place).free


def check_disk(need_bytes: int, folder: Path, *, purpose: str, remedy: str, available_bytes: int | None = None) -> None:
    """Refuse what does not fit on a disk.

    Args:
        need_bytes: What is going to be written.
        folder: Where; need not exist yet.
        purpose: What it is for, for the message.
        remedy: What the user can do.
        available_bytes: What is free; None asks the file system.

    Raises:
        ResourceError: If more is needed than is free; says both figures.
    """
    available = free_disk_bytes(folder) if available_bytes is None else available_bytes
    if need_bytes > available:
        raise ResourceError(
            f"not enough disk for {purpose}: {format_bytes(need_bytes)} needed in {folder}, "
            f"{format_bytes(available)} free; {remedy}"
        )
