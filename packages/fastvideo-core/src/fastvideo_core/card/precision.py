"""Which number formats a component may run in, and which one the weights were made for."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from fastvideo_core.card.base import Contract
from fastvideo_core.errors import PrecisionMismatchError

__all__ = ["Precision", "PrecisionContract", "PrecisionPolicy"]

Precision = Literal["float32", "bfloat16", "float16"]


class PrecisionPolicy(Contract):
    """The number format of one component.

    Attributes:
        compute: Format of weights and activations; None follows the engine's precision.
        keep_float32: Parts of parameter names which stay float32 whatever `compute` says.
    """

    compute: Precision | None = None
    keep_float32: tuple[str, ...] = ()

    def keeps_float32(self, name: str) -> bool:
        """Tell whether a parameter stays float32 whatever the component runs in."""
        return any(part in name for part in self.keep_float32)


class PrecisionContract(Contract):
    """The number formats that a card may be served in.

    Attributes:
        default: What runs on an accelerator when nobody says otherwise.
        default_cpu: What runs on a CPU, where 16-bit formats are slower than float32, when nobody says otherwise.
        allowed: All that may be asked for.
    """

    default: Precision = "bfloat16"
    default_cpu: Precision = "float32"
    allowed: tuple[Precision, ...] = ("float32", "bfloat16", "float16")

    @model_validator(mode="after")
    def _default_is_allowed(self) -> PrecisionContract:
        for precision in (self.default, self.default_cpu):
            if precision not in self.allowed:
                raise ValueError(f"default precision {precision!r} is not among the allowed {list(self.allowed)}")
        return self

    def check(self, precision: str, *, assumed: str) -> None:
        """Refuse a precision that the card does not serve or the recipe does not assume.

        Args:
            precision: What is asked for.
            assumed: `RecipeSpec.assumes_precision`: a precision, or "any".

        Raises:
            PrecisionMismatchError: With what is allowed.
        """
        allowed = [p for p in self.allowed if assumed in ("any", p)]
        if precision not in allowed:
            raise PrecisionMismatchError(
                "these weights do not run in this precision",
                field="precision",
                value=precision,
                allowed=", ".join(allowed) or f"none (the recipe assumes {assumed})",
            )
