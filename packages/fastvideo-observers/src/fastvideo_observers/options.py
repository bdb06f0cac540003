"""Options of the observers, as the deploy config gives them."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["NaNWatchOptions", "ProfilerOptions"]


class NaNWatchOptions(BaseModel):
    """Options of NaNWatch."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    file: Path | None = Field(default=None, description="where findings are written as JSON Lines; null only logs them")


class ProfilerOptions(BaseModel):
    """Options of the profiler."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    trace: Path | None = Field(default=None, description="where the Chrome trace is written; null writes none")
    table: Path | None = Field(default=None, description="where the table is written; null writes none")
    max_calls: int = Field(default=100_000, ge=1, description="calls that are kept; later ones only count in the table")
