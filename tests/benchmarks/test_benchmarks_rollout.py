"""The benchmark of rollouts runs, and prints the figures that it promises. What the times are is not tested."""

from __future__ import annotations

import ast
import json
import sys

import rollout


def test_it_prints_its_figures(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["benchmark", "--json", "--rounds", "1", "--group", "2", "--steps", "2"])
    rollout.main()
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert figures["rollout_gain_24"] > 0
    assert figures["gain_low"] <= figures["rollout_gain_24"] <= figures["gain_high"]
    assert figures["sync_pause_ratio"] > 0
    assert figures["capture_overhead"] > -1
    assert figures["text_encodes_per_group"] == 1
    assert figures["private_loops"] == 0


def test_a_private_loop_would_be_seen(monkeypatch):
    code = "for t in times:\n    v = roles.predict('student', [x])\n    x = x - v"
    tree = ast.parse(code)
    monkeypatch.setattr(rollout.ast, "parse", lambda text: tree)
    assert rollout.private_loops()
