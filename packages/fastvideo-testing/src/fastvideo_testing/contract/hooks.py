"""What interceptors and observers are held to, one function a promise; each raises `ContractError`, or passes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from fastvideo_core.card import ModelCard, resolve_ref
from fastvideo_core.errors import FastVideoError, InputError, ParameterError
from fastvideo_core.extend import InterceptorSpec, ObserverSpec, PluginSpec
from fastvideo_core.extend.extensions import Extensions
from fastvideo_core.loop.state import PluginState
from fastvideo_core.runtime.hooks import InstanceHooks
from fastvideo_core.runtime.prepare import plugin_options
from fastvideo_core.runtime.run import RequestRun
from fastvideo_testing.contract.base import ContractError, guided, latents_of, load, make_requests, relative_error
from fastvideo_testing.contract.kept import check_kept
from fastvideo_testing.gate import GateError, Mode, run_gate
from fastvideo_testing.gate.pool import Pool
from fastvideo_testing.samples import extensions_of

__all__ = [
    "check_absent_when_off",
    "check_declared_error",
    "check_exact",
    "check_hook_gate",
    "check_observer_calls",
    "check_observer_reads_only",
    "check_options",
    "check_states",
]

_GATE_MODES = (Mode("interleaved"), Mode("interleaved through bytes", is_moved=True), Mode("batched", max_batch=8))


def check_options(spec: InterceptorSpec | ObserverSpec) -> None:
    """What the description names is there, its options have defaults, and an option that there is not is refused."""
    extensions = _on(spec)
    if spec.options is not None:
        fields = resolve_ref(spec.options).model_fields
        if unknown := sorted(set(spec.request_options) - set(fields)):
            raise ContractError(f"{spec.name}: a request may set options that there are not: {', '.join(unknown)}")
        _check_refused(spec, {"no_such_option": 1})
    if isinstance(spec, InterceptorSpec) and spec.state is not None:
        _check_state_class(spec)
    if not extensions.has_hooks:
        raise ContractError(f"{spec.name}: switched on, and nothing is on")


def check_absent_when_off(spec: InterceptorSpec | ObserverSpec, card: ModelCard, parameters: Mapping[str, Any]) -> None:
    """Off means absent: step bodies are the card's own, and results have the same bits before and after it was on."""
    plain = load(card)
    requests = make_requests(card, parameters)
    before = [latents_of(plain, request) for request in requests]
    hooked = load(card, _hooks(spec, card))
    for request in requests:
        latents_of(hooked, request)
    for loop_id, step in load(card).steps.items():
        if step is not resolve_ref(card.loops[loop_id].step):
            raise ContractError(f"{spec.name}: is off, and the steps of loop {loop_id} are not the card's own")
    for instance, what in ((plain, "on the same model"), (load(card), "on a model that is loaded anew")):
        for request, expected in zip(requests, before, strict=True):
            if not np.array_equal(latents_of(instance, request), expected):
                raise ContractError(f"{spec.name}: is off, and after it was on, results {what} are others than before")


def check_hook_gate(spec: InterceptorSpec | ObserverSpec, card: ModelCard, parameters: Mapping[str, Any]) -> None:
    """Requests among others give what they give alone, also when they go through bytes after every step."""
    hooks = _hooks(spec, card)
    before = _own_state(hooks)
    modes = [mode for mode in _GATE_MODES if mode.max_batch == 1 or getattr(spec, "max_batch", None) is None]
    try:
        run_gate(load(card, hooks), parameters=parameters, modes=modes)
    except GateError as error:
        raise ContractError(f"{spec.name}: {error}") from error
    if isinstance(spec, InterceptorSpec) and (changed := _changes(before, _own_state(hooks))):
        raise ContractError(f"{spec.name}: keeps something of requests on itself: {', '.join(changed)}")


