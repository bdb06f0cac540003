"""What a model family is held to, one function a promise; each raises `ContractError`, or passes."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from fastvideo_core.cache import tensors_in
from fastvideo_core.card import ModelCard
from fastvideo_core.errors import InputError
from fastvideo_core.loop.driver import LoopRun
from fastvideo_core.loop.state import encode_state
from fastvideo_core.parity import run_ladder
from fastvideo_core.request.base import ActionPart, ImagePart, ModalPart, OutputSpec, Request, TextPart, VideoPart
from fastvideo_core.runtime.durable import CheckpointPolicy, StateStore
from fastvideo_core.runtime.durable.base import RunningNode
from fastvideo_core.runtime.instance import ModelInstance
from fastvideo_core.runtime.prepare import prepare_request
from fastvideo_core.runtime.run import RequestRun
from fastvideo_core.runtime.validate import card_problems, checkpoint_problems
from fastvideo_core.runtime.weights.whole import whole_checkpoint
from fastvideo_testing.contract.base import ContractError, latents_of, load, make_requests
from fastvideo_testing.gate import GateError, run_gate
from fastvideo_testing.gate.pool import Pool

__all__ = [
    "check_bad_inputs",
    "check_cancellation",
    "check_card",
    "check_costs",
    "check_fresh_process",
    "check_gate",
    "check_next",
    "check_parity",
]


_STOP_AFTER = 2
"""Steps of the generative loop after which a request is stopped."""


def check_card(card: ModelCard, *, has_files: bool = True) -> None:
    """The card does not contradict itself, all that it names is there, and JSON gives it back as it was.

    Args:
        card: The card.
        has_files: Whether its checkpoint is to be on this machine.
    """
    if ModelCard.from_json(card.model_dump_json(), origin="the card's own JSON") != card:
        raise ContractError(f"card {card.model_id} is another one after its JSON is read")
    if problems := [*card_problems(card), *(checkpoint_problems(card) if has_files else ())]:
        raise ContractError(f"card {card.model_id}: {'; '.join(problems)}")


def check_next(card: ModelCard, parameters: Mapping[str, Any]) -> None:
    """`next` launches nothing, draws nothing, changes nothing, and says the same again."""
    (prepared,) = make_requests(card, parameters, 1)
    pool = _AskingPool(load(card))
    pool.run([prepared])
    if pool.problem is not None:
        raise ContractError(pool.problem)


def check_fresh_process(card: ModelCard, parameters: Mapping[str, Any], folder: Path) -> None:
    """A request that is stopped between two steps goes on in a fresh process, with the same result."""
    instance = load(card)
    (prepared,) = make_requests(card, parameters, 1)
    expected = latents_of(instance, prepared)
    policy = CheckpointPolicy(max_share=1e9, min_at_risk_s=0.0)
    store_folder, result = folder / "store", folder / "result.npy"
    (folder / "card.json").write_text(card.model_dump_json(), encoding="utf-8")
    with StateStore(store_folder, policy=policy) as store:
        store.accept(prepared, instance)
        pool = _StoppingPool(instance, store)
        pool.run([prepared])
    code = "from fastvideo_testing.contract.resume import main; main()"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-c", code, str(folder / "card.json"), str(store_folder), str(result)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise ContractError(f"card {card.model_id}: a stopped request does not go on in a fresh process: {last}")
    if not np.array_equal(np.load(result), expected):
        raise ContractError(
            f"card {card.model_id}: a request stopped after {pool.num_steps} steps gives another result in a fresh "
            "process: something that it needs is not in its state"
        )


def check_gate(card: ModelCard, parameters: Mapping[str, Any]) -> None:
    """Requests among others give what they give alone; nothing of them is kept outside of their states."""
    try:
        run_gate(load(card), parameters=parameters)
    except GateError as error:
        raise ContractError(str(error)) from error


def check_cancellation(card: ModelCard, parameters: Mapping[str, Any]) -> None:
    """A cancelled request ends at the next boundary, and its tensors are freed at once."""
    instance = load(card)
    (prepared,) = make_requests(card, parameters, 1)
    pool = _StoppingPool(instance)
    (outcome,) = pool.run([prepared]).values()
    if outcome.error is None:
        raise ContractError(f"card {card.model_id}: a request that is cancelled between two steps makes a result")
    outcome.error = None
    gc.collect()
    kept = sum(1 for one in pool.tensors if one() is not None)
    if kept:
        raise ContractError(f"card {card.model_id}: {kept} tensors of a cancelled request's states are still there")


def check_costs(card: ModelCard, small: Mapping[str, Any], large: Mapping[str, Any], *, factor: float = 2.0) -> None:
    """The cost of generative steps grows with their size, and is within a factor of the operations that are counted."""
    instance = load(card)
    costs = {name: _step_costs(instance, given) for name, given in (("small", small), ("large", large))}
    for loop_id, (stated, counted) in costs["small"].items():
        larger = costs["large"][loop_id][0]
        where = f"loop {loop_id} of {card.model_id}"
        if not larger > stated > 0:
            raise ContractError(f"{where}: larger steps cost {larger:.3g} operations, smaller ones {stated:.3g}")
        ratio = stated / counted if counted else float("inf")
        if not 1 / factor <= ratio <= factor:
            raise ContractError(
                f"{where}: states {stated:.3g} operations, counted are {counted:.3g}; allowed: a factor of {factor:g}"
            )


def check_parity(card: ModelCard) -> None:
    """Every comparison that the card declares runs and passes; a card may declare none."""
    if not card.parity.tests:
        return
    with whole_checkpoint(card.checkpoint) as folder:
        report = run_ladder(card, load(card), folder)
    if failed := [f"{one.spec.test_id} {one.status}: {one.reason}" for one in report.checks if one.status != "passed"]:
        raise ContractError(f"card {card.model_id}: {'; '.join(failed)}")


def check_bad_inputs(card: ModelCard) -> None:
    """What the card does not take is refused before any work, with the field."""
    for name, task in card.capabilities.tasks.items():
        good = Request(task=name, inputs=_inputs(card, name))
        prepare_request(card, good)
        bad: list[tuple[str, dict[str, Any]]] = [
            ("no_such_parameter", {"parameters": {"no_such_parameter": 1}}),
            ("outputs", {"outputs": OutputSpec(artifacts=("no_such_output",))}),
        ]
        bad += [
            (key, {"parameters": {key: _never()}}) for key, spec in task.parameters.items() if spec.type != "string"
        ]
        bad += [(key, {"inputs": _without(good, key)}) for key, spec in task.inputs.items() if spec.required]
        for field, change in bad:
            _check_refused(card, good.model_copy(update=change), field)


def _check_refused(card: ModelCard, request: Request, field: str) -> None:
    where = f"task {request.task} of {card.model_id}"
    try:
        prepare_request(card, request)
    except InputError as error:
        if error.field is None or field not in error.field:
            raise ContractError(f"{where}: the error about {field!r} names the field {error.field!r}") from error
    except Exception as error:
        raise ContractError(f"{where}: a wrong {field!r} raises {type(error).__name__}, no InputError") from error
    else:
        raise ContractError(f"{where}: takes a wrong {field!r}")


class _CountCalls(TorchDispatchMode):
    """Names what is launched."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's own has no annotations
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not getattr(func, "is_view", False):  # looking at a part of a tensor launches nothing
            self.names.append(str(func))
        return func(*args, **(kwargs or {}))


