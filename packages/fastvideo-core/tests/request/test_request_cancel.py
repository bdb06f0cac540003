from __future__ import annotations

import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastvideo_core.errors import CancelledError
from fastvideo_core.request.cancel import CancelScope, CancelState

KINDS = ("session", "request", "stream", "loop")
PATHS = st.lists(st.sampled_from("ab"), min_size=1, max_size=4).map(tuple)


def scope_of(names):
    scope = None
    for kind, name in zip(KINDS, names, strict=False):
        scope = CancelScope(kind, name, scope)
    return scope


@settings(max_examples=40)
@given(st.lists(PATHS, max_size=3), PATHS)
def test_a_scope_is_cancelled_with_those_around_it(cancelled, names):
    state = CancelState()
    for target in cancelled:
        state.cancel(scope_of(target), "/".join(target))
    around = [target for target in cancelled if names[: len(target)] == target]
    reason = state.reason(scope_of(names))
    assert (reason is None) == (not around)
    if around:
        assert reason == "/".join(around[0])
        with pytest.raises(CancelledError, match=f"session:.*: {reason}$"):
            state.check(scope_of(names))
    else:
        state.check(scope_of(names))


def test_the_first_reason_stays():
    state, scope = CancelState(), CancelScope("request", "a")
    state.cancel(scope, "first")
    state.cancel(scope, "second")
    assert state.reason(scope.child("loop", "b")) == "first"


def test_a_path_tells_the_scopes():
    scope = CancelScope("request", "a").child("loop", "denoise")
    assert scope.path() == "request:a/loop:denoise"
    assert scope.is_within(CancelScope("request", "a"))
    assert not scope.is_within(CancelScope("request", "b"))
    assert not CancelScope("request", "a").is_within(scope)


def test_whoever_listens_is_woken_by_every_cancellation():
    state, scope, calls = CancelState(), CancelScope("request", "a"), []
    state.cancel(scope.child("loop", "b"), "before")
    state.listen(lambda: calls.append(state.reason(scope)))
    state.cancel(scope.child("loop", "c"), "inside")
    state.cancel(scope, "now")
    state.cancel(scope, "later")
    assert calls == [None, "now", "now"]


def test_asking_while_other_threads_cancel():
    state, scope = CancelState(), CancelScope("request", "mine")
    stop = threading.Event()

    def cancel_others(index):
        number = 0
        while not stop.is_set() and number < 2000:
            state.cancel(CancelScope("request", f"{index}-{number}"))
            number += 1

    threads = [threading.Thread(target=cancel_others, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    try:
        assert all(state.reason(scope) is None for _ in range(50))
    finally:
        stop.set()
        for thread in threads:
            thread.join()
