"""Requests of any card, different from each other in all that may differ, and what is to happen to some of them."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fastvideo_core.card import ModelCard, TaskSpec
from fastvideo_core.errors import InputError
from fastvideo_core.request.base import ImagePart, OutputSpec, Request, TextPart
from fastvideo_core.runtime.prepare import PreparedRequest, prepare_request
from fastvideo_testing.gate.faults import Fault, FaultKind

__all__ = ["GatePlan", "make_plan"]

_PROMPTS = (
    "a red circle",
    "a large blue square moves slowly to the left",
    "x",
    "two green triangles",
    "a yellow ring moving up",
)
_GUIDANCE = (None, 1.0, 4.5, 2.0)


@dataclass(frozen=True, slots=True)
class GatePlan:
    """What is run.

    Attributes:
        requests: All requests, prepared.
        faults: How some of them fail.
        cancelled: After how many steps some of them are cancelled.
    """

    requests: Sequence[PreparedRequest]
    faults: Mapping[str, Fault]
    cancelled: Mapping[str, int]

    @property
    def survivors(self) -> list[PreparedRequest]:
        """The requests that are to end as they do alone."""
        lost = {*self.faults, *self.cancelled}
        return [one for one in self.requests if one.request.request_id not in lost]

    def as_exact(self) -> GatePlan:
        """Return the same with exact requests."""
        exact = [
            prepare_request(one.card, one.request.model_copy(update={"exact": True})) for one in self.requests
        ]  # fmt: skip
        return replace(self, requests=exact)


def make_plan(
    card: ModelCard,
    *,
    parameters: Mapping[str, Any] | None = None,
    variations: Sequence[Mapping[str, Any]] = (),
    task: str | None = None,
    num_survivors: int = 4,
    num_cancelled: int = 1,
    faults: Sequence[FaultKind] = ("nan", "error", "memory"),
    seed: int = 0,
) -> GatePlan:
    """Make requests that differ in prompt, seed, number of steps and guidance, as far as the card lets them.

    Args:
        card: The card.
        parameters: Parameters of all requests, for instance small sizes.
        variations: Further parameters, for the first request, the second, and so on, over and over.
        task: The card's task; its default one if it is not given.
        num_survivors: Requests that run to their ends.
        num_cancelled: Requests that are cancelled at a step boundary.
        faults: How further requests fail, one each.
        seed: Decides the numbers.

    Raises:
        InputError: The task needs an input that the gate cannot make up.
    """
    name = task or card.capabilities.default_task
    draw = random.Random(seed)
    names = [f"r{number}" for number in range(num_survivors)]
    lost = [f"cancelled-{number}" for number in range(num_cancelled)]
    failing = {f"{kind}-{number}": kind for number, kind in enumerate(faults)}
    requests = []
    for number, request_id in enumerate((*names, *lost, *failing)):
        varied = variations[number % len(variations)] if variations else {}
        chosen = {**(parameters or {}), **_vary(card, name, parameters or {}, number, draw), **varied}
        requests.append(prepare_request(card, _request(card.task(name), name, request_id, number, chosen)))
    loop_id = next((loop.loop_id for loop in card.loops.values() if loop.is_generative), card.recipe.assumes_loop)
    return GatePlan(
        requests,
        {one: Fault(kind, loop_id, draw.randint(0, 1)) for one, kind in failing.items()},
        {one: draw.randint(1, 3) for one in lost},
    )


def _vary(card: ModelCard, task: str, base: Mapping[str, Any], number: int, draw: random.Random) -> dict[str, Any]:
    """Return parameters of one request: its own seed, step count and guidance, where it may have them."""
    pinned = {name for loop in card.loops.values() for name in loop.pinned}
    known = {name: spec for name, spec in card.task(task).parameters.items() if name not in pinned}
    varied: dict[str, Any] = {}
    if "seed" in known:
        varied["seed"] = draw.randrange(1 << 31)
    if (steps := known.get("num_inference_steps")) is not None:
        varied["num_inference_steps"] = base.get("num_inference_steps", steps.default) + number % 3
    guidance = _GUIDANCE[number % len(_GUIDANCE)]
    if "guidance_scale" in known and guidance is not None and "guidance_scale" not in base:
        varied["guidance_scale"] = guidance
    return varied


def _request(task: TaskSpec, name: str, request_id: str, number: int, parameters: Mapping[str, Any]) -> Request:
    return Request(
        request_id=request_id,
        task=name,
        inputs=_inputs(task, number),
        parameters=dict(parameters),
        outputs=OutputSpec(artifacts=tuple(task.outputs)),
    )


def _inputs(task: TaskSpec, number: int) -> tuple[TextPart | ImagePart, ...]:
    import numpy as np

    parts: list[TextPart | ImagePart] = []
    for name, spec in task.inputs.items():
        if spec.modality == "text":
            parts.append(TextPart(name=name, text=_PROMPTS[number % len(_PROMPTS)]))
        elif spec.modality == "image":
            pixels = np.random.default_rng(number).integers(0, 256, (48, 64, 3), np.uint8)
            parts.append(ImagePart(name=name, pixels=pixels))
        elif spec.required:
            raise InputError(
                "the gate makes no such input up", field="task", value=name, allowed="tasks of text and images"
            )
    return tuple(parts)
