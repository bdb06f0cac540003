"""The benchmark of the caches runs, and prints the figures that it promises. What they are is not tested."""

from __future__ import annotations

import json
import sys

import cachedit


def test_it_prints_speedups_and_errors(monkeypatch, capsys):
    mask, blocks = {"mask": [1, 1, 0, 0, 0, 1, 0, 0]}, {"warmup_steps": 2, "threshold": 1.0}
    options = ["--options", json.dumps(mask), "--options-8-layer", json.dumps(blocks)]
    arguments = ["--json", "--rounds", "1", "--steps", "8", *options]
    monkeypatch.setattr(sys, "argv", ["benchmark", *arguments])
    # A smaller model than the one that is measured.
    monkeypatch.setitem(cachedit.SIZES_8_LAYER, "transformer", {"num_layers": 8})
    cachedit.main()
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert figures["interleaved_equal"] is True
    for name in ("shapes", "8_layer"):
        assert figures[f"speedup_{name}"] > 0
        assert 0 < figures[f"error_{name}"] < 1
        assert figures[f"cached_{name}"] == 5, "two steps first, then three of four are not"
