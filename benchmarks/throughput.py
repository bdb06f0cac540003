"""Many requests at once, against the same requests one after another.

    speedup_vs_diffusers_8   diffusers' `WanPipeline`, 8 requests one after another, over this engine with all 8 at once
    speedup_vs_serial_8      this engine with one request at a time, over all 8 at once: from each first denoise step to
                             its last, with all that happens in between
    speedup_images_32        this engine with one request at a time, over all at once: 32 one-frame requests in three
                             resolutions, each with a prompt, a number of steps and a guidance scale of its own

All sides have the same weights, prompts, seeds, steps and guidance, run in turn in one process, and end with frames in
memory; loading is not timed. Prompts are new ones in every round, so that nothing is remembered but the empty negative
prompt. Before anything is timed, the latents made together must keep the card's bound on batches.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from diffusers import WanPipeline

from _common import interleaved, make_parser, ratio, report
from _shapes import add_weights, clocked, load_shapes, make_request, prompts, span_s, spans_by_request
from fastvideo_core import Engine
from fastvideo_core.parity import compare_tensors
from fastvideo_core.request.base import Request
from fastvideo_core.runtime.instance import ModelInstance
from fastvideo_core.runtime.weights.whole import whole_checkpoint

SIZES = ((64, 64), (64, 96), (96, 64))
STEPS = (8, 12, 16, 20)
SCALES = (1.0, 2.0, 3.5, 5.0, 7.5)


class Load:
    """Makes requests, new ones every time.

    Args:
        instance: The model.
        num_steps: Steps of all requests; None takes the card's for videos and various ones for images.
    """

    def __init__(self, instance: ModelInstance, num_steps: int | None = None) -> None:
        self._card = instance.card
        self._num_steps = num_steps
        self._prompts = prompts()
        self._numbers = itertools.count()

    def videos(self, count: int) -> list[Request]:
        """Return videos of the card's defaults."""
        steps = {} if self._num_steps is None else {"num_inference_steps": self._num_steps}
        return [self._request(steps) for _ in range(count)]

    def images(self, count: int) -> list[Request]:
        """Return images in three resolutions, with various steps and guidance."""
        sizes = [SIZES[index % 3] for index in range(count)]
        return [
            self._request(
                {
                    "num_frames": 1,
                    "height": height,
                    "width": width,
                    "num_inference_steps": self._num_steps or STEPS[index % 4],
                    "guidance_scale": SCALES[index % 5],
                }
            )
            for index, (height, width) in enumerate(sizes)
        ]

    def _request(self, parameters: Mapping[str, Any]) -> Request:
        number = next(self._numbers)
        return make_request(self._card, next(self._prompts), f"r{number}", seed=number, **parameters)


class Sides:
    """This engine, with many requests at once and with one at a time, and diffusers, on the same weights."""

    def __init__(self, instance: ModelInstance, max_running: int) -> None:
        self.instance = instance
        self.together = Engine(instance, max_running=max_running)
        self.serial = Engine(instance, max_running=1)
        with whole_checkpoint(instance.card.checkpoint) as folder:
            self.pipeline = WanPipeline.from_pretrained(str(folder), dtype=torch.float32)
        self.pipeline.set_progress_bar_config(disable=True)

    @staticmethod
    def ours(engine: Engine, requests: Sequence[Request]) -> list[Any]:
        """Make all requests with the engine."""
        return [handle.result() for handle in [engine.submit(request) for request in requests]]

    def theirs(self, requests: Sequence[Request], output_type: str = "np") -> list[Any]:
        """Make all requests with diffusers."""
        return [self._make(request, output_type) for request in requests]

    def _make(self, request: Request, output_type: str) -> Any:
        card = self.instance.card
        names = ("num_frames", "height", "width", "num_inference_steps", "guidance_scale", "negative_prompt")
        specs = card.capabilities.tasks[request.task].parameters
        return self.pipeline(
            request.part("prompt").text,
            generator=torch.Generator("cpu").manual_seed(request.parameters["seed"]),
            output_type=output_type,
            max_sequence_length=card.loops["text_encode"].options["text_length"],
            **{name: request.parameters.get(name, specs[name].default) for name in names},
        ).frames

    def check(self, load: Load, count: int) -> float:
        """Return how far latents made together are from diffusers'; raise if that is beyond the card's bound."""
        requests = [
            request.model_copy(update={"outputs": request.outputs.model_copy(update={"artifacts": ("latents",)})})
            for request in load.videos(count)
        ]
        made = [torch.from_numpy(result.latents.latents).unsqueeze(0) for result in self.ours(self.together, requests)]
        pairs = zip(made, self.theirs(requests, "latent"), strict=True)
        error = max(compare_tensors(ours, theirs).max_relative for ours, theirs in pairs)
        if error > self.instance.card.parity.batch_max_relative_error:
            raise SystemExit(f"latents made together differ from the reference's: {error:.2g} of the largest value")
        return error


