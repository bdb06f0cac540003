"""Observers and interceptors compiled into the step bodies of a model, once, when it is loaded.

A loop that nobody observes or intercepts keeps its step body as it is: what is not used is not there.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Self

import torch

from fastvideo_core.card import LoopSpec, ModelCard, resolve_ref
from fastvideo_core.errors import FastVideoError, PluginError, describe_failure
from fastvideo_core.extend.base import InterceptorSpec, ObserverSpec
from fastvideo_core.extend.extensions import Enabled, Extensions, resolve_plugin_ref
from fastvideo_core.loop.base import StepBody
from fastvideo_core.loop.hooks import (
    BlockCall,
    BlockInterceptor,
    BlockOutcome,
    BranchesInterceptor,
    BranchesOutcome,
    BranchesRunner,
    HookLevel,
    Observer,
    Prediction,
    ResultView,
    RunHooks,
    SelectRows,
    StepCall,
    StepInterceptor,
    StepView,
    hook_levels,
    state_key,
)
from fastvideo_core.loop.state import PluginState
from fastvideo_core.loop.work import StepResult, WorkPlan
from fastvideo_core.runtime.finite import check_finite

__all__ = ["InstanceHooks", "loop_carriers"]

_NO_STATES: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class _Watching:
    """An observer at work."""

    name: str
    plugin: str
    observer: Observer
    wants_tensors: bool


@dataclass(frozen=True, slots=True)
class _Intercepting:
    """An interceptor at work."""

    name: str
    plugin: str
    level: HookLevel
    interceptor: Any
    state: type[Any] | None
    num_kept: Callable[[Any], float]


def loop_carriers(one: Enabled[InterceptorSpec], card: ModelCard) -> tuple[str, ...]:
    """Return the loops of a card that an interceptor works in.

    Raises:
        PluginError: There are none, or one that it is for cannot carry it, or takes too few steps.
    """
    spec, where = one.spec, f"interceptor {one.spec.name!r} of plugin {one.plugin}"
    able = [name for name, loop in card.loops.items() if _can_carry(loop, spec)]
    for name in spec.loops:
        if name in card.loops and name not in able:
            raise PluginError(f"{where} is for loop {name!r}, whose steps of {card.model_id} take no such interceptor")
    carriers = tuple(name for name in able if not spec.loops or name in spec.loops)
    if not carriers:
        raise PluginError(f"{where} stands at each {spec.level}, and no loop of {card.model_id} can carry it")
    for name in carriers:
        pinned = card.loops[name].pinned.get("num_inference_steps")
        if isinstance(pinned, int) and pinned < spec.needs_steps_at_least:
            raise PluginError(
                f"{where} needs {spec.needs_steps_at_least} steps or more, and the weights of {card.model_id} were "
                f"made for {pinned}; switch the plugin off for this card"
            )
    return carriers


def _can_carry(loop: LoopSpec, spec: InterceptorSpec) -> bool:
    if spec.level not in hook_levels(resolve_ref(loop.step)):
        return False
    return "plugin_state" in getattr(resolve_ref(loop.state_schema), "__dataclass_fields__", {})


class InstanceHooks:
    """What is on for one resident model. Made before its weights are read: what does not work with the card is refused.

    Args:
        extensions: What is on.
        card: The model's card.

    Attributes:
        extensions: The same.

    Raises:
        PluginError: Something does not work with the card, or cannot be made.
    """

    def __init__(self, extensions: Extensions, card: ModelCard) -> None:
        self.extensions = extensions
        self._card = card
        self._observers = {name: _watching(name, one) for name, one in extensions.observers.items()}
        self._carriers = {name: loop_carriers(one, card) for name, one in extensions.interceptors.items()}
        self._interceptors = {name: _intercepting(one) for name, one in extensions.interceptors.items()}

    @property
    def observers(self) -> dict[str, Observer]:
        """The observers at work, by name."""
        return {name: one.observer for name, one in self._observers.items()}

    @property
    def interceptors(self) -> dict[str, Any]:
        """The interceptors at work, by name."""
        return {name: one.interceptor for name, one in self._interceptors.items()}

    @classmethod
    def of(cls, extensions: Extensions | None, card: ModelCard) -> Self | None:
        """Return what is on for a model of a card; None if nothing is."""
        return None if extensions is None or not extensions.has_hooks else cls(extensions, card)

    def wrap(self, loop_id: str, body: StepBody) -> StepBody:
        """Return a loop's step body with its hooks; the body itself if it has none."""
        observers = tuple(
            self._observers[name]
            for name, one in self.extensions.observers.items()
            if not one.spec.loops or loop_id in one.spec.loops
        )
        here = [one for name, one in self._interceptors.items() if loop_id in self._carriers[name]]
        steps = tuple(one for one in here if one.level == "step")
        blocks = tuple(one for one in here if one.level == "block")
        return _HookedBody(body, observers, steps, blocks) if observers or here else body

    def run_hooks(self, loop_id: str, options: Mapping[str, Any]) -> RunHooks | None:
        """Return what the plans of a loop of one request carry; None if no interceptor works in it.

        Args:
            loop_id: The loop.
            options: Options of all interceptors for the request, as `Extensions.check_request` gave them.
        """
        here = [one for name, one in self.extensions.interceptors.items() if loop_id in self._carriers[name]]
        if not here:
            return None
        limits = [one.spec.max_batch for one in here if one.spec.max_batch is not None]
        if limits and (own := self._card.loops[loop_id].max_batch) is not None:
            limits.append(own)
        chosen = {one.spec.name: options[one.spec.name] for one in here}
        return RunHooks(chosen, min(limits, default=None), _signature(chosen), self._num_kept(chosen))

    def _num_kept(self, options: Mapping[str, Any]) -> dict[HookLevel, float]:
        """Return how many tensors interceptors keep with some options, by what each is as large as."""
        kept: dict[HookLevel, float] = {}
        for name, chosen in options.items():
            one = self._interceptors[name]
            number = _asked(one, one.num_kept, chosen)
            if not isinstance(number, (int, float)) or not 0 <= number < math.inf:
                raise PluginError(f"{_name(one)} says that a state keeps {number!r} tensors; allowed: 0 or more")
            kept[one.level] = kept.get(one.level, 0.0) + number
        return kept

    def close(self) -> None:
        """Let the observers write what they have.

        Raises:
            PluginError: One could not; the others have.
        """
        failed = []
        for one in self._observers.values():
            try:
                one.observer.close()
            except Exception as error:  # noqa: BLE001 - a plugin may raise anything; the others are closed all the same
                failed.append(
                    f"observer {one.name!r} of plugin {one.plugin} could not close: {describe_failure(error)}"
                )
        if failed:
            raise PluginError("; ".join(failed))


