"""The benchmark of hooks runs, and prints the figures that it promises. What the figures are is not tested."""

from __future__ import annotations

import json
import sys

import hooks


def test_it_prints_what_hooks_cost(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["benchmark", "--json", "--rounds", "1"])
    hooks.main()
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert {"overhead_unused_us", "noise_us", "observer_us", "tensors_us", "interceptor_us"} <= figures.keys()
    assert figures["step_us"] > 0
