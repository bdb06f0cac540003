from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import time

import av
import pytest

from fastvideo_core.cli.main import main
from fastvideo_testing.tiny import tiny_card, tiny_causal_card, write_tiny_checkpoint

SMALL = ("--height", "16", "--width", "16", "--num-inference-steps", "2", "--seed", "7")


@pytest.fixture(scope="module")
def causal(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoints") / "tiny-causal"
    write_tiny_checkpoint(folder, make_card=tiny_causal_card)
    return folder


@pytest.fixture
def stream(causal, place, monkeypatch, capsys):
    """Run the command in this process, with some lines on stdin."""

    def run(*arguments, stdin=""):
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        code = main(["stream", "a red circle", "--card", str(causal), *SMALL, *map(str, arguments)])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def num_frames(source):
    with av.open(source) as file:
        stream = file.streams.video[0]
        assert (stream.width, stream.height, stream.average_rate) == (16, 16, 8)
        return len(list(file.decode(stream)))


def test_a_prompt_becomes_a_stream_of_so_many_chunks(stream, place):
    code, out, err = stream("--chunks", 3)
    assert (code, out) == (0, "outputs/a-red-circle-7.mp4\n")
    assert num_frames(str(place / "outputs/a-red-circle-7.mp4")) == 21
    lines = [line for line in err.splitlines() if line.startswith("chunk")]
    assert [line.split(",")[0] for line in lines] == ["chunk 0: 5 frames", "chunk 1: 13 frames", "chunk 2: 21 frames"]
    assert all(re.search(r"latency \d+\.\d{3} s, lag \d+\.\d{3} s$", line) for line in lines)
    code, _, err = stream("--chunks", 1, "-q", "-o", "quiet.mp4")
    assert code == 0
    assert "chunk" not in err


def test_a_prompt_that_is_refused_is_told_of_and_the_stream_goes_on(stream, place):
    code, _, err = stream("--chunks", 3, "-o", "a.mp4", stdin="\n" + "word " * 200 + "\n")
    assert code == 0
    assert num_frames(str(place / "a.mp4")) == 21
    assert "warning: prompt=" in err


def test_bad_input_is_refused_before_anything_is_loaded(stream, place, causal):
    for arguments, message in (
        (("-o", "a.gif"), "allowed: .mp4"),
        (("--chunks", "0"), "--chunks"),
        (("--height", "17"), "height=17"),
    ):
        code, _, err = stream(*arguments)
        assert (code, message in err) == (2, True), err
    write_tiny_checkpoint(place / "plain", make_card=tiny_card)
    code, _, err = stream("--card", place / "plain")
    assert (code, "no task of the card makes streams" in err) == (2, True)
    (place / "there.mp4").write_bytes(b"mine")
    code, _, _ = stream("-o", "there.mp4")
    assert (code, (place / "there.mp4").read_bytes()) == (2, b"mine")


def popen(causal, place, *arguments):
    command = [sys.executable, "-m", "fastvideo_core.cli", "stream", "a red circle", "--card", str(causal), *SMALL]
    pipe = subprocess.PIPE
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    # Without buffers of its own, so that nothing that was read is missed by whoever reads the rest.
    return subprocess.Popen(
        [*command, *arguments], cwd=place, stdin=pipe, stdout=pipe, stderr=pipe, env=environment, bufsize=0
    )


def read(pipe, size):
    data = b""
    while len(data) < size:
        part = pipe.read(size - len(data))
        assert part, "it ended"
        data += part
    return data


def test_a_pipe_gets_video_while_it_is_made_and_new_prompts_are_taken(causal, place):
    with popen(causal, place, "-o", "-", "--paced") as process:
        head = read(process.stdout, 2000)  # there is no end, and yet there is a beginning
        assert head[4:8] == b"ftyp"
        process.stdin.write(b"a blue square\n")
        time.sleep(1.0)
        process.send_signal(signal.SIGINT)
        rest, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert b"error: interrupted" in err
    assert err.startswith(b"chunk 0: 5 frames")
    assert num_frames(io.BytesIO(head + rest)) >= 5


def test_an_interrupted_file_is_whole(causal, place):
    with popen(causal, place, "-o", "a.mp4", "--paced") as process:
        deadline = time.monotonic() + 120
        while not (place / "a.mp4").exists() or (place / "a.mp4").stat().st_size < 2000:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=120)
    assert (process.returncode, out) == (130, b"a.mp4\n")
    assert num_frames(str(place / "a.mp4")) >= 5


def test_a_reader_that_leaves_ends_the_stream(causal, place):
    with popen(causal, place, "-o", "-") as process:
        read(process.stdout, 2000)
        process.stdout.close()
        assert process.wait(timeout=120) == 0