def measure_videos(sides: Sides, load: Load, count: int, num_rounds: int) -> dict[str, float]:
    """Time videos: diffusers, one at a time, and all at once."""
    rounds = [load.videos(count) for _ in range(num_rounds + 1)]
    denoise: dict[str, list[float]] = {"together": [], "serial": []}

    def together(requests: Iterator[list[Request]]) -> None:
        with clocked(sides.instance) as calls:
            sides.ours(sides.together, next(requests))
        denoise["together"].append(span_s(calls))

    def serial(requests: Iterator[list[Request]]) -> None:
        with clocked(sides.instance) as calls:
            sides.ours(sides.serial, next(requests))
        denoise["serial"].append(sum(spans_by_request(calls).values()))

    first, second, third = iter(rounds), iter(rounds), iter(rounds)
    cases = {
        "together": lambda: together(first),
        "serial": lambda: serial(second),
        "diffusers": lambda: sides.theirs(next(third)),
    }
    times = interleaved(cases, num_rounds=num_rounds)
    denoise = {name: values[1:] for name, values in denoise.items()}  # the first are of the round that warms up
    return {
        f"speedup_vs_diffusers_{count}": ratio(times, "diffusers", "together"),
        f"speedup_vs_serial_{count}": ratio(denoise, "serial", "together"),
        f"speedup_vs_serial_{count}_whole": ratio(times, "serial", "together"),
        "diffusers_s": statistics.median(times["diffusers"]),
        "together_s": statistics.median(times["together"]),
        "denoise_together_s": statistics.median(denoise["together"]),
    }


def measure_images(sides: Sides, load: Load, count: int, num_rounds: int) -> dict[str, float]:
    """Time images: one at a time, and all at once."""
    rounds = [load.images(count) for _ in range(num_rounds + 1)]
    first, second = iter(rounds), iter(rounds)
    cases = {
        "together": lambda: sides.ours(sides.together, next(first)),
        "serial": lambda: sides.ours(sides.serial, next(second)),
    }
    times = interleaved(cases, num_rounds=num_rounds)
    return {
        f"speedup_images_{count}": ratio(times, "serial", "together"),
        "images_together_s": statistics.median(times["together"]),
    }


def main() -> None:
    """Measure and print."""
    parser = make_parser(__doc__.splitlines()[0], num_rounds=5)
    add_weights(parser)
    parser.add_argument("--quick", action="store_true", help="few requests of two steps, to see that it runs")
    args = parser.parse_args()
    num_videos, num_images, num_steps = (2, 6, 2) if args.quick else (8, 32, None)
    instance = load_shapes(args.weights)
    sides = Sides(instance, max_running=max(num_videos, num_images))
    load = Load(instance, num_steps)
    figures: dict[str, Any] = {"error": sides.check(load, num_videos)}
    figures |= measure_videos(sides, load, num_videos, args.rounds)
    figures |= measure_images(sides, load, num_images, args.rounds)
    figures["num_threads"] = torch.get_num_threads()
    sides.together.close()
    sides.serial.close()
    report(figures, as_json=args.json)


if __name__ == "__main__":
    main()
