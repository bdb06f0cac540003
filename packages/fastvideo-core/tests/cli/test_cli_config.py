from __future__ import annotations

import json

import pytest


@pytest.fixture
def config(place, monkeypatch):
    """Write a config into the working folder."""
    monkeypatch.delenv("FASTVIDEO_CONFIG", raising=False)

    def write(text, name="deploy.yaml"):
        (place / name).write_text(text)
        return name

    return write


@pytest.fixture
def shown(run):
    """Run `config show --json` and return its rows by key."""

    def show(*arguments):
        ran = run("config", "show", "--json", *arguments)
        assert ran.code == 0, ran.err
        return {row["key"]: (row["value"], row["source"]) for row in json.loads(ran.out)["values"]}

    return show


def test_a_good_config_is_valid(config, run, tiny):
    ran = run("config", "check", config(f"card: {tiny}\nlimits:\n  max_running: 2\n"))
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("deploy.yaml is valid: no plugins besides models and commands; 1 card: ")


@pytest.mark.parametrize(
    ("text", "code", "why"),
    [
        ("limits:\n  max_runing: 2\n", 2, "error: limits.max_runing=2: deploy.yaml, line 2: no such key; allowed:"),
        ("cards:\n  TINY:\n    parameters: {heigth: 16}\n", 2, "line 4: no task of the card has such a parameter;"),
        ("plugins:\n  model.wann:\n", 2, "line 2: no such plugin is installed; allowed:"),
        ("kiosk: {}\n", 2, "line 1: no such key, and no plugin that is on owns such a section"),
        ("card: nothing-like-it\n", 2, "no such card"),
        ("a: [", 2, "not YAML"),
    ],
)
def test_a_bad_config_is_refused_in_one_line(text, code, why, config, run, tiny):
    ran = run("config", "check", config(text.replace("TINY", str(tiny)).replace("cards:", f"card: {tiny}\ncards:")))
    assert ran.code == code
    assert why in ran.error


def test_every_value_is_shown_with_its_source(config, shown, tiny, monkeypatch):
    text = f"card: {tiny}\nlimits:\n  max_running: 2\ncards:\n  tiny:\n    parameters:\n      height: 48\n"
    monkeypatch.setenv("FASTVIDEO__LIMITS__MAX_QUEUED", "9")
    rows = shown("--config", config(text), "--set", "limits.max_batch=5", "--set", "num_frames=13")
    assert rows["limits.max_running"] == (2, "file: deploy.yaml, line 3")
    assert rows["limits.max_queued"] == (9, "environment: variable FASTVIDEO__LIMITS__MAX_QUEUED")
    assert rows["limits.max_batch"] == (5, "request: --set limits.max_batch")
    assert rows["limits.jumbo_s"] == (1.0, "default")
    assert rows["text_to_video.num_frames"] == (13, "request")
    assert rows["text_to_video.height"] == (48, "file: deploy.yaml, line 7")
    assert rows["text_to_video.width"] == (32, "card tiny")


def test_a_table_is_shown_without_json(config, run, tiny):
    ran = run("config", "show", "--card", tiny)
    assert ran.code == 0
    assert "limits.max_running" in ran.out and "card tiny" in ran.out


def test_the_schema_is_json(run):
    ran = run("config", "schema")
    assert json.loads(ran.out)["properties"]["limits"]


def test_a_video_is_made_as_the_config_says(config, run, tiny, place):
    text = (
        f"card: {tiny}\noutput: {{folder: made, format: gif}}\n"
        "cards: {tiny: {parameters: {num_inference_steps: 2, height: 16, width: 16}}}\n"
    )
    ran = run("generate", "x", "--seed", 1, "--config", config(text))
    assert (ran.code, ran.out) == (0, "made/x-1.gif\n")
    sidecar = json.loads((place / "made/x-1.json").read_text())
    assert sidecar["parameters"]["num_inference_steps"] == {"value": 2, "source": "deploy"}
    assert sidecar["parameters"]["num_frames"]["source"] == "card"
    ran = run("generate", "x", "--seed", 1, "--config", "deploy.yaml", "--set", "output.folder=elsewhere")
    assert ran.out == "elsewhere/x-1.gif\n"


def test_keys_of_the_top_level_are_set_without_a_dot(config, run, shown, tiny, place):
    sets = ("--set", f"card={tiny}", "--set", "costs_file=costs.json", "--set", "attention=sdpa")
    rows = shown(*sets, "--set", "num_inference_steps=2")
    assert rows["card"] == (str(tiny), "request: --set card")
    assert rows["costs_file"] == ("costs.json", "request: --set costs_file")
    assert rows["text_to_video.num_inference_steps"] == (2, "request")
    ran = run("generate", "x", "--seed", 1, *sets, "--set", "num_inference_steps=2", "--height", 16, "--width", 16)
    assert ran.code == 0, ran.err
    assert (place / "costs.json").exists()
    (place / "lines.jsonl").write_text('{"id": "a", "prompt": "x", "seed": 1, "height": 16, "width": 16}\n')
    ran = run("batch", "lines.jsonl", "-o", "made", "--set", f"card={tiny}", "--set", "output.format=gif")
    assert ran.code == 0, ran.err
    for value, why in [
        ("attention=flesh", "attention='flesh': --set attention: "),
        ("limits=4", "limits=4: --set limits: "),
        ("costs_fil=x", "costs_fil='x': "),
    ]:
        ran = run("generate", "x", "--set", f"card={tiny}", "--set", value)
        assert (ran.code, why in ran.error) == (2, True), ran.error


def test_what_the_config_says_wrong_ends_before_anything_is_loaded(config, run, tiny, left):
    ran = run("generate", "x", "--config", config(f"card: {tiny}\ncards: {{tiny: {{parameters: {{height: 17}}}}}}\n"))
    assert ran.code == 2
    assert "cards.tiny.parameters.height=17: deploy.yaml, line 2: " in ran.error
    assert left() == ["deploy.yaml"]
    assert (
        run("generate", "x", "--config", "gone.yaml").error
        == "error: gone.yaml cannot be read: No such file or directory"
    )


def test_a_batch_runs_as_the_config_says(config, run, tiny, place):
    (place / "lines.jsonl").write_text('{"id": "a", "prompt": "x", "seed": 1}\n')
    name = config(f"card: {tiny}\ncards: {{tiny: {{parameters: {{num_inference_steps: 2, height: 16, width: 16}}}}}}\n")
    ran = run("batch", "lines.jsonl", "-o", "made", "--format", "gif", "--config", name, "--set", "limits.max_batch=2")
    assert ran.code == 0, ran.err
    sidecar = json.loads((place / "made/a.json").read_text())
    assert sidecar["parameters"]["num_inference_steps"] == {"value": 2, "source": "deploy"}
    for flags, why in [
        (("--state-dir", "s"), "a batch that another process may go on with takes no deploy config"),
        (("--set", "height=16"), "lines have the parameters of their requests"),
    ]:
        ran = run("batch", "lines.jsonl", "-o", "other", "--config", name, *flags)
        assert (ran.code, why in ran.error) == (2, True)