class _AskingPool(Pool):
    """Asks for every step twice more before it is made.

    Attributes:
        problem: The first thing that was wrong with the answers.
    """

    def __init__(self, instance: ModelInstance) -> None:
        super().__init__(instance)
        self.problem: str | None = None

    def _call(self, tasks: list[Any]) -> None:
        (task,) = tasks
        if self.problem is None:
            what = _problem_of_next(task.run.loop_runs[task.node.node_id])
            self.problem = None if what is None else f"{task.wish.where()}: next {what}"
        super()._call(tasks)


def _problem_of_next(run: LoopRun[Any]) -> str | None:
    """Return what asking for the next step does besides answering."""
    before, random_state = encode_state(run.state), torch.get_rng_state()
    with _CountCalls() as counted:
        first, second = run.loop.next(run.state), run.loop.next(run.state)
    if counted.names:
        return f"launches {', '.join(sorted(set(counted.names)))}"
    if encode_state(run.state) != before:
        return "changes the state"
    if not torch.equal(torch.get_rng_state(), random_state):
        return "draws random numbers"
    return None if _is_same(first, second) else "says something else when it is asked again"


def _is_same(one: Any, other: Any) -> bool:
    """Say whether two plans are the same: equal numbers and texts, tensors in the same memory."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return _layout(one) == _layout(other)
    if type(one) is not type(other):
        return False
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(map(_is_same, one, other))
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(_is_same(one[key], other[key]) for key in one)
    if hasattr(one, "__dataclass_fields__"):
        return all(_is_same(getattr(one, name), getattr(other, name)) for name in one.__dataclass_fields__)
    return bool(one == other)


def _layout(tensor: torch.Tensor) -> tuple[Any, ...]:
    return (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())


class _StoppingPool(Pool):
    """Stops a request in the middle of its generative loop, with its states in a store, where there is one.

    Attributes:
        num_steps: Steps of that loop that were made.
        tensors: What its states held, without keeping it.
    """

    def __init__(self, instance: ModelInstance, store: StateStore | None = None) -> None:
        super().__init__(instance)
        self._card = instance.card
        self._store = store
        self.num_steps = 0
        self.tensors: list[weakref.ref[torch.Tensor]] = []

    def _between_steps(self, run: RequestRun) -> None:
        for node in run.snapshot().values():
            if isinstance(node, RunningNode):
                self.tensors += [weakref.ref(tensor) for tensor in tensors_in(node.state)]
                if self._card.loops[node.loop_id].is_generative:
                    self.num_steps = node.num_committed
        if self._store is not None:
            self._store.checkpoint(run.request_id, run.snapshot())
            self._store.flush()
        if self.num_steps == _STOP_AFTER:
            self._cancelled[run.request_id] = 0
        super()._between_steps(run)


def _step_costs(instance: ModelInstance, given: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """Return stated and counted operations of the generative loops' steps, added up."""
    (prepared,) = make_requests(instance.card, given, 1)
    pool = _CountingPool(instance)
    pool.run([prepared])
    return pool.costs


