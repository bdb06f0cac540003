"""Two engines under random load for some minutes: mixed sizes, classes and deadlines, cancellations and failures.

    lost                  accepted requests that did not end in exactly one terminal event: none
    wrong                 results that differ from what the request gives alone, to the bit where it is exact, else by
                          more than the card's bound on batches: none
    memory_growth_ratio   resident memory at the end over that after the warm-up, both with nothing running: 1.02
    used_growth_ratio     the same once the allocator has given back pages that hold nothing: what a leak raises

The tiny family and wan-shapes run at the same time. Some requests are told to fail: NaN in a row of a call, an
exception, a lack of memory, a device that is lost with all that was on it. Others are cancelled, at once or later.
What comes of the rest is compared with what it gave alone before.
"""

from __future__ import annotations

import ctypes
import gc
import os
import random
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _common import make_parser, report
from _shapes import add_weights, shapes_card
from _soak import Faults, Tally, Target, Wish, draw_id, shapes_wishes, tiny_wishes
from fastvideo_core import Engine
from fastvideo_core.card import ModelCard
from fastvideo_core.errors import CancelledError, FastVideoError, QueueFullError
from fastvideo_core.runtime.engine import RuntimeOptions
from fastvideo_core.runtime.handle import RequestHandle
from fastvideo_core.runtime.instance import ModelInstance
from fastvideo_core.runtime.loading import load_instance
from fastvideo_core.runtime.scheduler.base import SchedulerConfig
from fastvideo_testing.tiny import write_tiny_checkpoint

LOST_EVERY_S = 20.0
"""Devices are lost no more often, so that no innocent request is there twice."""


@dataclass(slots=True)
class Sent:
    """A request that is under way."""

    target: Target
    index: int
    request_id: str
    handle: RequestHandle
    cancel_at_s: float | None
    is_cancelled: bool = False

    @property
    def wish(self) -> Wish:
        """What was asked for."""
        return self.target.wishes[self.index]


def make_target(name: str, card: ModelCard, wishes: list[Wish], faults: Faults) -> Target:
    """Load a card twice: for the load, with faults in its steps, and for what requests give alone."""

    def load() -> ModelInstance:
        return faults.put_into(load_instance(card))

    options = RuntimeOptions(scheduler=SchedulerConfig(max_running=12, max_queued=24, max_batch=8))
    return Target(name, Engine(load(), options=options, reload=load), Engine.open(card, max_running=1), wishes)


