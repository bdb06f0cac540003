from __future__ import annotations

import pytest

from fastvideo_core.errors import InputError
from fastvideo_core.runtime.scheduler.base import DEFAULT_CLASSES, SchedulerConfig


@pytest.mark.parametrize("name", ["max_running", "max_queued", "max_batch"])
def test_a_limit_of_nothing_is_refused(name):
    assert getattr(SchedulerConfig(**{name: 1}), name) == 1
    with pytest.raises(InputError, match=f"{name}=0: too few; allowed: 1 or more; nearest: 1"):
        SchedulerConfig(**{name: 0})


@pytest.mark.parametrize("seconds", [0, -1.0])
def test_a_cost_class_begins_at_some_time(seconds):
    with pytest.raises(InputError, match=f"jumbo_s={seconds}: not a time; allowed: above 0"):
        SchedulerConfig(jumbo_s=seconds)


def test_the_more_urgent_a_class_the_earlier_it_loses_patience():
    classes = [DEFAULT_CLASSES[name] for name in ("interactive", "standard", "batch")]
    assert [one.rank for one in classes] == [0, 1, 2]
    assert [one.patience_s for one in classes] == sorted(one.patience_s for one in classes)
    assert all(one.name == name for name, one in DEFAULT_CLASSES.items())
