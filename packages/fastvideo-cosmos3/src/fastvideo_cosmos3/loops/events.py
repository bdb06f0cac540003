"""Outside events, of which no loop of the family takes any."""

from __future__ import annotations

from typing import Any

from fastvideo_core.errors import InputError

__all__ = ["refuse_event"]


def refuse_event(loop: str, event: Any) -> InputError:
    """Return the error of a loop that takes no outside event."""
    return InputError(f"{loop} takes no events", field="event", value=type(event).__name__, allowed="none")
