"""What the soak does to its engines: which requests it makes, what it lets fail, and what must come of them."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch

from _shapes import make_request
from fastvideo_core import Engine
from fastvideo_core.loop.base import StepContext
from fastvideo_core.loop.work import StepResult, WorkPlan
from fastvideo_core.parity import compare_tensors
from fastvideo_core.runtime.instance import ModelInstance
from fastvideo_core.runtime.run import GenerationResult

Fault = Literal["nan", "error", "memory", "lost"]
FAULTS: tuple[Fault, ...] = ("nan", "error", "memory", "lost")
TERMINAL = frozenset({"request.completed", "request.failed", "request.cancelled"})


@dataclass(frozen=True)
class Wish:
    """One of the requests that the soak makes again and again.

    Attributes:
        prompt: What to show.
        is_exact: Whether it is an exact one.
        parameters: All others.
    """

    prompt: str
    is_exact: bool
    parameters: Mapping[str, Any]


class Faults:
    """Lets steps fail: those of requests whose id begins with a fault's name, at a step that the id decides.

    NaN is put into one row of a call; an exception and a lack of memory are raised by the call that the row is in,
    whenever it is run. A device is lost once a request.
    """

    def __init__(self) -> None:
        self._lost: set[str] = set()
        self.num_struck: Counter[str] = Counter()

    def put_into(self, instance: ModelInstance) -> ModelInstance:
        """Wrap the step bodies of a model."""
        for name, body in tuple(instance.steps.items()):
            instance.steps[name] = self._wrap(body)
        return instance

    def _wrap(self, body: Any) -> Any:
        def run(model: ModelInstance, plans: Sequence[WorkPlan[Any]], ctx: StepContext) -> Sequence[StepResult[Any]]:
            struck = [self._fault_of(plan) for plan in plans]
            self.num_struck.update(fault for fault in struck if fault is not None)
            for plan, fault in zip(plans, struck, strict=True):
                if fault == "lost":
                    self._lost.add(_request_id(plan))
                    raise RuntimeError("an illegal memory access was encountered (made up)")
            if "memory" in struck:
                raise torch.OutOfMemoryError("no memory is left (made up)")
            if "error" in struck:
                raise ValueError("the step was told to fail")
            changed = [_spoilt(plan) if fault == "nan" else plan for plan, fault in zip(plans, struck, strict=True)]
            results: Sequence[StepResult[Any]] = body(model, changed, ctx)
            return results

        return run

    def _fault_of(self, plan: WorkPlan[Any]) -> Fault | None:
        request_id = _request_id(plan)
        fault = next((name for name in FAULTS if request_id.startswith(f"{name}-")), None)
        if fault is None or not hasattr(plan.payload, "latents_1CTHW") or not plan.num_steps or plan.num_steps < 2:
            return None
        if plan.step_index != 1 + int(request_id.rpartition("-")[2]) % (plan.num_steps - 1):
            return None
        return None if fault == "lost" and request_id in self._lost else fault


def _request_id(plan: WorkPlan[Any]) -> str:
    return plan.cancel_scope.path().split("/")[0].removeprefix("request:")


def _spoilt(plan: WorkPlan[Any]) -> WorkPlan[Any]:
    latents = torch.full_like(plan.payload.latents_1CTHW, float("nan"))
    return replace(plan, payload=replace(plan.payload, latents_1CTHW=latents))


@dataclass(slots=True)
class Tally:
    """What is counted, from several threads.

    Attributes:
        accepted: Accepted requests.
        ends: Ends by kind.
        terminal_events: Terminal events of each request that has not been judged yet.
        lost: Requests with another number of terminal events than one, or without an end.
        wrong: Results that are not what the request gives alone.
        failed_innocent: Requests that failed and were not told to.
        largest_error: Largest relative error of a result that need not be the same to the bit.
    """

    accepted: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    terminal_events: Counter[str] = field(default_factory=Counter)
    lost: int = 0
    wrong: int = 0
    failed_innocent: int = 0
    largest_error: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def listener(self) -> Callable[[Any], None]:
        """Return what counts the terminal events."""

        def on_event(event: Any) -> None:
            if event.type in TERMINAL:
                with self.lock:
                    self.terminal_events[event.request_id] += 1

        return on_event

    def judge_events(self, request_id: str) -> None:
        """Count a request that has not ended exactly once."""
        with self.lock:
            self.lost += self.terminal_events.pop(request_id, 0) != 1

    def judge_result(self, result: GenerationResult, alone: GenerationResult, wish: Wish, max_error: float) -> None:
        """Compare a result with what the request gives alone: to the bit, or within the card's bound."""
        ours, theirs = torch.from_numpy(result.latents.latents), torch.from_numpy(alone.latents.latents)
        if wish.is_exact:
            is_right = torch.equal(ours, theirs) and np.array_equal(result.video.frames, alone.video.frames)
        else:
            error = compare_tensors(ours, theirs).max_relative
            self.largest_error = max(self.largest_error, error)
            is_right = error <= max_error
        self.wrong += not is_right


def tiny_wishes() -> list[Wish]:
    """Return requests of the tiny family."""
    sizes = ((32, 32), (32, 48), (64, 64))
    return [
        Wish(
            f"text {index}",
            index % 3 == 0,
            {
                "height": sizes[index % 3][0], "width": sizes[index % 3][1], "num_frames": (1, 5, 9, 17)[index % 4],
                "num_inference_steps": 2 + index % 5, "guidance_scale": (1.0, 3.0)[index % 2], "seed": index,
            },
        )
        for index in range(12)
    ]  # fmt: skip


def shapes_wishes() -> list[Wish]:
    """Return requests of wan-shapes."""
    sizes = ((64, 64), (64, 48), (48, 48))
    return [
        Wish(
            ("a red circle moving right", "a blue square at rest on white", "one green ball going up")[index % 3],
            index % 4 == 0,
            {
                "height": sizes[index % 3][0], "width": sizes[index % 3][1], "num_frames": (1, 9, 17)[index % 3],
                "num_inference_steps": 2 + index % 4, "guidance_scale": (1.0, 2.5)[index % 2], "seed": index,
            },
        )
        for index in range(8)
    ]  # fmt: skip


class Target:
    """An engine under load, with what its requests give alone.

    Args:
        name: Name of the family.
        engine: The engine.
        alone: An engine of the same weights that runs one request at a time, without faults; it is closed.
        wishes: What is asked for.
    """

    def __init__(self, name: str, engine: Engine, alone: Engine, wishes: Sequence[Wish]) -> None:
        self.name = name
        self.engine = engine
        self.wishes = wishes
        with alone:
            self.expected = [
                alone.submit(self.request(wish, f"alone-{index}")).result() for index, wish in enumerate(wishes)
            ]
        self.max_error = engine.card.parity.batch_max_relative_error

    def request(self, wish: Wish, request_id: str, **fields: Any) -> Any:
        """Return a request."""
        return make_request(
            self.engine.card, wish.prompt, request_id, outputs=("video", "latents"), exact=wish.is_exact,
            **wish.parameters, **fields,
        )  # fmt: skip


def draw_id(rng: random.Random, name: str, number: int, *, fault_share: float, may_be_lost: bool) -> str:
    """Return an id, which decides what happens to the request."""
    kinds = FAULTS if may_be_lost else FAULTS[:-1]
    fault = rng.choice(kinds) if rng.random() < fault_share else "good"
    return f"{fault}-{name}-{number}"
