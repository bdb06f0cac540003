from __future__ import annotations

import json
import subprocess
import sys

import pytest

from fastvideo_core.cli.main import main

KEYS = {
    "worst_chunk_latency_s", "p99_chunk_latency_s", "gpu_cost", "gpu_hours", "num_migrations", "num_suspends",
    "slo_violations", "decide_ms_p50", "decide_ms_p99",
}  # fmt: skip


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "trace.csv"
    assert main(["fleet", "trace", "make", "-o", str(path), "--max-gpus", "4", "--minutes", "5"]) == 0
    return path


def test_simulate_prints_every_key(trace, capsys):
    capsys.readouterr()
    assert main(["fleet", "simulate", "--trace", str(trace), "--policy", "fastvideo", "--max-gpus", "4", "--json"]) == 0
    assert json.loads(capsys.readouterr().out).keys() >= KEYS


def test_simulate_prints_a_table_and_draws(trace, tmp_path, capsys):
    figure = tmp_path / "run.png"
    assert main(["fleet", "simulate", "--trace", str(trace), "--max-gpus", "4", "--plot", str(figure)]) == 0
    assert "worst_chunk_latency_s" in capsys.readouterr().out
    assert figure.read_bytes().startswith(b"\x89PNG")


def test_compare_runs_all_policies(trace, tmp_path, capsys):
    figure = tmp_path / "all.png"
    arguments = ["fleet", "compare", "--trace", str(trace), "--max-gpus", "4", "--sessions-per-gpu", "6"]
    capsys.readouterr()
    assert main([*arguments, "--json", "--plot", str(figure)]) == 0
    results = json.loads(capsys.readouterr().out)
    assert {"fastvideo", "turboserve", "round-robin", "load-aware", "memory-aware"} <= results.keys()
    assert all(result.keys() >= KEYS for result in results.values())
    assert results["round-robin"]["gpu_hours"] == pytest.approx(4 * 5 / 60)
    assert figure.stat().st_size > 10_000
    assert main([*arguments, "--policies", "load-aware,turboserve", "--num-gpus", "2"]) == 0
    header, *rows = capsys.readouterr().out.splitlines()
    assert header.split()[:2] == ["policy", "worst"]
    assert [row.split()[0] for row in rows] == ["load-aware", "turboserve"]


def test_making_a_trace_is_repeatable_and_never_writes_over(trace, tmp_path, capsys):
    again = tmp_path / "again.csv"
    assert main(["fleet", "trace", "make", "-o", str(again), "--max-gpus", "4", "--minutes", "5"]) == 0
    assert again.read_bytes() == trace.read_bytes()
    assert main(["fleet", "trace", "make", "-o", str(again), "--max-gpus", "4"]) == 2
    assert "nothing is written over" in capsys.readouterr().err


def test_check_and_show(trace, tmp_path, capsys):
    assert main(["fleet", "trace", "check", str(trace)]) == 0
    assert "is valid" in capsys.readouterr().out
    assert main(["fleet", "trace", "show", str(trace), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["duration_s"] == 300
    bad = tmp_path / "bad.csv"
    bad.write_text(trace.read_text().replace("arrive", "arive", 1))
    assert main(["fleet", "trace", "check", str(bad)]) == 2
    error = capsys.readouterr().err
    assert "line 2" in error
    assert "event='arive'" in error
    assert "nearest: arrive" in error


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--max-gpus", "0"], "max_gpus=0"),
        (["--max-gpus", "4", "--sessions-per-gpu", "0"], "sessions_per_gpu=0"),
        (["--max-gpus", "4", "--policy", "roundrobin"], "nearest: round-robin"),
        (["--max-gpus", "4", "--calibration", "h100"], "calibration='h100'"),
        (["--max-gpus", "4", "--latency-weight", "0"], "latency_weight=0"),
        (["--max-gpus", "4", "--fail", "5"], "TIME:WORKER"),
        (["--max-gpus", "4", "--fail", "5:9"], "no such failure"),
        (["--max-gpus", "4", "--plot", "run.txt"], "ends in .png"),
        (["--max-gpus", "4", "--plot", "missing/run.png"], "no such folder"),
        (["--max-gpus", "4", "--fleet", "f.json"], "without --fleet"),
        ([], "--max-gpus N, or --fleet"),
        (["--max-gpus", "four"], "max-gpus"),
    ],
)
def test_bad_input_ends_in_one_line(trace, flags, message, capsys):
    capsys.readouterr()
    assert main(["fleet", "simulate", "--trace", str(trace), *flags]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_trace_of_an_unknown_model_is_refused(tmp_path, capsys):
    path = tmp_path / "t.csv"
    path.write_text("time_s,session_id,event,attributes\n0,a,arrive,model=wan\n")
    assert main(["fleet", "simulate", "--trace", str(path), "--max-gpus", "1"]) == 2
    assert "model='wan'" in capsys.readouterr().err


def test_failures_can_be_asked_for(trace, capsys):
    capsys.readouterr()
    arguments = ["fleet", "simulate", "--trace", str(trace), "--max-gpus", "4", "--json", "--policy", "load-aware"]
    assert main([*arguments, "--fail", "100:0", "--fail", "101:1"]) == 0
    assert json.loads(capsys.readouterr().out)["gpu_hours"] == pytest.approx((2 * 300 + 100 + 101) / 3600)


@pytest.mark.parametrize("command", ["simulate", "compare", "trace make", "trace check", "trace show"])
def test_help_imports_neither_torch_nor_numpy(command):
    code = (
        "import sys; from fastvideo_core.cli.main import main; "
        f"main(['fleet', *{command.split()!r}, '--help']); "
        "print({'torch', 'numpy'} & set(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert "usage: fastvideo fleet" in done.stdout
    assert done.stderr.strip() == "set()"
