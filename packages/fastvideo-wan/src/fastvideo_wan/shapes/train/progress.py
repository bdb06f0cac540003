"""Progress lines of a stage: step, averaged figures, time left."""

from __future__ import annotations

import time

from fastvideo_wan.shapes.train.config import Schedule


class Progress:
    """Prints a line every `schedule.report_every` steps.

    Args:
        name: The stage's.
        schedule: Its schedule.
        start: Steps done before.
        is_shown: Whether this process prints.
    """

    def __init__(self, name: str, schedule: Schedule, start: int, *, is_shown: bool) -> None:
        self.name = name
        self.schedule = schedule
        self.is_shown = is_shown
        self.start = start
        self.started_s = time.monotonic()
        self.sums: dict[str, float] = {}
        self.num_summed = 0

    def report(self, step: int, figures: dict[str, float]) -> None:
        """Take the figures of a step, from 0; print their means when a line is due."""
        for name, value in figures.items():
            self.sums[name] = self.sums.get(name, 0.0) + value
        self.num_summed += 1
        num_done = step + 1
        if num_done % self.schedule.report_every and num_done != self.schedule.num_steps:
            return
        if self.is_shown:
            print(self._line(num_done), flush=True)
        self.sums, self.num_summed = {}, 0

    def _line(self, num_done: int) -> str:
        elapsed_s = time.monotonic() - self.started_s
        step_s = elapsed_s / max(1, num_done - self.start)
        left_min = step_s * (self.schedule.num_steps - num_done) / 60
        means = "  ".join(f"{name} {value / self.num_summed:.4g}" for name, value in self.sums.items())
        rate = self.schedule.rate_at(num_done - 1)
        return (
            f"{self.name} {num_done}/{self.schedule.num_steps}  {means}  rate {rate:.2e}  "
            f"{step_s:.2f} s/step  {left_min:.0f} min left"
        )
