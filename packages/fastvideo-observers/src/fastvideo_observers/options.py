"""Options of the observers, as the deploy config gives them."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

__all__ = ["ActivationTraceOptions", "NaNWatchOptions", "ParityAlignerOptions", "ProfilerOptions"]

Bound = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Options(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class NaNWatchOptions(_Options):
    """Options of NaNWatch."""

    file: Path | None = Field(default=None, description="where findings are written as JSON Lines; null only logs them")


class ProfilerOptions(_Options):
    """Options of the profiler."""

    trace: Path | None = Field(default=None, description="where the Chrome trace is written; null writes none")
    table: Path | None = Field(default=None, description="where the table is written; null writes none")
    costs: Path | None = Field(
        default=None, description="calibrations of the cost model, gone on with and written; null keeps none"
    )
    max_calls: int = Field(default=100_000, ge=1, description="calls that are kept; later ones only count in the table")


class _TapOptions(_Options):
    taps: tuple[str, ...] = Field(default=("*",), min_length=1, description="patterns of the tensors' names, with * ?")

    def has(self, name: str) -> bool:
        """Say whether a tensor is one of those that are wanted."""
        return any(fnmatchcase(name, pattern) for pattern in self.taps)


class ParityAlignerOptions(_TapOptions):
    """Options of the parity aligner."""

    record: Path | None = Field(default=None, description="new folder that tensors are recorded into")
    compare: Path | None = Field(default=None, description="folder of the recording that tensors are compared with")
    max_relative: Bound | None = Field(default=None, description="bound on relative differences; null: equal bits")
    tolerances: dict[str, Bound] = Field(
        default_factory=dict, description="bounds by pattern of name, before max_relative; the first that fits holds"
    )
    stop: bool = Field(default=False, description="whether a request ends with an error where it first differs")
    report: Path | None = Field(default=None, description="where what was found is written as JSON; null only logs it")

    @model_validator(mode="after")
    def _is_one_of_the_two(self) -> ParityAlignerOptions:
        if self.record is not None and self.compare is not None:
            raise ValueError("record and compare are two runs; give one of them")
        return self

    def bound(self, name: str) -> float | None:
        """Return the bound of a tensor; None asks for equal bits."""
        fits = (bound for pattern, bound in self.tolerances.items() if fnmatchcase(name, pattern))
        return next(fits, self.max_relative)


class ActivationTraceOptions(_TapOptions):
    """Options of the activation trace."""

    file: Path | None = Field(default=None, description="where rows are written: .csv, else JSON Lines; null: nowhere")
    every: int = Field(default=1, ge=1, description="only every so many steps of a loop")
    max_rows: int = Field(default=1_000_000, ge=1, description="rows that are kept; later ones are left out")
