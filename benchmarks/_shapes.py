"""What the benchmarks of the runtime share: the shipped model, prompts for it, requests, and a clock on its calls."""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastvideo_core.card import CheckpointSource, ModelCard
from fastvideo_core.loop.base import StepContext
from fastvideo_core.loop.work import StepResult, WorkPlan
from fastvideo_core.request.base import OutputSpec, Request, TextPart
from fastvideo_core.runtime.catalog import Catalog
from fastvideo_core.runtime.instance import ModelInstance
from fastvideo_core.runtime.loading import load_instance
from fastvideo_wan.shapes.captions import draw_caption
from fastvideo_wan.shapes.scenes import draw_scene

DENOISE_STEP = "diffusion_denoise.step"


def add_weights(parser: argparse.ArgumentParser) -> None:
    """Add the option that takes other weights of the shipped model's layout."""
    parser.add_argument(
        "--weights", type=Path, metavar="FOLDER", help="weights of another size in place of wan-shapes' own"
    )


def shapes_card(weights: Path | None = None) -> ModelCard:
    """Return the card of `wan-shapes`, with other weights if a folder is given."""
    card = Catalog.installed().find("wan-shapes")
    if weights is None:
        return card
    source = CheckpointSource(kind="folder", location=str(weights))
    return card.model_copy(update={"checkpoint": card.checkpoint.model_copy(update={"source": source})})


def load_shapes(weights: Path | None = None) -> ModelInstance:
    """Load `wan-shapes`."""
    return load_instance(shapes_card(weights))


def prompts(seed: int = 0) -> Iterator[str]:
    """Yield captions in the model's own words, of many lengths, without an end."""
    rng = random.Random(seed)
    while True:
        yield draw_caption(draw_scene(rng), rng)


def make_request(
    card: ModelCard, prompt: str, request_id: str, *, outputs: Sequence[str] = (), exact: bool = False, **fields: Any
) -> Request:
    """Build a request of the card's default task.

    Args:
        card: The card.
        prompt: What to show.
        request_id: Its id.
        outputs: Artifacts by name.
        exact: Whether it is an exact one.
        **fields: Fields of the request (`latency_class`, `deadline_s`); all others are parameters.
    """
    names = ("latency_class", "deadline_s")
    own = {name: fields.pop(name) for name in names if name in fields}
    return Request(
        request_id=request_id,
        task=card.capabilities.default_task,
        inputs=(TextPart(name="prompt", text=prompt),),
        parameters=fields,
        outputs=OutputSpec(artifacts=tuple(outputs)),
        exact=exact,
        **own,
    )


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a step body.

    Attributes:
        kind: Which steps of which loop.
        request_ids: Whose they were.
        start_s: When it began, by `time.perf_counter`.
        end_s: When it ended.
    """

    kind: str
    request_ids: tuple[str, ...]
    start_s: float
    end_s: float


@contextmanager
def clocked(instance: ModelInstance) -> Iterator[list[Call]]:
    """Note all calls of a model's step bodies while the context is open."""
    calls: list[Call] = []
    bodies = dict(instance.steps)

    def wrap(body: Any) -> Any:
        def run(model: ModelInstance, plans: Sequence[WorkPlan[Any]], ctx: StepContext) -> Sequence[StepResult[Any]]:
            start_s = time.perf_counter()
            results: Sequence[StepResult[Any]] = body(model, plans, ctx)
            ids = tuple(plan.cancel_scope.path().split("/")[0].removeprefix("request:") for plan in plans)
            calls.append(Call(plans[0].batch_key.loop_kind, ids, start_s, time.perf_counter()))
            return results

        return run

    instance.steps.update({name: wrap(body) for name, body in bodies.items()})
    try:
        yield calls
    finally:
        instance.steps.update(bodies)


def span_s(calls: Sequence[Call], kind: str = DENOISE_STEP) -> float:
    """Return the seconds from the first call of a kind to the end of the last, with all that happened in between."""
    chosen = [call for call in calls if call.kind == kind]
    return max(call.end_s for call in chosen) - min(call.start_s for call in chosen) if chosen else 0.0


def spans_by_request(calls: Sequence[Call], kind: str = DENOISE_STEP) -> Mapping[str, float]:
    """Return `span_s` of each request."""
    ids = {request_id for call in calls for request_id in call.request_ids}
    return {name: span_s([call for call in calls if name in call.request_ids], kind) for name in ids}
