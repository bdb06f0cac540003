"""What the caches save and what they cost: denoising with one and without, in one process, in turn.

    speedup_shapes      time of a request's denoising without the cache over the time with it: wan-shapes, its default
                        size and guidance, 30 steps, the step cache with a mask
    speedup_8_layer     the same on a transformer of 8 layers of random weights, the block cache
    error_shapes        relative error of the latents, median over the prompts: the norm of the difference from those
                        without the cache, over their norm
    error_8_layer       the same on the other model
    worst_shapes        the largest of these errors
    worst_8_layer       the same on the other model
    cached_shapes       of the 30 steps, those that were not computed whole, of the first prompt
    cached_8_layer      the same on the other model
    request_shapes      speed-up of whole requests, with their text; latents are the result, so nothing is decoded
    request_8_layer     the same on the other model
    interleaved_equal   whether four requests of each model that run at the same time have, with the cache, the bits
                        that each of them has alone with the cache

Denoising is measured from the start of the first step to the end of the last, in the engine. `--options` and
`--options-8-layer` take other options as JSON, `--plugin` the other cache on wan-shapes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from _common import make_parser, report
from _shapes import DENOISE_STEP, add_weights, clocked, make_request, prompts, shapes_card, span_s
from fastvideo_core.card import ModelCard
from fastvideo_core.extend.extensions import Extensions
from fastvideo_core.runtime.catalog import Catalog
from fastvideo_core.runtime.engine import Engine, RuntimeOptions
from fastvideo_core.runtime.scheduler.base import SchedulerConfig
from fastvideo_testing.wan_checkpoints import make_pipeline

LOOP = "diffusion_denoise"
NUM_STEPS = 30
BLOCKS, STEPS = "interceptor.cachedit", "interceptor.cachedit-steps"
MASK = "111100010101001001001001001011"
OPTIONS: Mapping[str, Any] = {"mask": [int(one) for one in MASK]}
"""Options of the step cache on wan-shapes: a mask for 30 steps of its schedule, found on other prompts."""
OPTIONS_8_LAYER: Mapping[str, Any] = {"max_continuous_cached_steps": 5}
"""Options of the block cache on the other model: two steps more in a row than by default."""
SIZES_8_LAYER: dict[str, Any] = {
    "transformer": {"num_attention_heads": 8, "attention_head_dim": 32, "ffn_dim": 1024, "num_layers": 8},
}


@dataclass(frozen=True, slots=True)
class Case:
    """A model, and what is asked of it."""

    name: str
    card: ModelCard
    parameters: Mapping[str, Any]
    plugin: str
    options: Mapping[str, Any]


class Sides:
    """A model without the cache and with it."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.plain = Engine.open(case.card)
        # Alone in their calls, requests have the same bits whatever else runs.
        alone = RuntimeOptions(scheduler=SchedulerConfig(max_batch=1))
        extensions = Extensions.load({case.plugin: case.options})
        self.cached = Engine.open(case.card, options=alone, extensions=extensions)

    def close(self) -> None:
        """Close both engines."""
        self.plain.close()
        self.cached.close()

    def run(self, engine: Engine, asked: Sequence[tuple[int, str]]) -> list[np.ndarray[Any, Any]]:
        """Run requests, given by seed and prompt, at the same time, and return their latents."""
        parameters = self.case.parameters
        requests = [
            make_request(self.case.card, prompt, f"r{seed}", outputs=["latents"], seed=seed, **parameters)
            for seed, prompt in asked
        ]
        handles = [engine.submit(request) for request in requests]
        return [np.asarray(handle.result(600).latents.latents) for handle in handles]

    def errors(self, asked: Sequence[tuple[int, str]]) -> list[float]:
        """Return the relative error of each request's latents, each made alone."""
        pairs = [(self.run(self.cached, [one])[0], self.run(self.plain, [one])[0]) for one in asked]
        return [float(np.linalg.norm(got - plain) / np.linalg.norm(plain)) for got, plain in pairs]

    def is_interleaved_equal(self, asked: Sequence[tuple[int, str]]) -> bool:
        """Say whether requests together have the bits that they have alone, all of them with the cache."""
        alone = [self.run(self.cached, [one])[0] for one in asked]
        together = self.run(self.cached, asked)
        return all(np.array_equal(one, other) for one, other in zip(alone, together, strict=True))

    def num_cached(self, one: tuple[int, str]) -> int:
        """Return how many of a request's denoise steps were not computed whole."""
        steps: dict[str, Any] = self.cached.instance.steps
        body, seen = steps[LOOP], list[bool]()

        def watched(*arguments: Any) -> Any:
            results = body(*arguments)
            seen.extend(result.is_computed for result in results)
            return results

        steps[LOOP] = watched
        try:
            self.run(self.cached, [one])
        finally:
            steps[LOOP] = body
        return seen.count(False)

    def times(self, one: tuple[int, str], num_rounds: int) -> dict[str, list[tuple[float, float]]]:
        """Return seconds of denoising and of the whole request, by side, in turn; the first round is not counted."""
        sides = {"plain": self.plain, "cached": self.cached}
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
        for index in range(num_rounds + 1):
            for name in sorted(sides, reverse=bool(index % 2)):
                seconds = self._timed(sides[name], one)
                if index:
                    found[name].append(seconds)
        return found

    def _timed(self, engine: Engine, one: tuple[int, str]) -> tuple[float, float]:
        with clocked(engine.instance) as calls:
            started_at = time.perf_counter()
            self.run(engine, [one])
            return span_s(calls, DENOISE_STEP), time.perf_counter() - started_at


