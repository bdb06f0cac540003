"""Frame rates as exact fractions. A video at 23.976 frames a second runs at 24000/1001, not at a rounded number."""

from __future__ import annotations

import math
from fractions import Fraction

from fastvideo_core.errors import ParameterError

__all__ = ["MAX_FPS", "MIN_FPS", "as_fps", "format_fps"]

MIN_FPS = Fraction(1, 100)
MAX_FPS = Fraction(1000)

_ALLOWED = f"a number from {float(MIN_FPS):g} to {MAX_FPS}, or a ratio such as 24000/1001"
_NTSC_BASES = (24, 30, 48, 60, 120)
# 23.98 and 23.976 both stand for 24000/1001; 24 is five times further away than this.
_NTSC_TOLERANCE = 0.005
# H.264 keeps the rate as two 32-bit integers; six decimals are far more than anybody writes.
_MAX_DENOMINATOR = 1_000_000


def as_fps(value: float | str | Fraction, *, field: str = "fps") -> Fraction:
    """Return a frame rate as an exact fraction.

    Args:
        value: Frames a second; an integer, a decimal, a fraction, or text such as `24000/1001`. Decimals near an NTSC
            rate (23.976, 29.97, 47.952, 59.94, 119.88) mean that rate.
        field: Name of the parameter, for the message.

    Raises:
        ParameterError: Not a number, or out of range.
    """
    fps = _parse(value)
    if fps is None:
        raise ParameterError("not a frame rate", field=field, value=value, allowed=_ALLOWED)
    if not MIN_FPS <= fps <= MAX_FPS:
        nearest = float(min(max(fps, MIN_FPS), MAX_FPS))
        raise ParameterError("out of range", field=field, value=value, allowed=_ALLOWED, nearest=f"{nearest:g}")
    return fps


def format_fps(fps: Fraction) -> str:
    """Return a frame rate as text that `as_fps` reads back exactly."""
    return str(fps)


def _parse(value: object) -> Fraction | None:
    if isinstance(value, Fraction):
        return value
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return Fraction(value)
    if isinstance(value, str) and "/" in value:
        return _parse_ratio(value)
    if isinstance(value, float | str):
        return _parse_decimal(value)
    return None


def _parse_ratio(text: str) -> Fraction | None:
    try:
        return Fraction(text.strip())
    except (ValueError, ZeroDivisionError):
        return None


def _parse_decimal(value: float | str) -> Fraction | None:
    try:
        number = float(value)
    except ValueError:
        return None
    if not math.isfinite(number):
        return None
    for base in _NTSC_BASES:
        ntsc = Fraction(base * 1000, 1001)
        if abs(number - float(ntsc)) < _NTSC_TOLERANCE:
            return ntsc
    return Fraction(repr(number)).limit_denominator(_MAX_DENOMINATOR)
