"""Processes that share every batch: they average gradients once a step and are otherwise alike."""

from __future__ import annotations

import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.multiprocessing.spawn import spawn

PARENT_POLL_S = 1.0


@dataclass(frozen=True, slots=True)
class Worker:
    """This process's place among `num_workers`; rank 0 writes files and lines."""

    rank: int = 0
    num_workers: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this process writes what the run leaves behind."""
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """Add a tensor over all processes, in place; returns it."""
        if self.num_workers > 1:
            dist.all_reduce(values)
        return values

    def average_gradients(self, params: Iterable[nn.Parameter]) -> None:
        """Replace every gradient by its mean over the processes."""
        if self.num_workers == 1:
            return
        grads = [param.grad for param in params if param.grad is not None]
        flat = self.sum(torch.cat([grad.flatten() for grad in grads])) / self.num_workers
        for grad, part in zip(grads, flat.split([grad.numel() for grad in grads]), strict=True):
            grad.copy_(part.view_as(grad))

    def rng(self, seed: int, step: int) -> random.Random:
        """Return the generator of this process's share of a step: a function of its arguments alone."""
        return random.Random(f"{seed}/{step}/{self.rank}")

    def shared_rng(self, seed: int, step: int) -> random.Random:
        """Return the generator of what all processes draw alike in a step."""
        return random.Random(f"{seed}/{step}")

    def torch_rng(self, seed: int, step: int) -> torch.Generator:
        """Return the same for tensors."""
        return torch.Generator().manual_seed(self.rng(seed, step).getrandbits(60))


def run_workers(job: Callable[..., None], num_workers: int, *args: object) -> None:
    """Run `job(worker, *args)` in `num_workers` single-threaded processes, or in this one if it is alone.

    Raises:
        torch.multiprocessing.ProcessRaisedException: If a process fails; the others are ended.
    """
    if num_workers == 1:
        job(Worker(), *args)
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    spawn(_enter, args=(job, num_workers, port, os.getpid(), args), nprocs=num_workers)


def _end_with(parent_id: int) -> None:
    """End this process soon after its parent has ended, however that ended; else it would go on by itself."""
    while os.getppid() == parent_id:
        time.sleep(PARENT_POLL_S)
    os._exit(1)


def _enter(
    rank: int, job: Callable[..., None], num_workers: int, port: int, parent_id: int, args: tuple[object, ...]
) -> None:
    threading.Thread(target=_end_with, args=(parent_id,), daemon=True).start()
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=num_workers)
    try:
        job(Worker(rank, num_workers), *args)
    finally:
        dist.destroy_process_group()
