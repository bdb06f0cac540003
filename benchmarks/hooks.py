"""What hooks cost: a step of a loop that nobody observes or intercepts, and one that somebody does.

    overhead_unused_us      a step of a model that was loaded with extensions, of which none is for this loop, less
                            the same step of a model that was loaded without any
    noise_us                the same difference between two models that were both loaded without any
    observer_us             a step with an observer of steps on, less one without
    tensors_us              a step with an observer of tensors on, less one without
    interceptor_us          a step with a step interceptor on that always lets the model compute, less one without
    step_us                 the step itself, of the tiny family, with guidance

A step is `plan`, the step body, and `commit`, in processor time of this thread; figures are medians over rounds.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from _common import make_parser, report
from fastvideo_core.card import ModelCard
from fastvideo_core.extend import PluginSpec
from fastvideo_core.loop.driver import LoopRun
from fastvideo_core.request.cancel import CancelScope, CancelState
from fastvideo_core.runtime.hooks import InstanceHooks
from fastvideo_core.runtime.loading import load_instance
from fastvideo_testing.samples import HOLD, RECORD, extensions_of
from fastvideo_testing.tiny import write_tiny_checkpoint
from fastvideo_testing.tiny.denoise import DenoiseState

STEPS = 200


class Untapped:
    """A step's context that nobody listens to."""

    is_tapped = False
    blocks_runner = None

    def tap(self, name: str, value: torch.Tensor) -> None:
        """Drop it."""


def make_case(card: ModelCard, *specs: PluginSpec) -> Callable[[], float]:
    """Return a function that makes steps of a model with some things on, and gives the seconds that they took."""
    period = {"interceptor.hold": {"period": 1}} if HOLD in specs else {}
    extensions = extensions_of(*specs, options=period)
    hooks = InstanceHooks.of(extensions, card)
    instance = load_instance(card, device="cpu", hooks=hooks)
    options = extensions.check_request({}, exact=False, parameters={})
    step: Any = instance.steps["denoise"]

    def run() -> float:
        state = start_state()
        loop: LoopRun[Any] = LoopRun(
            instance.loop("denoise"),
            state,
            scope=state.scope,
            cancel=CancelState(),
            hooks=None if hooks is None else hooks.run_hooks("denoise", options),
        )
        began_at = time.thread_time()
        with torch.no_grad():
            for _ in range(STEPS):
                plan: Any = loop.plan()
                (result,) = step(instance, [plan], Untapped())
                loop.commit(plan, result)
        return time.thread_time() - began_at

    return run


def start_state() -> DenoiseState:
    """Return the state of a guided request of many steps."""
    return DenoiseState(
        latents_1CTHW=torch.randn((1, 4, 2, 2, 2), generator=torch.Generator().manual_seed(1)),
        embeds_1E=(torch.ones(1, 8), torch.zeros(1, 8)),
        sigmas=tuple(1 - index / STEPS for index in range(STEPS + 1)),
        guidance_scale=3.0,
        scope=CancelScope("request", "r"),
        is_exact=False,
        profile="serve",
        condition_1CHW=None,
    )


def measure(num_rounds: int) -> dict[str, Any]:
    """Return the figures."""
    with tempfile.TemporaryDirectory() as folder:
        card = write_tiny_checkpoint(Path(folder))
        elsewhere = replace(RECORD, loops=("decode",))
        cases = {
            "plain": make_case(card),
            "noise": make_case(card),
            "overhead_unused": make_case(card, elsewhere),
            "observer": make_case(card, replace(RECORD, wants=("steps",))),
            "tensors": make_case(card, RECORD),
            "interceptor": make_case(card, HOLD),
        }
        times: dict[str, list[float]] = {name: [] for name in cases}
        names = list(cases)
        for index in range(num_rounds + 1):
            turn = index % len(names)
            for name in names[turn:] + names[:turn]:
                seconds = cases[name]()
                if index:
                    times[name].append(seconds / STEPS * 1e6)
    plain = times.pop("plain")
    figures = {
        f"{name}_us": round(statistics.median(one - base for one, base in zip(values, plain, strict=True)), 3)
        for name, values in times.items()
    }
    return {"step_us": round(statistics.median(plain), 3), **figures}


def main() -> None:
    """Measure and print."""
    parser = make_parser("What hooks cost, used and unused.", num_rounds=15)
    args = parser.parse_args()
    report(measure(args.rounds), as_json=args.json)


if __name__ == "__main__":
    main()
