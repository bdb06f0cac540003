"""Which versions of flash-attn are installed, and whether they can run here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

import importlib_metadata
from packaging.version import Version

from fastvideo_core.errors import ResourceError, describe_failure

__all__ = [
    "KERNELS",
    "Kernel",
    "best_kernel",
    "report_flash2",
    "report_flash3",
    "why_not",
    "why_not_flash",
    "why_not_flash2",
    "why_not_flash3",
]


@dataclass(frozen=True, slots=True)
class Kernel:
    """One major version of flash-attn.

    Attributes:
        number: The major version.
        distributions: Names under which it is distributed.
        module: Module that has `flash_attn_func`.
        least: Oldest release that is used.
        capabilities: Least CUDA compute capability, and the first above it on which it does not run; None for no end.
        remedy: How to get it.
    """

    number: int
    distributions: tuple[str, ...]
    module: str
    least: str
    capabilities: tuple[tuple[int, int], tuple[int, int] | None]
    remedy: str


KERNELS = {
    2: Kernel(2, ("flash-attn",), "flash_attn", "2.6", ((8, 0), None), "pip install flash-attn --no-build-isolation"),
    3: Kernel(
        3,
        ("flash-attn-3", "flashattn-hopper"),
        "flash_attn_interface",
        "3.0.0b1",
        ((9, 0), (10, 0)),
        "build it from the folder hopper of the flash-attention repository",
    ),
}
"""By major version.

Source: the interfaces and requirements of github.com/Dao-AILab/flash-attention, flash_attn/flash_attn_interface.py and
hopper/flash_attn_interface.py.
"""


def why_not(number: int) -> str | None:
    """Return why a version cannot run on this machine, or None if it can."""
    kernel = KERNELS[number]
    return _why_not_installed(kernel) or _why_not_on_device(kernel) or _why_not_importable(kernel)


def why_not_flash2() -> str | None:
    """Return why version 2 cannot run here, or None if it can."""
    return why_not(2)


def why_not_flash3() -> str | None:
    """Return why version 3 cannot run here, or None if it can."""
    return why_not(3)


def why_not_flash() -> str | None:
    """Return why neither version can run here, or None if one can."""
    reasons = [why_not(3), why_not(2)]
    return None if None in reasons else "; ".join(reason for reason in reasons if reason is not None)


def report_flash2() -> str:
    """Return a line on version 2 for the doctor; see `report_flash3`."""
    return _report(2)


def report_flash3() -> str:
    """Return a line on version 3 for the doctor.

    Raises:
        ResourceError: It cannot run here; says why.
    """
    return _report(3)


@cache
def best_kernel() -> int:
    """Return the newest version that can run here; the answer holds for as long as the process lives.

    Raises:
        ResourceError: None can.
    """
    for number in sorted(KERNELS, reverse=True):
        if why_not(number) is None:
            return number
    raise ResourceError(f"flash-attn cannot run here: {why_not_flash()}")


def _report(number: int) -> str:
    reason = why_not(number)
    if reason is not None:
        raise ResourceError(reason)
    import torch

    return f"{_installed(KERNELS[number])}, on {torch.cuda.get_device_name()}"


def _installed(kernel: Kernel) -> Version | None:
    """Return the installed release, or None."""
    for name in kernel.distributions:
        try:
            return Version(importlib_metadata.version(name))
        except importlib_metadata.PackageNotFoundError:
            continue
    return None


def _why_not_installed(kernel: Kernel) -> str | None:
    version, name = _installed(kernel), f"flash-attn {kernel.number}"
    if version is None:
        return f"{name} is not installed; {kernel.remedy}"
    if not Version(kernel.least) <= version < Version(str(kernel.number + 1)):
        return f"{name} is used from {kernel.least} on, and {version} is installed; {kernel.remedy}"
    return None


def _why_not_on_device(kernel: Kernel) -> str | None:
    import torch

    if not torch.cuda.is_available():
        return f"flash-attn {kernel.number} runs on CUDA devices, and torch {torch.__version__} finds none"
    capability = torch.cuda.get_device_capability()
    least, end = kernel.capabilities
    if capability < least or (end is not None and capability >= end):
        allowed = f"{least[0]}.{least[1]}" + (" or newer" if end is None else f" up to below {end[0]}.{end[1]}")
        return (
            f"flash-attn {kernel.number} runs on compute capability {allowed}, and {torch.cuda.get_device_name()} has "
            f"{capability[0]}.{capability[1]}"
        )
    return None


def _why_not_importable(kernel: Kernel) -> str | None:
    """Import it: kernels that were built for another torch are found out here, before any weights are read."""
    try:
        function: Callable[..., Any] | None = getattr(import_module(kernel.module), "flash_attn_func", None)
    except Exception as error:  # noqa: BLE001 - a foreign library that is broken may raise anything
        return f"flash-attn {kernel.number} cannot be imported: {describe_failure(error)}"
    return None if function is not None else f"module {kernel.module} has no flash_attn_func; {kernel.remedy}"
