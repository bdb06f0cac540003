"""What it costs that requests outlive the process: the same requests with a state directory and without, in turn.

    checkpoint_share   seconds of writing checkpoints (their capture between two steps, and the writing beside the
                       steps) over seconds of compute; at most 0.01
    wall_ratio         time with a state directory over time without; all requests, from submission to the last result
    num_checkpoints    checkpoints written in a run
    write_ms           what one took
    at_risk_s          compute between two checkpoints of a request, on average
    accept_ms          until an accepted request is on the disk
    finish_ms          until a finished one is off it, with a note of its outcome

Requests are long clips of wan-shapes (65 frames), two at a time, with the default policy.
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from _common import interleaved, make_parser, positive, ratio, report
from _shapes import add_weights, load_shapes, make_request, prompts
from fastvideo_core import Engine
from fastvideo_core.runtime.durable import CheckpointTotals, StateStore
from fastvideo_core.runtime.instance import ModelInstance
from fastvideo_core.runtime.prepare import prepare_request


class Runs:
    """Runs of the same requests, stored and not.

    Args:
        instance: The model.
        folder: Where states go.
        num_requests: Requests of a run.
        num_steps: Denoising steps of each.
    """

    def __init__(self, instance: ModelInstance, folder: Path, *, num_requests: int, num_steps: int) -> None:
        self._instance = instance
        self._folder = folder
        self._texts = list(itertools.islice(prompts(), num_requests))
        self._parameters: dict[str, Any] = {"num_frames": 65, "num_inference_steps": num_steps, "guidance_scale": 5.0}
        self._count = itertools.count()
        self.totals: list[CheckpointTotals] = []
        self.accept_s: list[float] = []
        self.finish_s: list[float] = []

    def plain(self) -> None:
        """Run them without a state directory."""
        with Engine(self._instance, max_running=2) as engine:
            self._run(engine)

    def stored(self) -> None:
        """Run them with one."""
        with (
            StateStore(self._folder / str(next(self._count))) as store,
            Engine(self._instance, max_running=2, store=store) as engine,
        ):
            ids = self._run(engine)
            for request_id in ids:
                start_s = time.perf_counter()
                store.finish(request_id, {"status": "done"})
                self.finish_s.append(time.perf_counter() - start_s)
            self.totals.append(store.totals)

    def time_acceptance(self) -> None:
        """Accept requests that do not run."""
        with StateStore(self._folder / "accept") as store:
            for request in self._requests():
                prepared = prepare_request(self._instance.card, request)
                start_s = time.perf_counter()
                store.accept(prepared, self._instance)
                self.accept_s.append(time.perf_counter() - start_s)

    def _run(self, engine: Engine) -> list[str]:
        handles = [engine.submit(request) for request in self._requests()]
        for handle in handles:
            handle.result()
        return [handle.request_id for handle in handles]

    def _requests(self) -> list[Any]:
        card = self._instance.card
        return [
            make_request(card, text, f"r{index}", seed=index, **self._parameters)
            for index, text in enumerate(self._texts)
        ]


def main() -> None:
    """Run the benchmark."""
    parser = make_parser("Measure what checkpoints cost.", num_rounds=3)
    parser.add_argument("--requests", type=positive, default=2, help="requests of a run (default: %(default)s)")
    parser.add_argument("--steps", type=positive, default=500, help="denoising steps of each (default: %(default)s)")
    add_weights(parser)
    args = parser.parse_args()
    instance = load_shapes(args.weights)
    with Engine(instance) as engine:  # what the first steps of a process take longer is not timed
        engine.submit(
            make_request(instance.card, "a red circle", "warm", num_frames=65, num_inference_steps=2)
        ).result()
    with tempfile.TemporaryDirectory(prefix="checkpoint-cost-", dir=Path.cwd()) as folder:
        runs = Runs(instance, Path(folder), num_requests=args.requests, num_steps=args.steps)
        times = interleaved({"plain": runs.plain, "stored": runs.stored}, num_rounds=args.rounds, num_warmups=0)
        runs.time_acceptance()
    written_s = sum(one.written_s for one in runs.totals)
    compute_s = sum(one.compute_s for one in runs.totals)
    num_written = sum(one.num_written for one in runs.totals)
    figures = {
        "checkpoint_share": written_s / compute_s,
        "wall_ratio": ratio(times, "stored", "plain"),
        "plain_s": statistics.median(times["plain"]),
        "num_checkpoints": num_written / len(runs.totals),
        "write_ms": 1e3 * written_s / max(num_written, 1),
        "at_risk_s": compute_s / max(num_written, 1),
        "accept_ms": 1e3 * statistics.median(runs.accept_s),
        "finish_ms": 1e3 * statistics.median(runs.finish_s),
    }
    report(figures, as_json=args.json)


if __name__ == "__main__":
    main()
