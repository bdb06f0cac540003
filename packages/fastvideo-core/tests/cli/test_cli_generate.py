from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace

import av
import numpy as np
import pytest
from PIL import Image

from fastvideo_core.request.artifacts import LatentArtifact
from fastvideo_core.request.media.embedded import read_provenance
from fastvideo_core.runtime.engine import Engine
from fastvideo_testing.tiny import tiny_card


@pytest.fixture
def image(tmp_path):
    path = tmp_path / "image.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)).save(path)
    return path


def values(sidecar):
    """Return value and source of every parameter in a sidecar."""
    parameters = json.loads(sidecar.read_text())["parameters"]
    return {name: (record["value"], record["source"]) for name, record in parameters.items()}


def test_a_prompt_becomes_a_video(generate, place, left):
    ran = generate("a red circle", "--seed", 7)
    assert (ran.code, ran.out) == (0, "outputs/a-red-circle-7.mp4\n")
    assert left() == ["outputs/a-red-circle-7.json", "outputs/a-red-circle-7.mp4"]
    with av.open(str(place / "outputs/a-red-circle-7.mp4")) as video:
        (stream,) = video.streams.video
        assert (stream.width, stream.height, stream.average_rate) == (32, 32, 8)
        assert len(list(video.decode(stream))) == 9


def test_loading_says_what_it_has_read(generate):
    ran = generate("x", "-o", "a.mp4", "--precision", "bfloat16")
    first, *parts, last = ran.err.splitlines()
    assert first == "loading tiny"
    assert [part.split(":")[0] for part in parts] == ["loaded text_encoder", "loaded transformer", "loaded vae"]
    assert all(re.search(r": \d+ tensors, [\d.]+ k?B of float32 as bfloat16$", part) for part in parts)
    assert re.fullmatch(r"loaded 1\d\.?\d* kB of weights, bfloat16 on cpu", last)


def test_what_it_ran_with_is_in_the_sidecar_and_in_the_file(generate, place, tiny):
    generate("x", "--seed", 7, "--guidance-scale", 2, "--set", "flow_shift=1.5", "-o", "a.mp4", "--exact")
    found = values(place / "a.json")
    assert found["seed"] == (7, "request")
    assert found["guidance_scale"] == (2, "request")
    assert found["flow_shift"] == (1.5, "request")
    assert found["num_frames"] == (9, "card")
    assert found["exact"] == (True, "request")
    assert found["precision"] == ("float32", "engine")
    inside = read_provenance(place / "a.mp4")
    assert {name: (record.value, record.source) for name, record in inside.parameters.items()} == found
    assert (inside.card_id, inside.task, inside.seed) == ("tiny", "text_to_video", 7)


def test_a_drawn_seed_is_told_and_makes_the_same_video_again(generate, place):
    name = generate("x").out.strip()
    seed, source = values((place / name).with_suffix(".json"))["seed"]
    assert source == "engine"
    assert name == f"outputs/x-{seed}.mp4"
    generate("x", "--seed", seed, "-o", "again.mp4")
    assert frames(place / "again.mp4") == frames(place / name)


def frames(path):
    """Return the bytes of a video's frames."""
    with av.open(str(path)) as video:
        return [frame.to_ndarray().tobytes() for frame in video.decode(video=0)]


def test_nothing_is_written_over(generate, left):
    assert [generate("x", "--seed", 1).out for _ in range(3)] == [
        "outputs/x-1.mp4\n",
        "outputs/x-1-2.mp4\n",
        "outputs/x-1-3.mp4\n",
    ]
    assert generate("x", "-o", "a.mp4").code == 0
    ran = generate("x", "-o", "a.mp4")
    assert (ran.code, ran.error) == (2, "error: output='a.mp4': exists, and nothing is written over; nearest: a-2.mp4")
    assert len(left()) == 8


@pytest.mark.parametrize("suffix", ["webm", "gif", "MP4"])
def test_the_extension_decides_the_format(suffix, generate, place):
    ran = generate("x", "-o", f"deep/er/a.{suffix}")
    assert ran.out == f"deep/er/a.{suffix}\n"
    assert len(frames(place / f"deep/er/a.{suffix}")) == 9


