"""The benchmarks of the runtime run, and print the figures that they promise. What the figures are is not tested."""

from __future__ import annotations

import json
import sys

import pytest

import _shapes
import mixed_load


@pytest.fixture
def run(monkeypatch, capsys):
    def run(module, *arguments):
        monkeypatch.setattr(sys, "argv", ["benchmark", "--json", *arguments])
        module.main()
        return json.loads(capsys.readouterr().out.splitlines()[-1])

    return run


def test_the_mixed_load_prints_ratios_and_a_verdict(run):
    figures = run(mixed_load, "--quick", "--only", "first", "--seconds", "1", "--rounds", "1")
    assert figures["p95_short_ratio"] > 0
    assert figures["long_total_ratio"] > 0
    assert figures["lost"] == 0
    assert figures["verdict_step_level"] in {"keep step-level dispatch", "request-level dispatch does"}
    assert figures["yardstick_us"] > 0


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # of the reference library
def test_throughput_prints_all_speedups(run):
    import throughput

    figures = run(throughput, "--quick", "--rounds", "1")
    assert {"speedup_vs_diffusers_2", "speedup_vs_serial_2", "speedup_images_6"} <= figures.keys()
    assert figures["error"] < 1e-4


@pytest.mark.slow
def test_the_other_parts_of_the_mixed_load_print_verdicts(run):
    parts = ("second", "tiles", "transfers", "pools")
    figures = run(mixed_load, "--quick", "--only", *parts, "--seconds", "1", "--rounds", "1")
    assert -1 <= figures["slo_attainment_gain"] <= 1
    assert {"verdict_tiles", "verdict_transfers", "verdict_pools"} <= figures.keys()


def test_prompts_are_of_the_models_words_and_hardly_ever_the_same():
    texts = _shapes.prompts()
    some = [next(texts) for _ in range(200)]
    assert len(set(some)) > 190
    tokenizer = _shapes.load_shapes().view.component("tokenizer")
    assert not any(tokenizer.unknown_words(text) for text in some)


def test_calls_are_clocked_only_while_that_is_asked_for():
    instance = _shapes.load_shapes()
    bodies = dict(instance.steps)
    with _shapes.clocked(instance) as calls:
        assert instance.steps["text_encode"] is not bodies["text_encode"]
    assert instance.steps == bodies
    assert calls == []


def test_spans_reach_from_the_first_call_to_the_last():
    step, other = _shapes.DENOISE_STEP, "vae_decode"
    calls = [
        _shapes.Call(other, ("a",), 0.0, 1.0),
        _shapes.Call(step, ("a", "b"), 2.0, 3.0),
        _shapes.Call(step, ("b",), 5.0, 7.0),
        _shapes.Call(other, ("a", "b"), 8.0, 9.0),
    ]
    assert _shapes.span_s(calls) == 5.0
    assert _shapes.spans_by_request(calls) == {"a": 1.0, "b": 5.0}
