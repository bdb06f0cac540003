from __future__ import annotations

import json
import platform
import re

import pytest
import torch

from fastvideo_core.runtime import machine as machine_module


def test_what_is_here_and_what_can_run(run, installed):
    ran = run("doctor")
    assert ran.code == 0
    for pattern in (
        rf"^python +{re.escape(platform.python_version())} on ",
        rf"^torch +{re.escape(torch.__version__)}, {torch.backends.cpu.get_cpu_capability()}, \d+ threads, \d+ cores",
        r"^cpu +.* of [\d.]+ GB",
        r"^disk for results +[\d.]+ \wB free, outputs",
        r"^disk for downloads +[\d.]+ \wB free, ",
        r"^video +PyAV [\d.]+, all encoders",
        r"^plugin model.tiny +tiny-plugin 1.0, loaded",
        r"^plugin model.broken +broken-plugin 0.1, failed: ImportError: no module named nothing",
        r"^tiny +cpu: float32, bfloat16 +float32 28\.\d kB, bfloat16 1\d\.?\d* kB",
        r"^tiny-gone +no folder .*gone",
    ):
        assert re.search(pattern, ran.out, re.MULTILINE), pattern


def test_as_json(run, installed):
    found = json.loads(run("doctor", "--json").out)
    assert found["machine"]["torch"] == torch.__version__
    assert found["machine"]["devices"][0]["name"] == "cpu"
    assert [plugin["error"] is None for plugin in found["plugins"]] == [True, False]
    tiny, gone = found["cards"]
    assert (tiny["can_run"], gone["can_run"]) == (True, False)
    # Half the bytes a weight.
    assert tiny["need_bytes"]["float32"] == 2 * tiny["need_bytes"]["bfloat16"]


def test_too_little_memory_is_a_reason(run, installed, monkeypatch):
    monkeypatch.setattr(machine_module, "available_memory", lambda device="cpu": 20_000)
    ran = run("doctor")
    assert re.search(r"^tiny +cpu: bfloat16 ", ran.out, re.MULTILINE)
    monkeypatch.setattr(machine_module, "available_memory", lambda device="cpu": 1_000)
    ran = run("doctor")
    assert re.search(r"^tiny +cpu: at least 1\d\.?\d* kB needed, 1 kB available", ran.out, re.MULTILINE)
    # Nothing can run.
    assert ran.code == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is an accelerator")
def test_why_there_is_no_gpu(run, installed):
    assert re.search(r"^gpu +none: torch .*CUDA", run("doctor").out, re.MULTILINE)


def test_a_missing_encoder_is_named(run, installed, monkeypatch):
    import av

    monkeypatch.setattr(av, "codecs_available", {"libx264", "aac"})
    assert re.search(
        r"^video +PyAV [\d.]+, no libvpx-vp9 \(.webm\), no libopus \(sound in .webm\)", run("doctor").out, re.MULTILINE
    )


def test_without_a_network(start):
    code = "import socket; socket.socket.connect = None; socket.getaddrinfo = None"
    process = start("doctor", code=code)
    out, err = process.communicate(timeout=100)
    assert process.returncode in (0, 1)
    assert err == ""
    assert "torch" in out
