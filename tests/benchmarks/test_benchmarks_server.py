"""The benchmark of the server runs, and prints the figures that it promises. What the figures are is not tested."""

from __future__ import annotations

import json
import sys

import pytest

import server


@pytest.mark.slow
def test_it_prints_what_the_server_costs_and_keeps(monkeypatch, capsys):
    counts = ["--rounds", "2", "--readers", "4", "--clients", "2", "--dropped", "4"]
    monkeypatch.setattr(sys, "argv", ["benchmark", "--json", *counts])
    server.main()
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert {"added_latency_p95_ms", "create_p50_ms", "fair_share_min", "cancel_steps_max"} <= figures.keys()
    assert (figures["events_lost"], figures["jobs_lost"], figures["calls_left"]) == (0, 0, 0)
    assert figures["events_read"] > 100
