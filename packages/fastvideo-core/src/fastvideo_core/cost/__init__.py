"""Predicted device-seconds: what a call of a step body takes, calibrated by what calls took. Imports no torch."""

from fastvideo_core.cost.device import DeviceIdentity, probe_device, this_device
from fastvideo_core.cost.line import STATED_PRIOR, CallSize, CostLine, mean_cost
from fastvideo_core.cost.model import CostModel
from fastvideo_core.cost.partial import computed_cost, intercepted_key
from fastvideo_core.cost.report import CostReport, ErrorStats, GroupReport
from fastvideo_core.cost.table import GroupKey

__all__ = [
    "STATED_PRIOR",
    "CallSize",
    "CostLine",
    "CostModel",
    "CostReport",
    "DeviceIdentity",
    "ErrorStats",
    "GroupKey",
    "GroupReport",
    "computed_cost",
    "intercepted_key",
    "mean_cost",
    "probe_device",
    "this_device",
]
