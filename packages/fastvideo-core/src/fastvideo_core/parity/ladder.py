"""Running the comparisons that a card declares. A check that cannot run says so and does not count as passed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from fastvideo_core.card import ModelCard, ParityTestSpec, resolve_ref
from fastvideo_core.errors import ExecutionError, FastVideoError, describe_failure
from fastvideo_core.parity.compare import Comparison

__all__ = ["CheckContext", "CheckReport", "Measurement", "ParityReport", "run_ladder"]

Status = Literal["passed", "failed", "not_run"]


@dataclass(frozen=True, slots=True)
class CheckContext:
    """What a check works with.

    Attributes:
        card: The card.
        spec: The comparison to run.
        instance: The loaded model.
        folder: The checkpoint's folder, for the reference to load.
        parameters: Parameters of the requests that loop checks make (small sizes, few steps).
    """

    card: ModelCard
    spec: ParityTestSpec
    instance: Any
    folder: Path
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Measurement:
    """One measured distance.

    Attributes:
        name: What was compared.
        mode: "exact" (must be equal to the bit where the card says so) or "default" (must keep the bound).
        comparison: The distance.
        detail: Where it first parts, if that is known.
    """

    name: str
    mode: Literal["exact", "default"]
    comparison: Comparison
    detail: str = ""


Check = Callable[[CheckContext], Sequence[Measurement]]


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What became of one declared comparison.

    Attributes:
        spec: The comparison.
        status: Passed, failed, or not run.
        measurements: What was measured.
        reason: Why it failed or did not run.
        duration_s: Seconds.
    """

    spec: ParityTestSpec
    status: Status
    measurements: tuple[Measurement, ...] = ()
    reason: str = ""
    duration_s: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Return plain data; a distance that is infinite is null."""
        return {
            "test": self.spec.test_id,
            "level": self.spec.level.value,
            "subject": self.spec.subject,
            "reference": self.spec.reference,
            "status": self.status,
            "reason": self.reason,
            "duration_s": self.duration_s,
            "measurements": [
                {
                    "name": m.name,
                    "mode": m.mode,
                    "is_equal": m.comparison.is_equal,
                    "max_absolute": _number(m.comparison.max_absolute),
                    "max_relative": _number(m.comparison.max_relative),
                    "detail": m.detail,
                }
                for m in self.measurements
            ],
        }


@dataclass(frozen=True, slots=True)
class ParityReport:
    """All comparisons of a card.

    Attributes:
        card_id: The card.
        precision: Number format that they ran in.
        checks: Reports, lowest rung first.
    """

    card_id: str
    precision: str
    checks: tuple[CheckReport, ...] = field(default_factory=tuple)

    @property
    def is_passed(self) -> bool:
        """Whether every declared comparison ran and passed."""
        return bool(self.checks) and all(check.status == "passed" for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "card": self.card_id,
            "precision": self.precision,
            "passed": self.is_passed,
            "checks": [check.to_json() for check in self.checks],
        }


def run_ladder(
    card: ModelCard,
    instance: Any,
    folder: Path,
    *,
    reference: str | None = None,
    parameters: Mapping[str, Any] | None = None,
    on_check: Callable[[CheckReport], None] | None = None,
) -> ParityReport:
    """Run the comparisons that a card declares.

    Args:
        card: The card.
        instance: The loaded model.
        folder: The checkpoint's folder.
        reference: Only comparisons with this reference; None runs all.
        parameters: Parameters for loop checks.
        on_check: Called after each comparison.
    """
    specs = [spec for spec in card.parity.tests if reference in (None, spec.reference)]
    reports = []
    for spec in sorted(specs, key=lambda s: s.level.value):
        report = _run(CheckContext(card, spec, instance, folder, dict(parameters or {})))
        reports.append(report)
        if on_check is not None:
            on_check(report)
    return ParityReport(card.model_id, instance.precision, tuple(reports))


def _run(context: CheckContext) -> CheckReport:
    started_at = time.monotonic()
    spec = context.spec
    if context.instance.precision != spec.precision:
        reason = f"declared for {spec.precision}, the model is loaded in {context.instance.precision}"
        return CheckReport(spec, "not_run", reason=reason)
    try:
        check: Check = resolve_ref(spec.check)
        measurements = tuple(check(context))
    except Exception as error:  # noqa: BLE001 - a reference may raise anything; the other checks still run
        status: Status = "not_run" if _is_obstacle(error) else "failed"
        reason = describe_failure(error)
        return CheckReport(spec, status, reason=reason, duration_s=time.monotonic() - started_at)
    reason = next((why for m in measurements if (why := _fault(spec, m))), "")
    if not measurements:
        reason = "the check measured nothing"
    status = "failed" if reason else "passed"
    return CheckReport(spec, status, measurements, reason, time.monotonic() - started_at)


def _is_obstacle(error: Exception) -> bool:
    """Tell whether an error kept a check from running; a model that breaks down in it has failed it."""
    return isinstance(error, (FastVideoError, ImportError, OSError)) and not isinstance(error, ExecutionError)


def _number(distance: float) -> float | None:
    return distance if math.isfinite(distance) else None


def _fault(spec: ParityTestSpec, measurement: Measurement) -> str:
    distance = measurement.comparison
    where = f"; {measurement.detail}" if measurement.detail else ""
    if measurement.mode == "exact" and spec.exact_bits:
        if distance.is_equal:
            return ""
        return f"{measurement.name} (exact) differs by {distance.max_relative:.3g} relative; wanted: equal bits{where}"
    if distance.is_within(spec.max_relative_error):
        return ""
    return (
        f"{measurement.name} ({measurement.mode}) differs by {distance.max_relative:.3g} relative; "
        f"allowed: {spec.max_relative_error:g}{where}"
    )
