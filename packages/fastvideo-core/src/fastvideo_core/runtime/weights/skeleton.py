"""A module built without memory for its weights.

Parameters become meta tensors the moment they are registered, so that initialising them costs nothing and at most one
of them is ever allocated. Buffers are made for real: those that a checkpoint does not hold, such as position tables,
have their values from the constructor alone, which a module built wholly on the meta device would have lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from typing import Any, TypeVar

import torch
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

ModuleT = TypeVar("ModuleT", bound=torch.nn.Module)

# The parameters seen while this context builds a module, and their twins without memory. A context variable, so that
# a module that another thread builds at the same time is left alone.
_twins: ContextVar[WeakTensorKeyDictionary | None] = ContextVar("fastvideo_skeleton_twins", default=None)


def build_skeleton(build: Callable[[], ModuleT]) -> ModuleT:
    """Build a module whose parameters are on the meta device and whose buffers are real.

    A parameter that two modules share stays shared. Must not be called from inside `build`.

    Args:
        build: Makes the module, on the CPU.
    """
    token = _twins.set(WeakTensorKeyDictionary())
    try:
        with _NoInitialisation():
            return build()
    finally:
        _twins.reset(token)


class _NoInitialisation(TorchFunctionMode):
    """Skips filling of tensors that have no memory; holds for the thread that enters it.

    It would be harmless, but the first `normal_` on the meta device makes torch import its whole compiler: seconds.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        _types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        target = args[0] if args else (kwargs or {}).get("tensor")
        if isinstance(target, torch.Tensor) and target.is_meta and _is_initialiser(func):
            return target
        return func(*args, **(kwargs or {}))


def _is_initialiser(func: Callable[..., Any]) -> bool:
    name = getattr(func, "__name__", "")
    in_init = getattr(func, "__module__", None) == "torch.nn.init" and name.endswith("_")
    return in_init or name in ("normal_", "uniform_", "trunc_normal_", "zero_", "fill_")


def _without_memory(_module: torch.nn.Module, _name: str, parameter: torch.nn.Parameter) -> torch.nn.Parameter | None:
    twins = _twins.get()
    # Other kinds of parameter (lazy, quantised) have constructors of their own: they stay as they are.
    if twins is None or parameter.is_meta or type(parameter) is not torch.nn.Parameter:
        return None
    twin: torch.nn.Parameter | None = twins.get(parameter)
    if twin is None:
        empty = torch.empty_like(parameter, device="meta")
        twin = torch.nn.Parameter(empty, requires_grad=parameter.requires_grad)
        twin.__dict__.update(parameter.__dict__)
        twins[parameter] = twin
    return twin


# Once for the process, and idle unless `build_skeleton` runs: adding and removing it around each build would change a
# table that other threads may be walking.
# (torch documents that the hook may return a parameter, its annotation says None.)
register_module_parameter_registration_hook(_without_memory)  # type: ignore[arg-type]