def test_frames_as_pictures(generate, place):
    ran = generate("x", "-o", "a.png", "--num-frames", 5, "--height", 16, "--width", 24)
    paths = ran.out.split()
    assert paths == [f"a-{index:04}.png" for index in range(1, 6)]
    with Image.open(place / paths[-1]) as picture:
        assert picture.size == (24, 16)


def test_latents_are_those_of_the_sampler(generate, place, tiny):
    assert generate("x", "--seed", 3, "-o", "a.safetensors").out == "a.safetensors\n"
    found = LatentArtifact.load(place / "a.safetensors").latents
    with Engine.open(tiny_card(tiny)) as engine:
        expected = engine.generate("x", seed=3, outputs=("latents",)).latents.latents
    assert (found.dtype, found.shape) == (np.float32, (4, 3, 4, 4))
    assert np.array_equal(found, expected)


def test_several_videos_have_seeds_that_follow_each_other(generate, place):
    ran = generate("x", "-n", 3, "--seed", 7, "-o", "a.mp4")
    assert ran.code == 0
    assert sorted(ran.out.split()) == ["a-1.mp4", "a-2.mp4", "a-3.mp4"]
    assert [values(place / f"a-{index}.json")["seed"][0] for index in (1, 2, 3)] == [7, 8, 9]
    generate("x", "--seed", 8, "-o", "alone.mp4")
    assert frames(place / "alone.mp4") == frames(place / "a-2.mp4")


def test_several_videos_without_a_name_or_a_seed(generate, left):
    ran = generate("x", "--num-videos", 2)
    seeds = sorted(int(re.fullmatch(r"outputs/x-(\d+)\.mp4", name)[1]) for name in ran.out.split())
    assert seeds[1] - seeds[0] == 1
    assert len(left()) == 4


def test_an_image_begins_the_video(generate, place, image):
    assert generate("x", "--image", image, "-o", "a.mp4").code == 0
    assert json.loads((place / "a.json").read_text())["task"] == "image_to_video"


def test_the_number_format_is_a_choice(generate, place):
    assert generate("x", "--precision", "bfloat16", "--device", "cpu", "-o", "a.mp4").code == 0
    assert values(place / "a.json")["precision"] == ("bfloat16", "engine")


