from __future__ import annotations

import json
import re
import sys
import types

import pytest
import torch

from fastvideo_core.card import ParityTestSpec
from fastvideo_core.errors import ParityError
from fastvideo_core.parity import Measurement, compare_tensors
from fastvideo_testing.tiny import tiny_card, write_tiny_checkpoint

HERE = "fastvideo_checks_of_these_tests"
ONE = (("passes", "formula", "float32"),)


def measure(distance, mode="default"):
    reference = torch.ones(3)
    return Measurement("x", mode, compare_tensors(reference + distance, reference))


@pytest.fixture
def checks(monkeypatch):
    """A module with checks that cards of these tests name; it notes what they are given."""
    module = types.ModuleType(HERE)
    module.seen = []

    def passes(context):
        module.seen.append(context)
        return [measure(0.0, "exact"), measure(1e-6)]

    def fails(context):
        return [measure(1e-3)]

    def cannot_run(context):
        raise ParityError("the reference is not installed")

    module.passes, module.fails, module.cannot_run = passes, fails, cannot_run
    monkeypatch.setitem(sys.modules, HERE, module)
    return module


@pytest.fixture
def write(tmp_path):
    """Write a checkpoint whose card declares some comparisons: name and check, reference, precision."""

    def write_card(*tests):
        specs = tuple(
            ParityTestSpec(test_id=name, level="C0", subject="s", reference=of, check=f"{HERE}:{name}", precision=p)
            for name, of, p in tests
        )

        def make_card(folder):
            card = tiny_card(folder)
            return card.model_copy(update={"parity": card.parity.model_copy(update={"tests": specs})})

        write_tiny_checkpoint(tmp_path, make_card=make_card)
        return tmp_path

    return write_card


def test_comparisons_that_pass(run, write, checks):
    ran = run("parity", write(("passes", "formula", "float32")), "--num-frames", 5)
    assert ran.code == 0
    header, exact, default, verdict = ran.out.splitlines()
    assert header.split() == ["level", "check", "what", "mode", "max", "relative", "result"]
    assert exact.split() == ["C0", "passes", "x", "exact", "equal", "passed"]
    assert re.fullmatch(r"C0 +passes +x +default +9\.54e-07 +passed", default)
    assert verdict == "tiny: passed"
    (context,) = checks.seen
    assert context.parameters == {"num_frames": 5}
    assert context.instance.precision == "float32"
    assert (context.folder / "transformer").is_dir()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("fails", r"fails: x \(default\) differs by 0.001 relative; allowed: 1e-05"),
        ("cannot_run", r"cannot_run: the reference is not installed"),
    ],
)
def test_what_fails_or_cannot_run_is_a_failure(name, text, run, write, checks):
    ran = run("parity", write(("passes", "formula", "float32"), (name, "formula", "float32")))
    assert ran.code == 1
    assert re.search(text, ran.out)
    assert ran.out.endswith("tiny: FAILED\n")


def test_only_those_with_one_reference(run, write, checks):
    folder = write(("passes", "formula", "float32"), ("fails", "other", "float32"))
    assert run("parity", folder, "--reference", "formula").code == 0
    assert run("parity", folder, "--reference", "other").code == 1


def test_as_json(run, write, checks):
    report = json.loads(run("parity", write(("passes", "formula", "float32")), "--json").out)
    assert (report["card"], report["passed"], report["checks"][0]["status"]) == ("tiny", True, "passed")


@pytest.mark.parametrize(
    ("tests", "flags", "code", "text"),
    [
        ((), [], 1, "card tiny declares no comparisons"),
        (ONE, ["--reference", "formual"], 2, "reference='formual': .*no comparison with it; .*nearest: formula"),
        (ONE, ["--num-frames", 8], 2, "num_frames=8: .*nearest: 9"),
        (ONE, ["--height", 33, "--num-frames", 9], 2, "height=33: .*nearest: 32"),
    ],
)
def test_bad_input(tests, flags, code, text, run, write, checks):
    ran = run("parity", write(*tests), *flags)
    assert ran.code == code
    assert checks.seen == []
    assert re.search(text, ran.error)
