from __future__ import annotations

import json
import sys
import types
from pathlib import Path

import pytest
import torch

from fastvideo_core.card import ParityLevel, ParityTestSpec
from fastvideo_core.errors import NonFiniteError, ParityError, ResourceError
from fastvideo_core.parity import Comparison, Measurement, ParityReport, load_reference, run_ladder
from fastvideo_testing.tiny import tiny_card

HERE = "fastvideo_ladder_checks"


class Instance:
    precision = "float32"


def measured(*distances, mode="default", detail=""):
    return [Measurement(f"m{i}", mode, Comparison(d == 0, d, d), detail) for i, d in enumerate(distances)]


def raising(error):
    def check(context):
        raise error

    return check


CHECKS = {
    "good": lambda context: measured(0.0, mode="exact") + measured(1e-6),
    "unequal": lambda context: measured(0.0, 1e-9, mode="exact", detail="tap 3 (block.1) is off"),
    "far": lambda context: measured(1e-6, 1e-4),
    "nan": lambda context: measured(float("inf")),
    "nothing": lambda context: [],
    "no_list": lambda context: None,
    "no_reference": raising(ParityError("the reference is not installed")),
    "no_memory": raising(ResourceError("no room")),
    "no_file": raising(FileNotFoundError("two\nlines")),
    "no_module": raising(ImportError("no torch")),
    "broken_model": raising(NonFiniteError("step 2 gave NaN")),
    "broken_check": raising(ValueError("two\nlines")),
}


@pytest.fixture(autouse=True)
def checks(monkeypatch):
    module = types.ModuleType(HERE)
    vars(module).update(CHECKS)
    monkeypatch.setitem(sys.modules, HERE, module)
    return module


def spec(check, *, level="C0", reference="diffusers", **fields):
    return ParityTestSpec(
        test_id=fields.pop("test_id", check.replace("_", "-")), level=level, subject="x", reference=reference,
        check=f"{HERE}:{check}", **fields,
    )  # fmt: skip


def card_with(*tests):
    card = tiny_card(Path("weights"))
    return card.model_copy(update={"parity": card.parity.model_copy(update={"tests": tests})})


def ladder(*tests, **options):
    return run_ladder(card_with(*tests), Instance(), Path("weights"), **options)


@pytest.mark.parametrize(
    ("check", "status", "reason"),
    [
        ("good", "passed", ""),
        ("unequal", "failed", "m1 (exact) differs by 1e-09 relative; wanted: equal bits; tap 3 (block.1) is off"),
        ("far", "failed", "m1 (default) differs by 0.0001 relative; allowed: 1e-05"),
        ("nan", "failed", "m0 (default) differs by inf relative; allowed: 1e-05"),
        ("nothing", "failed", "the check measured nothing"),
        ("no_list", "failed", "TypeError: 'NoneType' object is not iterable"),
        ("no_reference", "not_run", "the reference is not installed"),
        ("no_memory", "not_run", "no room"),
        ("no_file", "not_run", "FileNotFoundError: two lines"),
        ("no_module", "not_run", "ImportError: no torch"),
        ("broken_model", "failed", "step 2 gave NaN"),
        ("broken_check", "failed", "ValueError: two lines"),
        (
            "missing",
            "not_run",
            "the card names 'fastvideo_ladder_checks:missing', which cannot be imported: AttributeError",
        ),
    ],
)
def test_what_becomes_of_a_check(check, status, reason):
    report = ladder(spec("good", test_id="first"), spec(check))
    assert [c.status for c in report.checks] == ["passed", status]
    assert report.checks[1].reason.startswith(reason)
    assert (report.checks[1].reason == "") == (reason == "")
    assert report.is_passed == (status == "passed")
    assert all(c.duration_s >= 0 for c in report.checks)


def test_where_bits_are_not_declared_equal_the_bound_holds():
    assert ladder(spec("unequal", exact_bits=False)).is_passed
    assert not ladder(spec("unequal", exact_bits=False, max_relative_error=1e-12)).is_passed
    assert ladder(spec("far", max_relative_error=1e-3)).is_passed


def test_a_check_of_another_precision_says_so_and_does_not_pass():
    report = ladder(spec("good", precision="bfloat16"))
    assert (report.checks[0].status, report.is_passed) == ("not_run", False)
    assert report.checks[0].reason == "declared for bfloat16, the model is loaded in float32"


def test_lower_rungs_run_first_and_are_told_at_once():
    told = []
    tests = [spec("good", test_id=name, level=level) for name, level in [("a", "C1"), ("b", "C0"), ("c", "C1")]]
    report = ladder(*tests, on_check=lambda check: told.append(check.spec.test_id))
    assert told == ["b", "a", "c"] == [check.spec.test_id for check in report.checks]
    assert card_with(*tests).parity.at_level(ParityLevel.C1) == (tests[0], tests[2])


def test_a_reference_chooses_among_the_checks():
    tests = [spec("good", test_id="a"), spec("good", test_id="b", reference="float64-formula")]
    assert [c.spec.test_id for c in ladder(*tests, reference="diffusers").checks] == ["a"]
    nothing = ladder(*tests, reference="other")
    assert (nothing.checks, nothing.is_passed) == ((), False)
    assert not ladder().is_passed
    assert not ParityReport("x", "float32").is_passed


def test_a_check_is_given_what_it_needs(checks):
    seen = []
    checks.good = lambda context: seen.append(context) or measured(0.0)
    ladder(spec("good"), parameters={"num_frames": 5})
    (context,) = seen
    assert (context.card.model_id, context.spec.test_id, context.folder) == ("tiny", "good", Path("weights"))
    assert context.parameters == {"num_frames": 5}
    assert context.instance.precision == "float32"


def test_a_report_is_plain_json():
    data = ladder(spec("good"), spec("nan", level="C1")).to_json()
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    assert (data["card"], data["precision"], data["passed"]) == ("tiny", "float32", False)
    good, nan = data["checks"]
    assert (good["test"], good["level"], good["status"]) == ("good", "C0", "passed")
    assert good["measurements"][1] == {
        "name": "m0", "mode": "default", "is_equal": False, "max_absolute": 1e-6, "max_relative": 1e-6, "detail": "",
    }  # fmt: skip
    assert nan["measurements"][0]["max_relative"] is None


def test_references_are_imported_on_demand():
    assert load_reference("torch") is torch
    with pytest.raises(ParityError, match="'no_such_reference' cannot be imported .*pip install no_such_reference"):
        load_reference("no_such_reference")
