"""Capture of work on a CUDA device, and its replay on other inputs of the same shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fastvideo_core.runtime.tensor_trees import flatten_tree

__all__ = ["CudaGraphs"]

_NUM_WARMUPS = 2


class CudaGraphs:
    """Captures CUDA graphs that share one pool of memory; they are replayed on one thread, one after another."""

    def __init__(self) -> None:
        self._pool: Any = None

    def capture(self, function: Callable[[list[Tensor]], Any], tensors: list[Tensor]) -> Callable[[list[Tensor]], Any]:
        """Record a function of tensors.

        Args:
            function: What is recorded; it does not wait for the device, and its result is a structure of tensors.
            tensors: Inputs of the shapes that it will always have; they are copied.

        Returns:
            A function that runs the record on other inputs, and returns a result of its own.
        """
        static = [tensor.clone() for tensor in tensors]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(_NUM_WARMUPS):
                function(static)
        torch.cuda.current_stream().wait_stream(side)
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        # Only this thread's calls count: another one may well be busy with the device.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            output = function(static)
        outputs, rebuild, _ = flatten_tree(output)

        def replay(inputs: list[Tensor]) -> Any:
            for target, source in zip(static, inputs, strict=True):
                target.copy_(source)
            graph.replay()
            # The next replay writes over the record's own memory.
            return rebuild([tensor.clone() for tensor in outputs])

        return replay
