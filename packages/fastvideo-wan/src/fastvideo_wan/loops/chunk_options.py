"""What a card's loop, and a request, say about the lengths of a stream's chunks and about their noise levels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastvideo_wan.loops.chunk_schedule import ChunkSchedule, make_schedule
from fastvideo_wan.models.chunks import ChunkRule

__all__ = ["levels_of", "rule_of"]


def rule_of(options: Mapping[str, Any]) -> ChunkRule:
    """Return the lengths that a card's loop states: `chunk_frames`, `window_frames`, `sink_frames`, `first_frames`."""
    return ChunkRule(
        int(options["chunk_frames"]),
        int(options["window_frames"]),
        int(options.get("sink_frames", 0)),
        options.get("first_frames"),
    )


def levels_of(options: Mapping[str, Any], parameters: Mapping[str, Any]) -> ChunkSchedule:
    """Return the noise levels of a chunk: the card's, or the first of them, where a request takes fewer.

    Raises:
        ParameterError: The flow shift is none.
    """
    steps = tuple(options["steps"])
    count = int(parameters["num_inference_steps"])
    return make_schedule(steps[:count], float(parameters["flow_shift"]))
