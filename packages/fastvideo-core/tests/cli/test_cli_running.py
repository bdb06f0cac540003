from __future__ import annotations

import json
import shutil

import pytest


@pytest.fixture
def weightless(tiny, tmp_path):
    """A checkpoint that has everything but weights."""
    folder = tmp_path / "weightless"
    shutil.copytree(tiny, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    return folder


def test_a_long_prompt_is_refused_before_weights_are_looked_for(run, weightless):
    ran = run("generate", "x" * 129, "--card", weightless)
    assert ran.code == 2
    assert ran.error.endswith("the text has 129 tokens; allowed: at most 128 tokens")
    assert run("generate", "x" * 128, "--card", weightless).code == 1


def test_lines_with_long_prompts_need_no_weights(run, weightless, place):
    lines = [{"prompt": "x" * 129}, {"prompt": "x", "negative_prompt": "y" * 130}]
    (place / "requests.jsonl").write_text("\n".join(map(json.dumps, lines)))
    ran = run("batch", "requests.jsonl", "-o", "out", "--card", weightless)
    assert ran.code == 2
    entries = json.loads((place / "out/summary.json").read_text())["requests"]
    assert [entry["status"] for entry in entries] == ["refused", "refused"]
    assert [entry["error"]["field"] for entry in entries] == ["prompt", "negative_prompt"]


def test_a_long_prompt_beside_a_good_one(run, tiny, place):
    lines = [{"prompt": "x" * 129}, {"id": "good", "prompt": "x", "num_inference_steps": 1}]
    (place / "requests.jsonl").write_text("\n".join(map(json.dumps, lines)))
    ran = run("batch", "requests.jsonl", "-o", "out", "--card", tiny)
    assert ran.code == 2
    assert ran.out == "out/good.mp4\nout/summary.json\n"
    said = [line.partition(":")[0] for line in ran.err.splitlines()]
    assert said.index("error") < said.index("loaded transformer")