class Soak:
    """Sends requests to engines and judges what comes back.

    Args:
        targets: The engines.
        seed: Decides what is sent.
        max_open: Most requests under way.
    """

    def __init__(self, targets: list[Target], *, seed: int, max_open: int) -> None:
        self.tally = Tally()
        self.num_refused = 0
        self._targets = targets
        self._rng = random.Random(seed)
        self._max_open = max_open
        self._open: list[Sent] = []
        self._number = 0
        self._lost_at_s = time.monotonic()

    def run(self, seconds: float) -> None:
        """Send requests for some time, then wait for all to end."""
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            if len(self._open) < self._max_open:
                self._send()
            self._look_after()
            time.sleep(self._rng.expovariate(1 / 0.02))
        while self._open:
            self._look_after()
            time.sleep(0.01)

    def _send(self) -> None:
        rng, target = self._rng, self._rng.choice(self._targets)
        may_be_lost = time.monotonic() - self._lost_at_s > LOST_EVERY_S
        request_id = draw_id(rng, target.name, self._number, fault_share=0.15, may_be_lost=may_be_lost)
        if request_id.startswith("lost-"):
            self._lost_at_s = time.monotonic()
        index = rng.randrange(len(target.wishes))
        fields: dict[str, Any] = {"latency_class": rng.choice(("interactive", "standard", "batch"))}
        if rng.random() < 0.5:
            fields["deadline_s"] = rng.uniform(0.1, 10.0)
        self._number += 1
        request = target.request(target.wishes[index], request_id, **fields)
        try:
            handle = target.engine.submit(request, on_event=self.tally.listener())
        except QueueFullError:
            self.num_refused += 1
            return
        self.tally.accepted += 1
        cancel_at_s = time.monotonic() + rng.choice((0.0, rng.expovariate(2.0))) if rng.random() < 0.15 else None
        self._open.append(Sent(target, index, request_id, handle, cancel_at_s))

    def _look_after(self) -> None:
        """Cancel what is to be cancelled, and judge what has ended."""
        now = time.monotonic()
        for sent in self._open:
            if sent.cancel_at_s is not None and not sent.is_cancelled and sent.cancel_at_s <= now:
                sent.is_cancelled = True
                sent.handle.cancel()
        still_open = []
        for sent in self._open:
            if sent.handle.is_done:  # asked once: it may end at any moment
                self._judge(sent)
            else:
                still_open.append(sent)
        self._open = still_open

    def _judge(self, sent: Sent) -> None:
        tally = self.tally
        tally.judge_events(sent.request_id)
        try:
            result = sent.handle.result()
        except CancelledError:
            tally.ends["cancelled"] += 1
            tally.failed_innocent += not sent.is_cancelled
        except FastVideoError as error:
            tally.ends[type(error).__name__] += 1
            tally.failed_innocent += sent.request_id.startswith(("good-", "lost-"))
        else:
            tally.ends["completed"] += 1
            # A request that was told to fail and did not would be wrong too.
            tally.wrong += not sent.request_id.startswith(("good-", "lost-"))
            tally.judge_result(result, sent.target.expected[sent.index], sent.wish, sent.target.max_error)


def resident_bytes() -> tuple[int, int]:
    """Return the resident memory of this process after a collection of garbage, and once free pages are given back."""
    gc.collect()
    kept = _resident_bytes()
    with suppress(OSError, AttributeError):  # only glibc has it
        ctypes.CDLL(None).malloc_trim(0)
    return kept, _resident_bytes()


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def soak(targets: list[Target], seconds: float, warmup_s: float) -> dict[str, Any]:
    """Run the load and return the figures."""
    run = Soak(targets, seed=7, max_open=40)
    run.run(warmup_s)
    before, used_before = resident_bytes()
    run.run(seconds)
    after, used_after = resident_bytes()
    tally = run.tally
    return {
        "lost": tally.lost + tally.accepted - sum(tally.ends.values()),
        "wrong": tally.wrong,
        "memory_growth_ratio": after / before,
        "used_growth_ratio": used_after / used_before,
        "failed_innocent": tally.failed_innocent,
        "accepted": tally.accepted,
        "refused": run.num_refused,
        "ends": dict(tally.ends),
        "largest_error": tally.largest_error,
        "resident_mib": before / 2**20,
        "is_healthy": all(target.engine.is_healthy for target in targets),
    }


def main() -> None:
    """Measure and print."""
    parser = make_parser(__doc__.splitlines()[0])
    add_weights(parser)
    parser.add_argument("--minutes", type=float, default=10.0, help="length of the load (default: %(default)s)")
    parser.add_argument("--warmup", type=float, default=300.0, help="seconds of load before (default: %(default)s)")
    args = parser.parse_args()
    faults = Faults()
    with tempfile.TemporaryDirectory() as folder:
        cards = {"tiny": write_tiny_checkpoint(Path(folder) / "tiny"), "shapes": shapes_card(args.weights)}
        wishes: dict[str, Callable[[], list[Wish]]] = {"tiny": tiny_wishes, "shapes": shapes_wishes}
        targets = [make_target(name, card, wishes[name](), faults) for name, card in cards.items()]
        figures = soak(targets, 60 * args.minutes, args.warmup)
        for target in targets:
            target.engine.close()
    report({**figures, "faults": dict(faults.num_struck), "minutes": args.minutes}, as_json=args.json)


if __name__ == "__main__":
    main()