def _watching(name: str, one: Enabled[ObserverSpec]) -> _Watching:
    return _Watching(name, one.plugin, _make(one), "tensors" in one.spec.wants)


def _intercepting(one: Enabled[InterceptorSpec]) -> _Intercepting:
    state = None if one.spec.state is None else resolve_plugin_ref(one.plugin, one.spec, "state")
    if state is not None and not (isinstance(state, type) and issubclass(state, PluginState)):
        raise PluginError(
            f"{one.plugin}: state of {one.spec.name!r}, {one.spec.state!r}, is not derived of PluginState"
        )
    num_kept = _one if state is not None else _none
    if one.spec.num_kept is not None:
        num_kept = resolve_plugin_ref(one.plugin, one.spec, "num_kept")
    return _Intercepting(one.spec.name, one.plugin, one.spec.level, _make(one), state, num_kept)


def _one(_: Any) -> float:
    return 1.0


def _none(_: Any) -> float:
    return 0.0


def _signature(options: Mapping[str, Any]) -> str:
    return "; ".join(f"{name} {one.model_dump_json() if one is not None else ''}" for name, one in options.items())


def _make(one: Enabled[Any]) -> Any:
    make = resolve_plugin_ref(one.plugin, one.spec)
    try:
        return make(one.options)
    except FastVideoError:
        raise
    except Exception as error:
        raise PluginError(f"{one.plugin}: {one.spec.name!r} cannot be made: {describe_failure(error)}") from error


class _HookedBody:
    """A step body with its hooks; it keeps nothing from one call to the next."""

    def __init__(
        self,
        body: StepBody,
        observers: tuple[_Watching, ...],
        steps: tuple[_Intercepting, ...],
        blocks: tuple[_Intercepting, ...],
    ) -> None:
        self._body = body
        self._observers = observers
        self._viewers = tuple(one for one in observers if one.wants_tensors)
        self._steps = steps
        self._blocks = blocks

    def __call__(self, instance: Any, plans: Sequence[WorkPlan[Any]], ctx: Any) -> Sequence[StepResult[Any]]:
        """Run a call; where tensors are looked at, one plan after the other."""
        if self._viewers and len(plans) > 1:
            return [result for plan in plans for result in self(instance, [plan], ctx)]
        views = [StepView.of(plan, str(instance.device)) for plan in plans]
        for one in self._observers:
            _told(one, one.observer.step_started, views)
        hooks = _CallHooks(self._steps, self._blocks, plans, views) if self._steps or self._blocks else None
        started_at = time.perf_counter()
        results = self._body(instance, plans, _HookedContext(ctx, hooks, self._viewers, views[0]))
        if hooks is not None:
            results = hooks.completed(results)
        if self._observers:
            seconds = time.perf_counter() - started_at
            results = check_finite(results)
            seen = [ResultView(one.is_finite is not False, one.computed_share, one.scalars) for one in results]
            for one in self._observers:
                _told(one, one.observer.step_finished, views, seen, seconds)
        return results


