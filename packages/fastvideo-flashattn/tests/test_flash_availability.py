from __future__ import annotations

import sys

import pytest

from fastvideo_core.errors import ResourceError
from fastvideo_flashattn import availability
from fastvideo_flashattn.availability import best_kernel, why_not, why_not_flash


@pytest.mark.parametrize("number", [2, 3])
def test_what_is_not_installed_says_how_to_get_it(number, releases):
    assert why_not(number).startswith(f"flash-attn {number} is not installed; ")
    assert availability.KERNELS[number].remedy in why_not(number)


@pytest.mark.parametrize(
    ("number", "release", "is_right"),
    [
        (2, "1.0.9", False),
        (2, "2.5.9.post1", False),
        (2, "2.6.0", True),
        (2, "2.8.3.post2", True),
        (2, "3.0.0", False),
        (3, "3.0.0b1", True),
        (3, "3.1", True),
        (3, "2.8.3", False),
        (3, "4.0.0", False),
    ],
)
def test_the_release_decides(number, release, is_right, releases, device, kernel):
    releases["flash-attn" if number == 2 else "flash-attn-3"] = release
    device((9, 0))
    kernel(number, lambda *parts: None)
    reason = why_not(number)
    assert reason is None if is_right else f"and {release} is installed" in reason


def test_an_older_name_of_version_3_counts(releases, device, kernel):
    releases["flashattn-hopper"] = "3.0.0b1"
    device((9, 0))
    kernel(3, lambda *parts: None)
    assert why_not(3) is None


@pytest.mark.parametrize(
    ("number", "capability", "reason"),
    [
        (2, (7, 5), "runs on compute capability 8.0 or newer, and Made-up GPU has 7.5"),
        (2, (8, 0), None),
        (2, (12, 0), None),
        (3, (8, 9), "runs on compute capability 9.0 up to below 10.0, and Made-up GPU has 8.9"),
        (3, (9, 0), None),
        (3, (10, 0), "and Made-up GPU has 10.0"),
    ],
)
def test_the_device_decides(number, capability, reason, releases, device, kernel):
    releases |= {"flash-attn": "2.8.3", "flash-attn-3": "3.0.0"}
    device(capability)
    kernel(number, lambda *parts: None)
    found = why_not(number)
    assert found is None if reason is None else reason in found


def test_without_a_device_it_says_so(releases, monkeypatch):
    releases["flash-attn"] = "2.8.3"
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert why_not(2).startswith("flash-attn 2 runs on CUDA devices, and torch ")


def test_one_that_is_broken_says_why(releases, device, tmp_path, monkeypatch):
    releases["flash-attn"] = "2.8.3"
    device((9, 0))
    monkeypatch.setitem(sys.modules, "flash_attn", None)
    assert why_not(2).startswith("flash-attn 2 cannot be imported: ModuleNotFoundError")
    (tmp_path / "flash_attn.py").write_text("raise OSError('undefined symbol: _ZN3c104')")
    monkeypatch.delitem(sys.modules, "flash_attn")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert why_not(2) == "flash-attn 2 cannot be imported: OSError: undefined symbol: _ZN3c104"
    (tmp_path / "flash_attn.py").write_text("")
    monkeypatch.delitem(sys.modules, "flash_attn", raising=False)
    assert why_not(2).startswith("module flash_attn has no flash_attn_func")
    sys.modules.pop("flash_attn", None)


def test_either_is_enough(releases, device, kernel):
    device((8, 0))
    assert "flash-attn 3 is not installed" in why_not_flash()
    assert "flash-attn 2 is not installed" in why_not_flash()
    with pytest.raises(
        ResourceError, match="flash-attn cannot run here: flash-attn 3 is not installed; .*flash-attn 2"
    ):
        best_kernel()
    releases["flash-attn"] = "2.8.3"
    kernel(2, lambda *parts: None)
    assert why_not_flash() is None
    assert best_kernel() == 2


def test_the_doctor_is_told_the_release_and_the_device(releases, device, kernel):
    with pytest.raises(ResourceError, match="flash-attn 3 is not installed"):
        availability.report_flash3()
    releases["flash-attn"] = "2.8.3"
    device((8, 0))
    kernel(2, lambda *parts: None)
    assert availability.report_flash2() == "2.8.3, on Made-up GPU"