def measure(case: Case, *, num_rounds: int, num_prompts: int) -> dict[str, Any]:
    """Return a model's figures."""
    asked = list(enumerate(islice(prompts(), num_prompts)))
    sides = Sides(case)
    try:
        times = sides.times(asked[0], num_rounds)
        denoise, whole = (
            statistics.median(one[part] for one in times["plain"])
            / statistics.median(one[part] for one in times["cached"])
            for part in (0, 1)
        )
        errors = sides.errors(asked)
        return {
            f"speedup_{case.name}": denoise,
            f"request_{case.name}": whole,
            f"error_{case.name}": statistics.median(errors),
            f"worst_{case.name}": max(errors),
            f"cached_{case.name}": sides.num_cached(asked[0]),
            "interleaved_equal": sides.is_interleaved_equal(asked[:4]),
        }
    finally:
        sides.close()


def build_8_layer(folder: Path) -> Path:
    """Write a Wan whose transformer has the weights that the reference gives a new one."""
    pipeline = make_pipeline("t2v", **SIZES_8_LAYER)
    torch.manual_seed(0)
    pipeline.transformer = type(pipeline.transformer).from_config(pipeline.transformer.config).eval()
    pipeline.save_pretrained(str(folder))
    return folder


def cases(args: argparse.Namespace, scratch: Path) -> Iterator[Case]:
    """Yield the two models."""
    if args.only in (None, "shapes"):
        yield Case("shapes", shapes_card(args.weights), {"num_inference_steps": args.steps}, args.plugin, args.options)
    if args.only in (None, "8_layer"):
        folder = build_8_layer(scratch / "8-layer")
        size = {"num_frames": 17, "height": 128, "width": 128, "guidance_scale": 5.0}
        parameters = {**size, "num_inference_steps": args.steps}
        yield Case("8_layer", Catalog.installed().read_folder(folder), parameters, BLOCKS, args.options_8_layer)


def main() -> None:
    """Measure and print."""
    parser = make_parser("What the caches save and what they cost.", num_rounds=5)
    add_weights(parser)
    parser.add_argument("--only", choices=("shapes", "8_layer"), help="one of the two models")
    parser.add_argument("--plugin", default=STEPS, help="which cache on wan-shapes (default: %(default)s)")
    parser.add_argument("--options", type=json.loads, default=OPTIONS, help="options on wan-shapes, as JSON")
    parser.add_argument(
        "--options-8-layer", type=json.loads, default=OPTIONS_8_LAYER, help="options on the other model"
    )
    parser.add_argument("--steps", type=int, default=NUM_STEPS, help="denoise steps (default: %(default)s)")
    parser.add_argument(
        "--prompts", type=int, default=8, help="prompts of the errors, 4 or more (default: %(default)s)"
    )
    args = parser.parse_args()
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for case in cases(args, Path(scratch)):
            found = measure(case, num_rounds=args.rounds, num_prompts=max(4, args.prompts))
            is_equal = figures.get("interleaved_equal", True) and found["interleaved_equal"]
            figures |= {**found, "interleaved_equal": is_equal}
    report(figures, as_json=args.json)


if __name__ == "__main__":
    main()