class _CountingPool(Pool):
    """Adds up the operations of generative steps: those that are stated, and those that are counted."""

    def __init__(self, instance: ModelInstance) -> None:
        super().__init__(instance)
        self._card = instance.card
        self.costs: dict[str, tuple[float, float]] = {}

    def _call(self, tasks: list[Any]) -> None:
        (plan,) = (task.wish for task in tasks)
        with FlopCounterMode(display=False) as counter:
            super()._call(tasks)
        if self._card.loops[plan.loop_id].is_generative:
            stated, counted = self.costs.get(plan.loop_id, (0.0, 0.0))
            cost = plan.resources.cost.flops
            self.costs[plan.loop_id] = (stated + cost, counted + float(counter.get_total_flops()))


def _inputs(card: ModelCard, task: str) -> tuple[ModalPart, ...]:
    parts: list[ModalPart] = []
    for name, spec in card.task(task).inputs.items():
        if spec.modality == "text":
            parts.append(TextPart(name=name, text="a red circle"))
        elif spec.modality == "image":
            parts.append(ImagePart(name=name, pixels=np.zeros((48, 64, 3), np.uint8)))
        elif spec.modality == "video":
            parts.append(VideoPart(name=name, frames=np.zeros((17, 48, 64, 3), np.uint8), fps=16.0))
        elif spec.modality == "action":
            parts.append(ActionPart(name=name, values=np.zeros((4, 2), np.float32)))
        elif spec.required:
            raise ContractError(f"task {task} of {card.model_id} needs {name!r}, which the suite cannot make up")
    return tuple(parts)


def _without(request: Request, name: str) -> tuple[Any, ...]:
    return tuple(part for part in request.inputs if part.name != name)


def _never() -> dict[str, str]:
    """Return what no parameter takes."""
    return {"no parameter": "takes a mapping"}
