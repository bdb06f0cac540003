"""`fastvideo chat`, `generate` and `card show` on the tiny checkpoint, as people call them."""

from __future__ import annotations

import io
import json
from importlib.util import find_spec

import av
import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file

from fastvideo_core.cli.main import main

needs_wan = pytest.mark.skipif(find_spec("fastvideo_wan") is None, reason="looks at a card of fastvideo-wan")

SMALL = ("--num-frames", "5", "--height", "32", "--width", "32", "--num-inference-steps", "2", "-q")
ACTING = ("--set", "embodiment=umi", "--set", "chunk_size=4", "--set", "resolution_tier=256p", "--fps", "5")


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pixels = np.random.default_rng(0).integers(0, 256, (50, 70, 3), dtype=np.uint8)
    Image.fromarray(pixels).save("view.png")
    (tmp_path / "moves.json").write_text(json.dumps([[0.1] * 10] * 3))


def test_tasks_and_their_inputs_are_shown(folder, capfd):
    assert main(["card", "show", str(folder)]) == 0
    out = capfd.readouterr().out
    assert "task text_to_video (default)" in out
    assert "task omni_policy" in out
    assert "makes video (video), text (text), audio (audio), latents (latents), actions (action)" in out
    assert "takes actions  action" in out


def test_a_question_and_a_conversation(folder, capfd, monkeypatch):
    asked = ["chat", "--card", str(folder), "--max-tokens", "6", "--seed", "1"]
    assert main([*asked, "--image", "view.png", "what is it?"]) == 0
    assert capfd.readouterr().out.endswith("\n")
    monkeypatch.setattr("sys.stdin", io.StringIO("hello\n\nand then?\n"))
    assert main(asked) == 0
    both = capfd.readouterr().out
    assert main([*asked, "hello"]) == 0
    assert both.startswith(capfd.readouterr().out)


def test_an_omni_request_writes_a_video_with_sound_and_its_thoughts(folder, tmp_path, capfd):
    arguments = ["generate", "--card", str(folder), "--task", "omni", "a cup", *SMALL, "--set", "max_tokens=5"]
    assert main([*arguments, "-o", "cup.mp4"]) == 0
    assert capfd.readouterr().out.split() == ["cup.mp4", "cup.text.txt"]
    with av.open("cup.mp4") as container:
        assert (container.streams.audio[0].rate, container.streams.video[0].average_rate) == (8000, 24)
    written = json.loads((tmp_path / "cup.text.json").read_text())
    assert len(written["file"]["token_ids"]) == 5
    assert main([*arguments, "-o", "cup.mp4"]) == 2
    (tmp_path / "pot.text.txt").write_text("taken")
    assert main([*arguments, "-o", "pot.mp4"]) == 2
    assert "nothing is written over" in capfd.readouterr().err


def test_actions_in_and_out(folder, tmp_path):
    common = ("--card", str(folder), "--image", "view.png", "lift it", *ACTING, "--num-inference-steps", "1", "-q")
    assert (
        main(["generate", "--task", "forward_dynamics", "--actions", "moves.json", *common, "-o", "forward.mp4"]) == 0
    )
    assert main(["generate", "--task", "policy", *common, "-o", "policy.mp4"]) == 0
    assert load_file(tmp_path / "policy.actions.safetensors")["actions"].shape == (4, 10)
    assert main(["generate", "--task", "policy", *common, "-o", "only.safetensors"]) == 0
    assert load_file(tmp_path / "only.safetensors")["actions"].shape == (4, 10)


def test_images_and_sound_alone(folder, tmp_path, capfd):
    size = ("--height", "32", "--width", "32", "--num-inference-steps", "1", "-q")
    assert main(["generate", "--card", str(folder), "--task", "text_to_image", "a cup", "--seed", "3", *size]) == 0
    assert capfd.readouterr().out.strip() == "outputs/a-cup-3.png"
    with Image.open(tmp_path / "outputs/a-cup-3.png") as image:
        assert image.size == (32, 32)
    sound = ("--task", "text_to_video_sound", "a cup", "-o", "cup.wav")
    assert main(["generate", "--card", str(folder), *sound, "--num-frames", "5", *size]) == 0
    assert (tmp_path / "cup.wav").read_bytes().startswith(b"RIFF")


def test_a_batch_of_several_tasks_makes_of_each_what_it_is_for(folder, tmp_path):
    size = {"height": 32, "width": 32, "num_inference_steps": 1}
    lines = [
        {"id": "talk", "task": "reasoning_text", "prompt": "why?", "max_tokens": 4},
        {"id": "look", "task": "text_to_image", "prompt": "a cup", **size},
        {"id": "show", "task": "omni", "prompt": "a cup", "num_frames": 5, "max_tokens": 4, **size},
    ]
    (tmp_path / "requests.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert main(["batch", "requests.jsonl", "--card", str(folder), "-o", "out", "-q"]) == 0
    summary = json.loads((tmp_path / "out/summary.json").read_text())
    made = {entry["id"]: entry["files"] for entry in summary["requests"]}
    assert made == {"talk": ["talk.txt"], "look": ["look.png"], "show": ["show.mp4", "show.text.txt"]}
    assert all((tmp_path / "out" / name).stat().st_size for names in made.values() for name in names)
    # A format that is asked for is that of all, and a line that cannot be in it is refused.
    assert main(["batch", "requests.jsonl", "--card", str(folder), "-o", "again", "--format", "txt", "-q"]) == 2
    summary = json.loads((tmp_path / "again/summary.json").read_text())
    assert [entry["status"] for entry in summary["requests"]] == ["done", "refused", "done"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["chat", "--card", "{}", "--image", "nope.png", "x"], "image='nope.png': no such file"),
        (["chat", "--card", "{}", "--image", "view.png", "--video", "x.mp4", "x"], "shows one thing"),
        pytest.param(["chat", "--card", "wan-shapes", "x"], "task='reasoning_text'", marks=needs_wan),
        (["chat", "--card", "{}", "--temperature", "9", "x"], "temperature=9"),
        (["generate", "--card", "{}", "--task", "text_to_video_sund", "x"], "nearest: text_to_video_sound"),
        (["generate", "--card", "{}", "--task", "policy", "x"], "needs this input"),
        (["generate", "--card", "{}", "--task", "forward_dynamics", "--actions", "view.png", "x"], "not JSON"),
        (["generate", "--card", "{}", "--task", "text_to_image", "x", "-o", "x.mp4"], "makes nothing that goes into"),
        (["generate", "--card", "{}", "--video", "x.mp4", "x"], "takes no such input"),
    ],
)  # fmt: skip
def test_bad_input_is_refused_in_one_line(folder, capfd, arguments, text):
    assert main([one.format(folder) for one in arguments]) == 2
    error = capfd.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert text in error
