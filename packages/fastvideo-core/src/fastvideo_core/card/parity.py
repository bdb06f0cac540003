"""The parity obligation of a card: which rungs of the ladder it meets, against what, within what."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import Field, model_validator

from fastvideo_core.card.base import Contract, Identifier, ObjectRef
from fastvideo_core.card.precision import Precision

__all__ = ["ParityLevel", "ParitySpec", "ParityTestSpec"]


class ParityLevel(StrEnum):
    """The consistency ladder, lowest rung first."""

    C0 = "C0"
    """Components in isolation: transformer, VAE, text encoder, one sampler step."""
    C1 = "C1"
    """The whole loop with a fixed seed."""
    C2 = "C2"
    """Serving and training agree on the quantity that the training objective uses."""
    C3 = "C3"
    """The distribution of rollouts under the nondeterminism that is allowed."""
    C4 = "C4"
    """The quality of artifacts."""


class ParityTestSpec(Contract):
    """One comparison that can be run.

    Attributes:
        test_id: Name in reports.
        level: The rung that it belongs to.
        subject: What is compared: a component, a loop, or a sampler step.
        reference: Independent implementation, for instance "diffusers" or "float64-formula".
        check: The function that runs it; see `fastvideo_core.parity`.
        precision: Number format of the comparison.
        exact_bits: Whether the exact mode must equal the reference to the bit.
        max_relative_error: Bound on max|a - b| / max|b| of the default mode.
    """

    test_id: Identifier
    level: ParityLevel
    subject: str
    reference: str
    check: ObjectRef
    precision: Precision = "float32"
    exact_bits: bool = True
    max_relative_error: float = Field(default=1e-5, ge=0)


class ParitySpec(Contract):
    """All comparisons that a card declares, and what it promises of batches.

    Attributes:
        tests: The declared comparisons.
        batch_invariant: Whether a step in a batch gives the bits that it gives alone.
        batch_max_relative_error: Bound on the difference of a batched result where it does not.
        train_consistency: Whether a train forward is declared to equal the serve forward.
    """

    tests: tuple[ParityTestSpec, ...] = ()
    batch_invariant: bool = False
    batch_max_relative_error: float = Field(default=1e-4, ge=0)
    train_consistency: Literal["none", "prediction", "log_prob"] = "none"

    @model_validator(mode="after")
    def _ids_are_unique(self) -> ParitySpec:
        ids = [test.test_id for test in self.tests]
        if doubled := sorted({name for name in ids if ids.count(name) > 1}):
            raise ValueError(f"parity tests declared twice: {doubled}")
        return self

    def at_level(self, level: ParityLevel) -> tuple[ParityTestSpec, ...]:
        """Return the declared comparisons of one rung."""
        return tuple(test for test in self.tests if test.level is level)
