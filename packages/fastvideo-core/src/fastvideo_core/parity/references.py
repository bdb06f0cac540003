"""The independent implementations that parity is measured against, imported here on demand and nowhere else."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from fastvideo_core.errors import ParityError

__all__ = ["load_reference"]


def load_reference(name: str) -> ModuleType:
    """Import a reference implementation.

    Args:
        name: Module name, for instance "diffusers".

    Raises:
        ParityError: It is not installed.
    """
    try:
        return import_module(name)
    except ImportError as error:
        raise ParityError(
            f"the reference {name!r} cannot be imported ({error}); install it to compare with it: pip install {name}"
        ) from error
