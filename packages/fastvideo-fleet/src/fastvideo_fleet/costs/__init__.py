"""What a chunk costs on a worker, as a function of the sessions that share it."""

from fastvideo_fleet.costs.base import ChunkCost, LinearChunkCost, TableChunkCost, chunk_table
from fastvideo_fleet.costs.calibrations import CALIBRATIONS, Calibration, calibration

__all__ = [
    "CALIBRATIONS",
    "Calibration",
    "ChunkCost",
    "LinearChunkCost",
    "TableChunkCost",
    "calibration",
    "chunk_table",
]
