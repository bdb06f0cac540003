"""One parameter of a task: type, range, grid and default. A bad value names the nearest good one."""

from __future__ import annotations

import math
import sys
from difflib import get_close_matches
from numbers import Integral, Real
from typing import Any, Literal

from pydantic import Field, model_validator

from fastvideo_core.card.base import Contract, JsonScalar, is_unicode
from fastvideo_core.errors import ParameterError

__all__ = ["ParameterSpec"]

ParameterType = Literal["integer", "number", "string", "boolean", "integers", "numbers", "strings"]

_LISTS = {"integers": "a list of integers", "numbers": "a list of numbers", "strings": "a list of strings"}


class ParameterSpec(Contract):
    """A parameter and all values it may take.

    Attributes:
        type: JSON type; "integers", "numbers" and "strings" are lists.
        default: Used when neither the request nor the deployment says otherwise.
        minimum: Smallest value, included.
        maximum: Largest value, included.
        multiple_of: Step of the grid `offset + k * multiple_of` (integers only).
        offset: Start of that grid: frame counts of 4k + 1 have 4 and 1.
        choices: All strings that are allowed.
        is_nullable: Whether null is a value (it then means what `description` says).
        unit: Unit in words, for help texts.
        description: One line for help texts.
    """

    type: ParameterType
    default: JsonScalar | list[int | float | str] = None
    minimum: int | float | None = None
    maximum: int | float | None = None
    multiple_of: int | None = Field(default=None, ge=1)
    offset: int = 0
    choices: tuple[str, ...] | None = None
    is_nullable: bool = False
    unit: str = ""
    description: str = ""

    @model_validator(mode="after")
    def _limits_fit_the_type(self) -> ParameterSpec:
        is_numeric = self.type not in ("string", "strings", "boolean")
        if (self.minimum is not None or self.maximum is not None) and not is_numeric:
            raise ValueError(f"minimum and maximum are for numbers, not for {self.type}")
        if self.multiple_of is not None and self.type != "integer":
            raise ValueError(f"multiple_of is for integer, not for {self.type}")
        if self.choices is not None and self.type != "string":
            raise ValueError(f"choices are for string, not for {self.type}")
        if self.minimum is not None and self.maximum is not None and not self._has_value_between(*self._range()):
            raise ValueError(f"no value is {self.allowed_text()}")
        return self

    @model_validator(mode="after")
    def _default_is_valid(self) -> ParameterSpec:
        if self.default is not None or not self.is_nullable:
            try:
                self.validate_value("default", self.default)
            except ParameterError as error:
                raise ValueError(str(error)) from error
        return self

    def validate_value(self, name: str, value: Any) -> Any:
        """Return a valid value in the type of the parameter: an integer given as 2.0 as 2, a number given as 2 as 2.0.

        Args:
            name: Parameter name, for the error.
            value: What was given.

        Raises:
            ParameterError: With what is allowed and, for numbers and choices, the nearest valid value.
        """
        if value is None:
            if self.is_nullable:
                return None
            raise ParameterError("a value is needed", field=name, value=value, allowed=self.allowed_text())
        if self.type in _LISTS:
            return self._validate_list(name, value)
        if self.type == "string":
            return self._validate_string(name, value)
        if self.type == "boolean":
            if not isinstance(value, bool):
                raise ParameterError("not a boolean", field=name, value=value, allowed="true or false")
            return value
        return self._validate_number(name, value, is_integer=self.type == "integer")

    def allowed_text(self) -> str:
        """Describe the allowed values in words."""
        if self.choices is not None:
            return ", ".join(self.choices)
        parts = [_LISTS.get(self.type, self.type)]
        if self.multiple_of is not None and (self.multiple_of, self.offset) != (1, 0):
            grid = f"{self.multiple_of}k" + (f" + {self.offset}" if self.offset else "")
            parts.append(f"of the form {grid}")
        if self.minimum is not None and self.maximum is not None:
            parts.append(f"from {_short(self.minimum)} to {_short(self.maximum)}")
        elif self.minimum is not None:
            parts.append(f"of at least {_short(self.minimum)}")
        elif self.maximum is not None:
            parts.append(f"of at most {_short(self.maximum)}")
        return " ".join(parts) + (" or null" if self.is_nullable else "")

    def _validate_list(self, name: str, value: Any) -> list[Any]:
        if not isinstance(value, (list, tuple)):
            raise ParameterError("not a list", field=name, value=value, allowed=self.allowed_text())
        if self.type == "strings":
            return [self._validate_string(f"{name}[{i}]", v) for i, v in enumerate(value)]
        is_integer = self.type == "integers"
        return [self._validate_number(f"{name}[{i}]", v, is_integer=is_integer) for i, v in enumerate(value)]

    def _validate_string(self, name: str, value: Any) -> str:
        if not isinstance(value, str):
            raise ParameterError("not a string", field=name, value=value, allowed=self.allowed_text())
        if not is_unicode(value):
            raise ParameterError("not Unicode text", field=name, value=value, allowed=self.allowed_text())
        if self.choices is not None and value not in self.choices:
            near = get_close_matches(value, self.choices, n=1, cutoff=0.3)
            raise ParameterError(
                "not a known value",
                field=name,
                value=value,
                allowed=self.allowed_text(),
                nearest=next(iter(near), None),
            )
        return value

    def _validate_number(self, name: str, value: Any, *, is_integer: bool) -> float:
        number = _as_number(value)
        if number is None:
            raise ParameterError("not a finite number", field=name, value=value, allowed=self.allowed_text())
        nearest = self._nearest(number, is_integer=is_integer)
        if nearest != number:
            raise ParameterError(
                "not a valid value", field=name, value=value, allowed=self.allowed_text(), nearest=nearest
            )
        return nearest

    def _nearest(self, value: float, *, is_integer: bool) -> float:
        low, high = self._range()
        clipped = min(max(value, low), high)
        if not is_integer:
            return float(min(max(clipped, -sys.float_info.max), sys.float_info.max))
        step = self.multiple_of or 1
        # In whole numbers: a float cannot tell large seeds apart.
        k = (math.floor(clipped) - self.offset) // step
        candidates = [self.offset + (k + d) * step for d in (0, -1, 1)]
        return min((c for c in candidates if low <= c <= high), key=lambda c: abs(c - clipped))

    def _range(self) -> tuple[float, float]:
        low = -math.inf if self.minimum is None else self.minimum
        high = math.inf if self.maximum is None else self.maximum
        return low, high

    def _has_value_between(self, low: float, high: float) -> bool:
        if self.type not in ("integer", "integers"):
            return low <= high
        step = self.multiple_of or 1
        return self.offset + -((self.offset - math.ceil(low)) // step) * step <= high


def _as_number(value: Any) -> int | float | None:
    """Return a number of any kind, numpy's among them, as Python's own; None for what is no finite number."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    if isinstance(value, Integral):
        return int(value)  # finite, and perhaps too large for a float
    return number if math.isfinite(number := float(value)) else None


def _short(limit: float) -> str:
    """Return a limit in full where it is a whole number, which may be a large one, else in its shortest form."""
    return str(limit) if isinstance(limit, int) else f"{limit:g}"
