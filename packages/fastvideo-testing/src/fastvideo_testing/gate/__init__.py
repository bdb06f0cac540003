"""The interleave gate: requests among others give what they give alone.

A check of one request at a time cannot see what one request does to another. This one runs requests of mixed lengths
and guidance, which come, are cancelled and fail at random points, so that the steps of all of them alternate and share
calls, and compares the survivors with the same requests alone:

    run_gate(instance, parameters={"num_frames": 5, "height": 32, "width": 32})

    core       the gate: its modes, what each promises, its report
    requests   requests of any card, and what is to happen to some of them
    pool       runs requests in a random order that a seed decides, through bytes if wanted, on one thread
    engine     runs them on the real engine
    faults     steps that fail on demand, of any card
    compare    what differs between two results
    hidden     where something is kept that should be in a request's state
"""

from fastvideo_testing.gate.core import MODES, GateReport, Mode, ModeReport, run_gate
from fastvideo_testing.gate.faults import GateError
from fastvideo_testing.gate.requests import GatePlan, make_plan

__all__ = ["MODES", "GateError", "GatePlan", "GateReport", "Mode", "ModeReport", "make_plan", "run_gate"]