def check_states(spec: InterceptorSpec, card: ModelCard, parameters: Mapping[str, Any]) -> None:
    """What it remembers is in the request's state, of its class, for each branch apart, and as much as it declares."""
    hooks = _hooks(spec, card)
    pool = _LookingPool(load(card, hooks))
    (request,) = make_requests(card, {**parameters, **guided(card)}, 1)
    pool.run([request])
    keys = {key for states in pool.seen for key in states.get(spec.name, {})}
    if spec.state is None:
        if keys:
            raise ContractError(f"{spec.name}: declares no state and has some: {', '.join(sorted(keys))}")
        return
    if not keys:
        raise ContractError(f"{spec.name}: declares a state, and after a whole request there is none")
    branches = {key.rpartition("/")[2] for key in keys}
    if len(branches) < 2 and guided(card):
        raise ContractError(f"{spec.name}: a guided request has states of {', '.join(sorted(branches))} alone")
    shared = _shared_tensors([states.get(spec.name, {}) for states in pool.seen])
    if shared:
        raise ContractError(f"{spec.name}: branches share memory in their states: {', '.join(sorted(shared))}")
    options = plugin_options(request, hooks.extensions)[spec.name]
    check_kept(spec, card, request, options, [states.get(spec.name, {}) for states in pool.seen])


def check_declared_error(spec: InterceptorSpec, card: ModelCard, parameters: Mapping[str, Any]) -> None:
    """With its own defaults, results differ from those without it by no more than it declares."""
    plain, hooked = load(card), load(card, _hooks(spec, card))
    for request in make_requests(card, parameters, 3):
        error = relative_error(latents_of(hooked, request), latents_of(plain, request))
        if error > spec.declared_error:
            raise ContractError(
                f"{spec.name}: a result is off by {error:.3g} relative; it declares {spec.declared_error:g}"
            )


def check_exact(spec: InterceptorSpec, card: ModelCard, parameters: Mapping[str, Any]) -> None:
    """An exact request is refused where it alters results; where it does not, exact results have the same bits."""
    (request,) = make_requests(card, parameters, 1)
    exact = replace(request, request=request.request.model_copy(update={"exact": True}))
    extensions = _on(spec)
    if spec.distribution_altering:
        try:
            plugin_options(exact, extensions)
        except InputError:
            return
        raise ContractError(f"{spec.name}: alters results, and takes an exact request")
    if not np.array_equal(latents_of(load(card, _hooks(spec, card)), exact), latents_of(load(card), exact)):
        raise ContractError(f"{spec.name}: declares that it alters nothing, and an exact result has other bits")


def check_observer_reads_only(spec: ObserverSpec, card: ModelCard, parameters: Mapping[str, Any]) -> None:
    """Nothing that it is shown changes, by whatever way, and results have the same bits."""
    hooks = _hooks(spec, card)
    for name, observer in hooks.observers.items():
        _guard(name, observer)
    instance, plain = load(card, hooks), load(card)
    for request in make_requests(card, parameters):
        if not np.array_equal(latents_of(instance, request), latents_of(plain, request)):
            raise ContractError(f"{spec.name}: results are others with it than without")
    hooks.close()


def check_observer_calls(spec: ObserverSpec, card: ModelCard, parameters: Mapping[str, Any]) -> None:
    """It lives through requests that run together and fail, and may be closed, also before anything has run."""
    for has_run in (False, True):
        hooks = _hooks(spec, card)
        try:
            if has_run:
                run_gate(load(card, hooks), parameters=parameters, modes=_GATE_MODES[2:])
            hooks.close()
        except GateError as error:
            raise ContractError(f"{spec.name}: {error}") from error
        except FastVideoError as error:
            when = "after requests" if has_run else "before anything has run"
            raise ContractError(f"{spec.name}: cannot be closed {when}: {error}") from error


def _on(*specs: PluginSpec) -> Extensions:
    try:
        return extensions_of(*specs)
    except FastVideoError as error:
        raise ContractError(f"it cannot be switched on: {error}") from error


