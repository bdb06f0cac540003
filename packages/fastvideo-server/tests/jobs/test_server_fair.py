from __future__ import annotations

import pytest

from fastvideo_server.config import KeyConfig, ServerConfig
from fastvideo_server.errors import ApiError
from fastvideo_server.jobs.fair import FairQueue
from fastvideo_server.jobs.quotas import Keys


def drain(queue):
    taken = []
    while (item := queue.take()) is not None:
        taken.append(item)
    return taken


def test_owners_take_turns_whoever_came_first():
    queue = FairQueue()
    for number in range(4):
        queue.put(f"a{number}", owner="a")
    for number in range(2):
        queue.put(f"b{number}", owner="b")
    assert drain(queue) == ["a0", "b0", "a1", "b1", "a2", "a3"]


def test_shares_follow_the_weights():
    queue = FairQueue()
    for number in range(30):
        queue.put(("a", number), owner="a", weight=2)
        queue.put(("b", number), owner="b", weight=1)
    first = [owner for owner, _ in drain(queue)[:30]]
    assert (first.count("a"), first.count("b")) == (20, 10)


def test_who_was_away_has_saved_nothing_up():
    queue = FairQueue()
    for number in range(10):
        queue.put(f"a{number}", owner="a")
    for _ in range(6):
        queue.take()
    for number in range(6):
        queue.put(f"b{number}", owner="b")
    assert [item[0] for item in drain(queue)[:8]].count("a") == 4


def test_the_urgent_goes_first_and_one_can_be_taken_out():
    queue = FairQueue()
    queue.put("batch", owner="a", rank=2)
    queue.put("gone", owner="a", rank=1)
    queue.put("usual", owner="b", rank=1)
    queue.put("now", owner="b", rank=0)
    assert len(queue) == 4
    assert queue.remove("gone")
    assert not queue.remove("gone")
    assert drain(queue) == ["now", "usual", "batch"]
    assert len(queue) == 0


def keys(now, **fields):
    config = ServerConfig(keys=(KeyConfig(name="ann", sha256="0" * 64, **fields),))
    return Keys(config, clock=lambda: now[0])


def test_a_rate_refills():
    now = [0.0]
    known = keys(now, requests_per_minute=60)
    ann = known.named("ann")
    for _ in range(60):
        known.spend(ann)
    with pytest.raises(ApiError) as refused:
        known.spend(ann)
    assert (refused.value.status, refused.value.headers["Retry-After"]) == (429, "1")
    now[0] = 2.0
    known.spend(ann)
    known.spend(ann)
    with pytest.raises(ApiError):
        known.spend(ann)


def test_a_key_that_is_gone_still_names_its_jobs():
    assert keys([0.0]).named("bob").name == "bob"


@pytest.mark.parametrize(
    "fields",
    [
        {"host": "0.0.0.0"},
        {"tls_key": "a.pem"},
        {"keys": [{"name": "a", "sha256": "0" * 64}, {"name": "a", "sha256": "1" * 64}]},
        {"keys": [{"name": "a", "sha256": "secret"}]},
        {"keys": [{"name": "../a", "sha256": "0" * 64}]},
        {"port": 70000},
        {"colour": "red"},
    ],
)
def test_settings_that_are_refused(fields):
    with pytest.raises(ValueError, match="validation error"):
        ServerConfig.model_validate(fields)
