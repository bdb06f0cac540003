"""The benchmark of sessions runs, and prints the figures that it promises. What the figures are is not tested."""

from __future__ import annotations

import json

import pytest

import streaming
from fastvideo_testing.tiny import tiny_causal_card, write_tiny_checkpoint
from fastvideo_transports.plugin import why_not

KEYS = {
    "fps_one_session", "coalesce_gain_4", "first_chunk_ratio", "suspend_resume_overhead", "migration_overhead",
    "migration_copy_ratio",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.skipif(why_not() is not None, reason="needs shared memory")
def test_it_prints_what_it_promises(tmp_path, capsys):
    write_tiny_checkpoint(tmp_path / "model", make_card=tiny_causal_card)
    arguments = ["--card", str(tmp_path / "model"), "--rounds", "1", "--chunks", "4", "--slabs", "2", "--quick"]
    streaming.main(["--json", *arguments, "--vault", str(tmp_path / "vault")])
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert figures.keys() >= KEYS
    assert all(figures[name] > 0 for name in KEYS - {"migration_overhead"})
    assert figures["migration_overhead"] >= 0