def _hooks(spec: InterceptorSpec | ObserverSpec, card: ModelCard) -> InstanceHooks:
    try:
        return InstanceHooks(_on(spec), card)
    except FastVideoError as error:
        raise ContractError(f"{spec.name} does not work with card {card.model_id}: {error}") from error


def _check_refused(spec: PluginSpec, options: Mapping[str, Any]) -> None:
    kind = "observer" if isinstance(spec, ObserverSpec) else "interceptor"
    try:
        extensions_of(spec, options={f"{kind}.{spec.name}": options})
    except ParameterError:
        return
    raise ContractError(f"{spec.name}: takes an option that there is not: {', '.join(options)}")


def _check_state_class(spec: InterceptorSpec) -> None:
    assert spec.state is not None
    state: Any = resolve_ref(spec.state)
    if PluginState not in getattr(state, "__mro__", ()) or not dataclasses.is_dataclass(state):
        raise ContractError(f"{spec.name}: state {spec.state!r} is no dataclass derived of PluginState")
    if "__slots__" not in vars(state):
        raise ContractError(f"{spec.name}: state {spec.state!r} has no slots, so that it could hold hidden state")


class _LookingPool(Pool):
    """Looks at the interceptors' states after every step."""

    def __init__(self, instance: Any) -> None:
        super().__init__(instance)
        self.seen: list[Mapping[str, Mapping[str, PluginState]]] = []

    def _between_steps(self, run: RequestRun) -> None:
        for node in run.snapshot().values():
            states = getattr(getattr(node, "state", None), "plugin_state", None)
            if states:
                self.seen.append({name: dict(one) for name, one in states.items()})
        super()._between_steps(run)


def _shared_tensors(seen: Sequence[Mapping[str, PluginState]]) -> set[str]:
    """Return keys of one moment whose states have tensors in the same memory."""
    shared: set[str] = set()
    for states in seen:
        owners: dict[int, str] = {}
        for key, state in states.items():
            for name in getattr(state, "__dataclass_fields__", ()):
                value = getattr(state, name)
                if isinstance(value, torch.Tensor) and value.numel():
                    owner = owners.setdefault(value.untyped_storage().data_ptr(), key)
                    if owner != key:
                        shared |= {owner, key}
    return shared


def _own_state(hooks: InstanceHooks) -> dict[str, dict[str, Any]]:
    return {name: _attributes(one) for name, one in hooks.interceptors.items()}


def _attributes(value: Any) -> dict[str, Any]:
    found = dict(getattr(value, "__dict__", {}))
    for cls in type(value).__mro__:
        found |= {name: getattr(value, name, None) for name in getattr(cls, "__slots__", ()) if name != "__dict__"}
        found |= {
            f"{cls.__name__}.{name}": part
            for name, part in vars(cls).items()
            if not name.startswith("__") and not callable(part)
        }
    return {name: (id(part), _content(part)) for name, part in found.items()}


def _content(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): id(part) for key, part in value.items()}
    return [id(part) for part in value] if isinstance(value, (list, set, tuple)) else None


def _changes(before: Mapping[str, Mapping[str, Any]], after: Mapping[str, Mapping[str, Any]]) -> list[str]:
    return sorted(
        f"{name}.{key}"
        for name, parts in after.items()
        for key, value in parts.items()
        if before[name].get(key) != value
    )


def _bits(value: torch.Tensor) -> torch.Tensor:
    return value.detach().reshape(-1).contiguous().view(torch.uint8)


def _guard(name: str, observer: Any) -> None:
    """Compare each tensor before and after an observer has seen it: there are ways around torch's count of writes."""
    look = observer.tensor

    def guarded(tap: str, step: Any, value: torch.Tensor) -> None:
        before = value.clone()
        look(tap, step, value)
        if not torch.equal(_bits(before), _bits(value)):
            raise ContractError(f"{name}: changes {tap!r}, which it only reads")

    observer.tensor = guarded
