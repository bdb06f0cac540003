"""When to write a checkpoint: when what would be lost is worth what the writing costs."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

__all__ = ["CheckpointAccount", "CheckpointPolicy", "CheckpointTotals"]

_NUM_RECENT = 3


@dataclass(frozen=True, slots=True)
class CheckpointPolicy:
    """Decides by seconds alone; holds nothing.

    Checkpoints take at most `max_share` of the compute. So what a crash costs is about the time that one write takes,
    divided by that share: five seconds where one takes a twentieth of a second.

    Attributes:
        max_share: Most seconds of writing for a second of compute.
        min_at_risk_s: Less compute than this is never worth a write.
        max_at_risk_s: No more compute than this is ever at risk, whatever a write costs; at the default that makes a
            difference only where one takes longer than 18 s.
    """

    max_share: float = 0.01
    min_at_risk_s: float = 1.0
    max_at_risk_s: float = 1800.0

    def should_write(self, account: CheckpointAccount) -> bool:
        """Tell whether a checkpoint is to be written now."""
        if account.at_risk_s < self.min_at_risk_s:
            return False
        if account.at_risk_s >= self.max_at_risk_s:
            return True
        return account.written_s + account.expected_write_s <= self.max_share * account.compute_s


@dataclass(slots=True)
class CheckpointAccount:
    """What has been spent on one job.

    Attributes:
        first_write_s: What a write is taken to cost until one has been measured: rather too much, since a job that ends
            soon after its first checkpoint has no time to make up for one that was dear.
        compute_s: Seconds of compute.
        at_risk_s: Those of them that came after the last checkpoint.
        written_s: Seconds of writing.
        recent_s: Seconds of the last few writes.
    """

    first_write_s: float = 0.1
    compute_s: float = 0.0
    at_risk_s: float = 0.0
    written_s: float = 0.0
    recent_s: deque[float] = field(default_factory=lambda: deque(maxlen=_NUM_RECENT))

    @property
    def expected_write_s(self) -> float:
        """What the next write will take: as long as the longest of the last few."""
        return max(self.recent_s, default=self.first_write_s)

    def worked(self, seconds: float) -> None:
        """Note compute that no checkpoint holds."""
        self.compute_s += seconds
        self.at_risk_s += seconds

    def wrote(self, seconds: float, *, saved_s: float) -> None:
        """Note a write, whether it came to anything or not.

        Args:
            seconds: What it took.
            saved_s: Seconds of compute that are not at risk any more.
        """
        self.written_s += seconds
        self.recent_s.append(seconds)
        self.at_risk_s = max(0.0, self.at_risk_s - saved_s)


@dataclass(frozen=True, slots=True)
class CheckpointTotals:
    """What has been spent on all jobs of a store since it was opened.

    Attributes:
        compute_s: Seconds of compute.
        written_s: Seconds of writing checkpoints, whether they came to anything or not.
        num_written: Checkpoints written.
    """

    compute_s: float = 0.0
    written_s: float = 0.0
    num_written: int = 0