def _told(one: _Watching, tell: Callable[..., None], *what: Any) -> None:
    try:
        tell(*what)
    except FastVideoError:
        raise
    except Exception as error:
        raise PluginError(f"observer {one.name!r} of plugin {one.plugin} failed: {describe_failure(error)}") from error


class _HookedContext:
    """A step's context, with taps that observers see, and with what interceptors ask."""

    __slots__ = ("_ctx", "_view", "_viewers", "blocks_runner", "hooks")

    def __init__(self, ctx: Any, hooks: _CallHooks | None, viewers: tuple[_Watching, ...], view: StepView) -> None:
        self._ctx = ctx
        self._viewers = viewers
        self._view = view
        self.hooks = hooks
        # Compiled blocks cannot be looked into, nor run by somebody else.
        is_eager = viewers or (hooks is not None and hooks.has_block_interceptors)
        self.blocks_runner = None if is_eager else getattr(ctx, "blocks_runner", None)

    @property
    def is_tapped(self) -> bool:
        return bool(self._viewers) or self._ctx.is_tapped

    def tap(self, name: str, value: torch.Tensor) -> None:
        self._ctx.tap(name, value)
        for one in self._viewers:
            shown = value.detach()
            version = shown._version  # noqa: SLF001 - torch counts writes there and nowhere else
            _told(one, one.observer.tensor, name, self._view, shown)
            if shown._version != version:  # noqa: SLF001
                raise PluginError(f"observer {one.name!r} of plugin {one.plugin} changed {name!r}, which it only reads")


