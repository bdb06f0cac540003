"""Parity: measured agreement with independent implementations, as a typed gate.

compare      how far two tensors are apart
taps         recorded intermediate tensors, and where two recordings first part
ladder       running the comparisons that a card declares
references   the independent implementations, imported only here
"""

from fastvideo_core.parity.compare import Comparison, compare_tensors
from fastvideo_core.parity.ladder import CheckContext, CheckReport, Measurement, ParityReport, run_ladder
from fastvideo_core.parity.references import load_reference
from fastvideo_core.parity.taps import Divergence, TapRecorder, TapRow, Tolerance, first_divergence

__all__ = [
    "CheckContext",
    "CheckReport",
    "Comparison",
    "Divergence",
    "Measurement",
    "ParityReport",
    "TapRecorder",
    "TapRow",
    "Tolerance",
    "compare_tensors",
    "first_divergence",
    "load_reference",
    "run_ladder",
]