@pytest.mark.parametrize("flag", ["-q", "--quiet"])
def test_quiet_leaves_the_path_alone(flag, generate):
    ran = generate("x", flag, "-o", "a.mp4")
    assert (ran.out, ran.err) == ("a.mp4\n", "")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["x", "--num-frames", "8"], "num_frames=8: .*integer of the form 4k \\+ 1 from 1 to 81; nearest: 9"),
        (["x", "--num-frames", "85"], "num_frames=85: .*; nearest: 81"),
        (["x", "--num-frames", "many"], "num_frames='many': not a finite number; allowed: integer"),
        (["x", "--num-frames", "1e400"], "num_frames=inf: not a finite number"),
        (["x", "--height", "33"], "height=33: .*8k from 16 to 256; nearest: 32"),
        (["x", "--width", "0"], "width=0: .*; nearest: 16"),
        (["x", "--num-inference-steps", "0"], "num_inference_steps=0: .*from 1 to 1000; nearest: 1"),
        (["x", "--num-inference-steps", "2.5"], "num_inference_steps=2.5: "),
        (["x", "--guidance-scale", "-1"], "guidance_scale=-1: .*; nearest: 0"),
        (["x", "--guidance-scale", "nan"], "guidance_scale=nan: not a finite number"),
        (["x", "--flow-shift", "0"], "flow_shift=0: .*; nearest: 0.1"),
        (["x", "--seed", "-1"], "seed=-1: .*; nearest: 0"),
        (["x", "--seed", "9223372036854775808"], "seed=9223372036854775808: .*; nearest: 9223372036854775807"),
        (["x", "--seed", "9223372036854775807", "-n", "2"], "seed=9223372036854775808: "),
        (["x", "--fps", "0"], "fps=0: .*; nearest: 1"),
        (["x", "--fps", "60", "-o", "a.gif"], "output='.gif': .* up to 50 frames a second"),
        (["x", "--sampler", "eulr"], "sampler='eulr': not a known value; allowed: euler; nearest: euler"),
        (["x", "--set", "guidence=3"], "guidence=3: the task takes no such parameter; .*; nearest: guidance_scale"),
        (["x", "--set", "seed=1", "--seed", "2"], "seed=1: given twice"),
        (["x", "--set", "num_frames=[9]"], "num_frames=\\[9\\]: not a finite number"),
        (["x", "--set", "negative_prompt=7"], "negative_prompt=7: not a string"),
        (["x", "--precision", "float64"], "precision='float64': .*; allowed: float32, bfloat16"),
        (["x", "--device", "gpu"], "device='gpu': not a device"),
        (["x", "--task", "text_to_vidoe"], "task='text_to_vidoe': .*; nearest: text_to_video"),
        (["x", "--task", "image_to_video"], "image=None: task image_to_video needs this input"),
        (["x", "-n", "1001"], "num_videos=1001: too many; allowed: 1 to 1000"),
        ([""], "prompt='': the text is empty; allowed: at least one word"),
        ([" \t\n"], "prompt=.*: the text is empty"),
        (["x" * 129], "prompt='x.*: the text has 129 tokens; allowed: at most 128 tokens"),
        (["x", "--negative-prompt", "x" * 129], "negative_prompt='x.*: the text has 129 tokens"),
        (["x", "--image", "none.png"], "image='none.png': no such file"),
        (["x", "--image", "/"], "image='/': is a folder"),
        (["x", "--image", __file__], "image='.*': not an image that can be read; allowed: PNG, JPEG"),
        (
            ["x", "-o", "a.mkv"],
            "output='a.mkv': unknown extension '.mkv'; allowed: .mp4, .webm, .gif, .png, .jpg, ",
        ),
        (["x", "-o", "a"], "output='a': has no extension"),
        (["x", "-o", ""], "output='': not a file name"),
        (["x", "-o", "."], "output='.': is a folder"),
        (["x", "-o", "/proc/a.mp4"], "output='/proc/a.mp4': "),
        (["x", "-o", f"{__file__}/a.mp4"], "output='.*': a part of the path is a file, not a folder"),
        (["x", "-o", "x" * 300 + ".mp4"], "output='x.*: the file name is too long"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(arguments, text, generate, left):
    ran = generate(*arguments)
    assert ran.code == 2
    assert re.match(f"error: {text}", ran.error)
    assert ran.out == ""
    assert left() == []


@pytest.mark.parametrize(
    ("card", "text"),
    [
        ("wan-shapse", "card='wan-shapse': no such card; allowed: an installed card"),
        ("./none", "card='./none': no such card"),
        (__file__, "card='.*': a file, not a folder; allowed: a folder in diffusers layout"),
    ],
)
def test_an_unknown_card(card, text, run, left):
    ran = run("generate", "x", "--card", card)
    assert ran.code == 2
    assert re.match(f"error: {text}", ran.error)
    assert left() == []


@pytest.mark.parametrize(
    "arguments",
    [["x", "--num-frames", "8"], ["x", "--image", "none.png"], ["x", "-o", "a.mkv"], ["", "--seed", "3"]],
    ids=["parameter", "image", "output", "prompt"],
)
def test_bad_input_is_found_without_torch(arguments, start, tiny):
    code = "import atexit; atexit.register(lambda: print('torch' in sys.modules))"
    process = start("generate", *arguments, "--card", tiny, code=code)
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, out) == (2, "False\n")


@pytest.fixture
def broken(tmp_path, tiny):
    """Copy the checkpoint for a test to spoil."""
    import shutil

    return shutil.copytree(tiny, tmp_path / "broken")


WEIGHTS = "transformer/diffusion_pytorch_model.safetensors"