class _CallHooks:
    """What the interceptors ask of one call of a step body, and what they gave in it."""

    def __init__(
        self,
        steps: tuple[_Intercepting, ...],
        blocks: tuple[_Intercepting, ...],
        plans: Sequence[WorkPlan[Any]],
        views: Sequence[StepView],
    ) -> None:
        self._steps = steps
        self._blocks = blocks
        self._views = views
        self._works = [plan.plugins for plan in plans]
        self._states: list[dict[str, dict[str, PluginState]]] = [{} for _ in plans]
        self._shares: dict[int, list[float]] = {}
        self._wanted: Sequence[Prediction] = ()
        if any(work is None for work in self._works):
            raise PluginError(f"{plans[0].where()} was planned without the interceptors that are on")

    @property
    def has_step_interceptors(self) -> bool:
        return bool(self._steps)

    @property
    def has_block_interceptors(self) -> bool:
        return bool(self._blocks)

    def predict(
        self, wanted: Sequence[Prediction], compute: Callable[[Sequence[int]], Sequence[torch.Tensor]]
    ) -> list[torch.Tensor]:
        self._wanted = wanted
        found = {index: answer for index, one in enumerate(wanted) if (answer := self._answer(index, one)) is not None}
        left = [index for index in range(len(wanted)) if index not in found]
        self._shares |= {index: [0.0] for index in found}
        if left:
            found |= dict(zip(left, compute(left), strict=True))
        for index, one in enumerate(wanted):
            self._record(index, one, found[index], is_computed=index in left)
        return [found[index] for index in range(len(wanted))]

    def blocks_runner(self, index: int, component: str, branch: str) -> Callable[..., torch.Tensor] | None:
        if not self._blocks:
            return None
        (one,) = self._blocks
        interceptor: BlockInterceptor = one.interceptor
        key, call = state_key(component, branch), self._block_call(index, one, component, branch)

        def run(blocks: Any, hidden: torch.Tensor, *inputs: Any) -> torch.Tensor:
            state = self._known(index, one).get(key)
            outcome = _asked(one, interceptor.run_blocks, call, state, tuple(blocks), hidden, *inputs)
            if not isinstance(outcome, BlockOutcome):
                raise PluginError(f"{_name(one)} gave a {type(outcome).__name__}; allowed: BlockOutcome")
            return self._ran(index, one, [key], [outcome.state], outcome)

        return run

    def branches_runner(self, index: int, component: str, branches: Sequence[str]) -> BranchesRunner | None:
        if not self._blocks or not hasattr(self._blocks[0].interceptor, "run_branches"):
            return None
        (one,) = self._blocks
        interceptor: BranchesInterceptor = one.interceptor
        keys = [state_key(component, branch) for branch in branches]
        calls = [self._block_call(index, one, component, branch) for branch in branches]

        def run(blocks: Any, hidden: torch.Tensor, select: SelectRows, *inputs: Any) -> torch.Tensor:
            known = self._known(index, one)
            states = [known.get(key) for key in keys]
            outcome = _asked(one, interceptor.run_branches, calls, states, tuple(blocks), hidden, select, *inputs)
            if not isinstance(outcome, BranchesOutcome):
                raise PluginError(f"{_name(one)} gave a {type(outcome).__name__}; allowed: BranchesOutcome")
            if len(outcome.states) != len(keys):
                raise PluginError(f"{_name(one)} gave {len(outcome.states)} states; allowed: one for each of {keys}")
            return self._ran(index, one, keys, outcome.states, outcome)

        return run

    def _block_call(self, index: int, one: _Intercepting, component: str, branch: str) -> BlockCall:
        wanted = self._wanted[index] if self._wanted else None
        place = (None, None) if wanted is None else (wanted.index, wanted.num_predictions)
        return BlockCall(self._views[index], component, branch, self._options(index, one), *place)

    def _ran(
        self,
        index: int,
        one: _Intercepting,
        keys: Sequence[str],
        states: Sequence[PluginState | None],
        outcome: BlockOutcome | BranchesOutcome,
    ) -> torch.Tensor:
        self._keep(index, one, {key: state for key, state in zip(keys, states, strict=True) if state is not None})
        share = outcome.computed_share
        if not 0 <= share <= 1:
            raise PluginError(f"{_name(one)} says that a share of {share} of the blocks ran; allowed: 0 to 1")
        self._shares.setdefault(index, []).append(share)
        return outcome.hidden

    def completed(self, results: Sequence[StepResult[Any]]) -> list[StepResult[Any]]:
        """Return results with the interceptors' new states."""
        return [
            replace(result, plugin_states=states or None, computed_share=self._share(index))
            for index, (result, states) in enumerate(zip(results, self._states, strict=True))
        ]

    def _share(self, index: int) -> float:
        shares = self._shares.get(index, [1.0])
        return sum(shares) / len(shares)

    def _answer(self, index: int, wanted: Prediction) -> torch.Tensor | None:
        for one in self._steps:
            interceptor: StepInterceptor = one.interceptor
            call = StepCall(self._views[index], wanted, self._options(index, one))
            answer: torch.Tensor | None = _asked(one, interceptor.answer, call, self._branches(index, one, wanted))
            if answer is not None:
                expected = (len(wanted.branches), *wanted.sample.shape[1:])
                if tuple(answer.shape[:1]) != expected[:1]:
                    raise PluginError(f"{_name(one)} answered with shape {tuple(answer.shape)}; allowed: {expected}")
                return answer
        return None

    def _record(self, index: int, wanted: Prediction, prediction: torch.Tensor, *, is_computed: bool) -> None:
        for one in self._steps:
            interceptor: StepInterceptor = one.interceptor
            call = StepCall(self._views[index], wanted, self._options(index, one))
            states = self._branches(index, one, wanted)
            new = _asked(one, interceptor.record, call, states, prediction, is_computed=is_computed)
            if unknown := sorted(set(new) - set(wanted.branches)):
                raise PluginError(f"{_name(one)} gave states of {unknown}; allowed: {', '.join(wanted.branches)}")
            self._keep(index, one, {state_key(wanted.component, branch): state for branch, state in new.items()})

    def _branches(self, index: int, one: _Intercepting, wanted: Prediction) -> dict[str, PluginState]:
        known = self._known(index, one)
        keys = {branch: state_key(wanted.component, branch) for branch in wanted.branches}
        return {branch: known[key] for branch, key in keys.items() if key in known}

    def _known(self, index: int, one: _Intercepting) -> Mapping[str, PluginState]:
        work = self._works[index]
        assert work is not None
        return work.states.get(one.name, _NO_STATES)

    def _options(self, index: int, one: _Intercepting) -> Any:
        work = self._works[index]
        assert work is not None
        return work.options[one.name]

    def _keep(self, index: int, one: _Intercepting, states: Mapping[str, PluginState]) -> None:
        for state in states.values():
            if one.state is None or type(state) is not one.state:
                allowed = "none: its description names no state" if one.state is None else one.state.__qualname__
                raise PluginError(f"{_name(one)} gave a state of class {type(state).__qualname__}; allowed: {allowed}")
        if states:
            self._states[index].setdefault(one.name, {}).update(states)


def _asked(one: _Intercepting, ask: Callable[..., Any], *what: Any, **named: Any) -> Any:
    """Ask an interceptor; out of memory stays what it is, so that the runtime can make room."""
    try:
        return ask(*what, **named)
    except (FastVideoError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise PluginError(f"{_name(one)} failed: {describe_failure(error)}") from error


def _name(one: _Intercepting) -> str:
    return f"interceptor {one.name!r} of plugin {one.plugin}"
