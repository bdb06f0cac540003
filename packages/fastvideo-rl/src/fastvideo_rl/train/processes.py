"""One process or several: who this one is, and what all of them agree on."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from fastvideo_core.errors import ConfigError

__all__ = ["Processes"]


@dataclass(frozen=True, slots=True)
class Processes:
    """The processes of a run.

    Attributes:
        rank: This one.
        size: How many there are.
        mesh: Their device mesh; None where there is one.
    """

    rank: int = 0
    size: int = 1
    mesh: Any = None

    @classmethod
    def join(cls, device: str) -> Processes:
        """Meet the other processes, if the environment (as torchrun sets it) says that there are any.

        Raises:
            ConfigError: The environment says so incompletely.
        """
        size = int(os.environ.get("WORLD_SIZE", "1"))
        if size == 1:
            return cls()
        missing = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
        if missing:
            raise ConfigError("not set, with more than one process; start them with torchrun", field=missing[0])
        is_accelerated = device.startswith("cuda") or (device == "auto" and torch.cuda.is_available())
        kind = "cuda" if is_accelerated else "cpu"
        if is_accelerated:
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        if not dist.is_initialized():
            dist.init_process_group("nccl" if kind == "cuda" else "gloo")
        from torch.distributed.device_mesh import init_device_mesh

        return cls(dist.get_rank(), size, init_device_mesh(kind, (size,), mesh_dim_names=("fsdp",)))

    @property
    def is_first(self) -> bool:
        """Whether this one writes files and logs."""
        return self.rank == 0

    def shard(self, module: nn.Module) -> None:
        """Spread a module's weights over the processes (FSDP2); each gathers them for its forward."""
        if self.mesh is None:
            return
        from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

        fully_shard(module, mesh=self.mesh)
        for name in ("prepare_context", "forward_chunk"):
            if hasattr(module, name):
                register_fsdp_forward_method(module, name)

    def total(self, value: float) -> float:
        """Return the sum over all processes."""
        return self._reduce(value, dist.ReduceOp.SUM)

    def largest(self, value: float) -> float:
        """Return the largest over all processes."""
        return self._reduce(value, dist.ReduceOp.MAX)

    def means(self, values: dict[str, float]) -> dict[str, float]:
        """Return means over all processes, of the same names in each."""
        return {name: self.total(values[name]) / self.size for name in sorted(values)}

    def wait(self) -> None:
        """Wait until all are here."""
        if self.size > 1:
            dist.barrier()

    def _reduce(self, value: float, how: Any) -> float:
        if self.size == 1:
            return value
        tensor = torch.tensor([value], dtype=torch.float64, device=self.mesh.device_type)
        dist.all_reduce(tensor, how)
        return float(tensor)