def rewrite(path, change):
    """Change the tensors of a safetensors file."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (lambda folder: (folder / WEIGHTS).unlink(), "transformer.* no .*"),
        (lambda folder: (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:-100]), "cut short|shorter"),
        (lambda folder: (folder / WEIGHTS).write_bytes(b""), "cut short"),
        (lambda folder: (folder / WEIGHTS).write_bytes(b"x" * 500), "is not a safetensors file"),
        (
            lambda folder: (folder / WEIGHTS).rename((folder / WEIGHTS).with_name("diffusion_pytorch_model.bin")),
            "pickle formats can run code",
        ),
        (lambda folder: rewrite(folder / WEIGHTS, lambda t: t.pop("from_text.bias")), "from_text.bias"),
        (lambda folder: rewrite(folder / WEIGHTS, lambda t: t.update(extra=t["from_text.bias"].clone())), "extra"),
        (
            lambda folder: rewrite(
                folder / WEIGHTS, lambda t: t.update({"from_text.bias": t["from_sigma.weight"].clone()})
            ),
            r"from_text.bias.*\[16, 1\].*\[16\]",
        ),
    ],
    ids=["missing", "truncated", "empty", "foreign", "pickle", "missing-key", "left-over-key", "wrong-shape"],
)
def test_broken_weights_are_named(spoil, text, broken, run, left):
    spoil(broken)
    ran = run("generate", "x", "--card", broken)
    assert ran.code == 1
    assert re.search(f"^error: .*({text})", ran.error)
    assert left() == []


@pytest.mark.parametrize(
    ("spoil", "code", "text"),
    [
        (lambda folder: (folder / "card.json").unlink(), 1, "no installed family knows 'TinyPipeline'"),
        (
            lambda folder: [path.unlink() for path in folder.glob("*.json")],
            1,
            "holds neither card.json nor model_index.json",
        ),
        (lambda folder: (folder / "card.json").write_text("{"), 2, "card.json is not a valid card: .*Invalid JSON"),
        (
            lambda folder: (folder / "card.json").write_text("{}"),
            2,
            "card.json is not a valid card: model_id: Field required",
        ),
    ],
    ids=["no-family", "no-card", "no-json", "no-fields"],
)
def test_a_folder_that_is_no_checkpoint(spoil, code, text, broken, run, left):
    spoil(broken)
    ran = run("generate", "x", "--card", broken)
    assert ran.code == code
    assert re.search(f"^error: .*{text}", ran.error)
    assert left() == []


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("nan", "step 3 of 4 of denoise gave NaN or infinity in transformer at float32; nothing was written"),
        ("error", "step 3 of 4 of denoise failed: RuntimeError: the step was told to fail"),
        ("memory", "step 3 of 4 of denoise ran out of memory: .*; ask for fewer frames or a smaller size"),
    ],
)
def test_a_failing_step_is_named(fault, text, make_faulty, run, left):
    ran = run("generate", "x", "--card", make_faulty(fault=fault, fault_step=2))
    assert ran.code == 1
    assert re.search(f"^error: request:[0-9a-f]+/loop:denoise: {text}", ran.error)
    assert left() == []


def test_too_little_memory_is_said_before_loading(generate, monkeypatch, left):
    monkeypatch.setattr("fastvideo_core.runtime.weights.memory.available_memory", lambda device="cpu": 1000)
    ran = generate("x")
    assert ran.code == 1
    assert re.search("error: not enough memory for the weights of tiny: .* needed on cpu, 1 kB available", ran.error)
    assert left() == []


def test_a_full_disk_is_found_before_any_work(generate, monkeypatch, left):
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 1000})())
    ran = generate("x")
    assert ran.code == 1
    assert re.search("error: output='outputs/x-.*.mp4': 0.0 MiB free on that disk", ran.error)
    assert left() == []


def test_a_disk_that_fills_up_meanwhile_leaves_nothing(start, tiny, left):
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))"
    process = start("generate", "x", "--card", tiny, "--seed", 1, "--num-frames", 41, code=limit)
    _, err = process.communicate(timeout=100)
    assert process.returncode == 1
    assert err.splitlines()[-1].startswith("error: no space left to write outputs/x-1.mp4")
    assert "Traceback" not in err
    assert left() == []


def test_a_name_that_is_taken_meanwhile_is_not_written_over(generate, monkeypatch, place):
    from fastvideo_core.cli import generate as module

    def finish(ended, shell):
        (place / "a.mp4").write_text("somebody else's")
        return original(ended, shell)

    original = module._finish
    monkeypatch.setattr(module, "_finish", finish)
    ran = generate("x", "-o", "a.mp4")
    assert (ran.code, (place / "a.mp4").read_text()) == (2, "somebody else's")
    assert "error: output='a.mp4': exists" in ran.err


def test_one_video_that_fails_leaves_the_others(make_faulty, run, place, monkeypatch):
    from fastvideo_core.cli import generate as module

    ids = iter(["nan-1", "fine"])
    prepare = module.prepare_ask
    monkeypatch.setattr(
        module,
        "prepare_ask",
        lambda card, ask, suffix, *, setup: prepare(card, replace(ask, request_id=next(ids)), suffix),
    )
    ran = run("generate", "x", "-n", 2, "-o", "a.mp4", "--card", make_faulty())
    assert (ran.code, ran.out) == (1, "a-2.mp4\n")
    assert "error: request:nan-1/loop:denoise: step 2 of 4" in ran.err


LOG_OFTEN = "import fastvideo_core.cli.progress as p; p.LOG_INTERVAL_S = 0.0"


def wait_for_step(process):
    """Read stderr up to the first line about a step."""
    for line in process.stderr:
        if line.startswith("denoise"):
            return
    raise AssertionError("it ended before a step")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_run_leaves_no_file(number, code, start, make_faulty, left):
    folder = make_faulty(step_s=0.05)
    process = start("generate", "x", "--card", folder, "--num-inference-steps", 1000, "-o", "a.mp4", code=LOG_OFTEN)
    wait_for_step(process)
    process.send_signal(number)
    sent_s = time.monotonic()
    out, err = process.communicate(timeout=60)
    assert process.returncode == code
    assert out == ""
    assert "cancelling at the next step boundary; Ctrl-C again ends at once" in err
    assert err.splitlines()[-1] == "error: interrupted"
    assert "Traceback" not in err
    assert left() == []
    # A thousand steps take fifty seconds.
    assert time.monotonic() - sent_s < 30


def test_a_second_interrupt_does_not_wait_for_the_step(start, make_faulty, left):
    process = start("generate", "x", "--card", make_faulty(step_s=100), "-o", "a.mp4", code=LOG_OFTEN)
    for line in process.stderr:
        if line.startswith("text"):
            break
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    for line in process.stderr:
        if line.startswith("cancelling"):
            break
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, "error: interrupted\n")
    assert left() == []


def test_an_interrupt_while_it_loads(start, tiny, left):
    wait = "import time, fastvideo_core.runtime.loading as m; m.load_instance = lambda *a, **k: time.sleep(100)"
    process = start("generate", "x", "--card", tiny, code=wait)
    assert process.stderr.readline() == "loading tiny\n"
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, "error: interrupted\n")
    assert left() == []


def test_progress_on_a_terminal_and_the_path_in_a_pipe(place, tiny):
    """Run under a pseudo-terminal, as a shell does for `path=$(fastvideo generate ...)`."""
    import pty

    master, slave = pty.openpty()
    command = [sys.executable, "-m", "fastvideo_core.cli", "generate", "x", "--card", str(tiny), "-o", "a.mp4"]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=slave, env=environment) as process:
        os.close(slave)
        shown = b""
        while True:
            try:
                piece = os.read(master, 4096)
            except OSError:  # the other end is closed
                break
            if not piece:
                break
            shown += piece
        out = process.stdout.read()
    os.close(master)
    assert (process.returncode, out) == (0, b"a.mp4\n")
    assert b"loading tiny" in shown
    assert b"left" in shown


@pytest.mark.parametrize(
    ("option", "why"),
    [
        (
            "interceptor.hold.period=3",
            "plugins.interceptor.hold={'period': 3}: the plugin is not on here; allowed: n",
        ),
        ("period=3", "plugin='period=3': names no plugin's option; allowed: KIND.NAME.OPTION=VALUE"),
        ("interceptor.hold", "set='interceptor.hold': not an assignment"),
    ],
)
def test_options_of_plugins_that_are_off_are_refused_before_loading(option, why, generate, left):
    ran = generate("x", "--plugin", option)
    assert ran.code == 2
    assert why in ran.error
    assert left() == []


def test_an_option_of_a_plugin_is_given_once(generate):
    twice = ("--plugin", "interceptor.hold.period=3", "--plugin", "interceptor.hold.period=4")
    assert "plugins.interceptor.hold.period=4: given twice" in generate("x", *twice).error
