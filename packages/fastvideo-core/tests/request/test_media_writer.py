from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import threading
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

from fastvideo_core.errors import ExecutionError, OutputError, ParameterError, ResourceError
from fastvideo_core.request.media.embedded import read_provenance
from fastvideo_core.request.media.output import OutputTarget, check_output, default_output
from fastvideo_core.request.media.sound import AudioTrack
from fastvideo_core.request.media.videos import load_video
from fastvideo_core.request.media.writer import VideoWriter
from fastvideo_core.request.provenance import Provenance

COLOURS = [(255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 0), (0, 255, 255), (255, 0, 255)]
NTSC = Fraction(24000, 1001)
PROVENANCE = Provenance(
    node="decode",
    card_id="wan-shapes",
    parameters={"prompt": {"value": "ein grüner\0Kreis; =圆", "source": "request"}},
    seed=7,
    software={"torch": "2.6"},
)


def colour_frames(num_frames=5, height=32):
    """Six bars of saturated colours above a bar whose brightness tells the frame."""
    frames = np.zeros((num_frames, height, 96, 3), np.uint8)
    for index, colour in enumerate(COLOURS):
        frames[:, : height // 2, 16 * index : 16 * index + 16] = colour
    frames[:, height // 2 :] = (np.arange(num_frames) * (250 // num_frames))[:, None, None, None]
    return frames


def write(path, frames, fps=16, **options):
    with VideoWriter(path, fps=fps, **options) as writer:
        writer.write(frames)
    return writer.saved


def read_back(saved):
    """Return the frames that were written, by readers that share no code with the writers' colour conversion."""
    if saved.path.suffix == ".png":
        return np.stack([load(path) for path in saved.paths])
    if saved.path.suffix == ".gif":
        with Image.open(saved.path) as image:
            return np.stack([seek(image, index) for index in range(image.n_frames)])
    with av.open(str(saved.path)) as container:
        return np.stack([bt709_to_rgb(frame.to_ndarray()) for frame in container.decode(video=0)])


def load(path):
    with Image.open(path) as image:
        return np.array(image)


def seek(image, index):
    image.seek(index)
    return np.array(image.convert("RGB"))


def bt709_to_rgb(planes):
    """Turn limited-range YUV 4:2:0 into RGB by the equations of ITU-R BT.709, section 3, in float64."""
    height, width = planes.shape[0] * 2 // 3, planes.shape[1]
    flat = planes.reshape(-1).astype(np.float64)
    count = height * width
    luma = (flat[:count].reshape(height, width) - 16) / 219
    chroma = ((flat[count:].reshape(2, height // 2, width // 2) - 128) / 224).repeat(2, 1).repeat(2, 2)
    red = luma + 1.5748 * chroma[1]
    blue = luma + 1.8556 * chroma[0]
    green = (luma - 0.2126 * red - 0.0722 * blue) / 0.7152
    return np.clip(np.rint(np.stack([red, green, blue], axis=2) * 255), 0, 255).astype(np.uint8)


@pytest.mark.parametrize("suffix", [".mp4", ".webm", ".gif", ".png"])
def test_colours_and_order_survive(tmp_path, suffix):
    frames = colour_frames()
    shown = read_back(write(tmp_path / f"out{suffix}", frames))
    assert shown.shape == frames.shape
    tolerance = 0 if suffix in {".gif", ".png"} else 3
    # Away from the edges, where colour planes of half the size must blur.
    centres = (slice(None), slice(4, 12), slice(8, None, 16))
    assert np.abs(shown[centres].astype(int) - frames[centres]).max() <= tolerance
    brightness = shown[:, 20:].mean(axis=(1, 2, 3))
    assert np.abs(brightness - np.arange(5) * 50).max() <= tolerance


@pytest.mark.parametrize("suffix", [".mp4", ".webm"])
def test_files_say_which_colours_they_hold(tmp_path, suffix):
    saved = write(tmp_path / f"out{suffix}", colour_frames())
    with av.open(str(saved.path)) as container:
        stream = container.streams.video[0]
        context = stream.codec_context
        assert context.pix_fmt == "yuv420p"
        # ITU-T H.273: 1 is BT.709 for primaries, transfer and matrix; range 1 is limited.
        tags = (context.color_primaries, context.color_trc, context.colorspace, context.color_range)
        assert tags == (1, 1, 1, 1)
        assert context.name == {".mp4": "h264", ".webm": "vp9"}[suffix]


class Boxes:
    """The boxes of an MP4 file (ISO/IEC 14496-12), as far as the tests look into them."""

    def __init__(self, data):
        self.order = [name for name, _ in self.walk(data)]
        moov = dict(self.walk(data))[b"moov"]
        self.tracks = [self.nested(body, b"mdia") for name, body in self.walk(moov) if name == b"trak"]

    @staticmethod
    def walk(data):
        position = 0
        while position + 8 <= len(data):
            size = int.from_bytes(data[position : position + 4], "big")
            yield data[position + 4 : position + 8], data[position + 8 : position + size]
            position += size

    def nested(self, data, *names):
        for name in names:
            data = dict(self.walk(data))[name]
        return data

    def time(self, track):
        body = self.nested(self.tracks[track], b"mdhd")
        return int.from_bytes(body[12:16], "big"), int.from_bytes(body[16:20], "big")

    def sample_times(self, track):
        body = self.nested(self.tracks[track], b"minf", b"stbl", b"stts")
        numbers = [int.from_bytes(body[start : start + 4], "big") for start in range(8, len(body), 4)]
        return list(zip(numbers[::2], numbers[1::2], strict=True))


@pytest.mark.parametrize("num_frames", [1, 2, 9])
@pytest.mark.parametrize("fps", [Fraction(16), NTSC, Fraction(30000, 1001), Fraction(25, 2), Fraction(73, 10)])
def test_mp4_time_is_exact(tmp_path, fps, num_frames):
    boxes = Boxes(write(tmp_path / "out.mp4", colour_frames(num_frames), fps).path.read_bytes())
    timescale, duration = boxes.time(0)
    assert Fraction(duration, timescale) == num_frames / fps
    assert sum(count for count, _ in boxes.sample_times(0)) == num_frames
    assert {Fraction(delta, timescale) for _, delta in boxes.sample_times(0)} == {1 / fps}


def test_mp4_index_comes_first(tmp_path):
    order = Boxes(write(tmp_path / "out.mp4", colour_frames()).path.read_bytes()).order
    assert order.index(b"moov") < order.index(b"mdat")


@pytest.mark.parametrize("fps", [Fraction(16), NTSC])
def test_webm_rate_and_times(tmp_path, fps):
    saved = write(tmp_path / "out.webm", colour_frames(9), fps)
    with av.open(str(saved.path)) as container:
        stream = container.streams.video[0]
        assert stream.average_rate == fps
        times = [float(frame.pts * frame.time_base) for frame in container.decode(stream)]
    # Matroska counts in milliseconds.
    assert np.abs(np.array(times) - np.arange(9) / float(fps)).max() <= 0.00051


@pytest.mark.parametrize("suffix", [".mp4", ".webm", ".gif", ".png"])
def test_one_frame_is_a_video_too(tmp_path, suffix):
    saved = write(tmp_path / f"out{suffix}", colour_frames(1))
    assert saved.paths == (tmp_path / f"out{suffix}",)
    assert read_back(saved).shape == (1, 32, 96, 3)


@pytest.mark.parametrize("suffix", [".webm", ".gif", ".png"])
def test_odd_sizes_stay_what_they_are(tmp_path, suffix):
    frames = np.full((3, 17, 23, 3), 90, np.uint8)
    saved = write(tmp_path / f"out{suffix}", frames)
    shown = load_video(saved.path).frames if suffix == ".webm" else read_back(saved)
    assert shown.shape == frames.shape
    assert np.abs(shown.astype(int) - 90).max() <= 2


def test_odd_sizes_are_refused_for_mp4_and_nothing_is_left(tmp_path):
    with pytest.raises(OutputError, match="even width and height"):
        write(tmp_path / "out.mp4", np.zeros((2, 17, 23, 3), np.uint8))
    assert list(tmp_path.iterdir()) == []


def test_numbered_frames_lie_beside_each_other(tmp_path):
    frames = colour_frames(12)
    saved = write(tmp_path / "out.png", frames, provenance=PROVENANCE)
    assert [path.name for path in saved.paths] == [f"out-{number:04d}.png" for number in range(1, 13)]
    assert len(list(tmp_path.iterdir())) == 13
    assert np.array_equal(read_back(saved), frames)


def test_frames_may_come_in_pieces(tmp_path):
    frames = colour_frames(7)
    with VideoWriter(tmp_path / "out.gif", fps=10) as writer:
        for start in (0, 3, 4):
            writer.write(frames[start : start + {0: 3, 3: 1, 4: 3}[start]])
            assert not (tmp_path / "out.gif").exists()
    assert np.array_equal(read_back(writer.saved), frames)


@pytest.mark.parametrize("suffix", [".mp4", ".webm", ".gif", ".png"])
def test_files_and_sidecars_say_how_they_were_made(tmp_path, suffix):
    saved = write(tmp_path / f"out{suffix}", colour_frames(3), NTSC, provenance=PROVENANCE)
    assert saved.sidecar == tmp_path / "out.json"
    assert read_provenance(saved.path) == PROVENANCE
    assert read_provenance(saved.sidecar) == PROVENANCE
    facts = json.loads(saved.sidecar.read_text(encoding="utf-8"))["file"]
    assert facts["name"] == saved.path.name
    assert (facts["num_frames"], facts["height"], facts["width"], facts["fps"]) == (3, 32, 96, "24000/1001")
    assert facts["duration_s"] == pytest.approx(3 * 1001 / 24000)
    assert facts["bytes"] == sum(path.stat().st_size for path in saved.paths)


def test_players_show_the_prompt_as_title(tmp_path):
    saved = write(tmp_path / "out.mp4", colour_frames(2), provenance=PROVENANCE)
    with av.open(str(saved.path)) as container:
        assert container.metadata["title"] == "ein grüner Kreis; =圆"


def test_no_sidecar_without_provenance_or_wish(tmp_path):
    assert write(tmp_path / "a.gif", colour_frames(1)).sidecar is None
    assert write(tmp_path / "b.gif", colour_frames(1), provenance=PROVENANCE, sidecar=False).sidecar is None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.gif", "b.gif"]


def test_a_second_format_keeps_the_first_ones_sidecar(tmp_path):
    write(tmp_path / "out.gif", colour_frames(1), provenance=PROVENANCE)
    saved = write(tmp_path / "out.png", colour_frames(1), provenance=PROVENANCE)
    assert saved.sidecar == tmp_path / "out.png.json"
    assert json.loads((tmp_path / "out.json").read_text())["file"]["name"] == "out.gif"


def test_nothing_is_written_over(tmp_path):
    target = check_output(tmp_path / "out.gif")
    (tmp_path / "out.gif").write_text("came first")
    with pytest.raises(OutputError, match="exists, and nothing is written over") as caught:
        write(target, colour_frames(2), provenance=PROVENANCE)
    assert caught.value.nearest == str(tmp_path / "out-2.gif")
    assert [path.name for path in tmp_path.iterdir()] == ["out.gif"]
    assert (tmp_path / "out.gif").read_text() == "came first"


def test_default_names_go_on_counting(tmp_path):
    target = default_output("a red circle", 7, folder=tmp_path / "outputs", suffix=".gif")
    names = [write(target, colour_frames(1), provenance=PROVENANCE).path.name for _ in range(3)]
    assert names == ["a-red-circle-7.gif", "a-red-circle-7-2.gif", "a-red-circle-7-3.gif"]
    (tmp_path / "outputs" / "a-red-circle-7-4.json").write_text("{}")
    saved = write(target, colour_frames(1), provenance=PROVENANCE)
    assert (saved.path.name, saved.sidecar.name) == ("a-red-circle-7-5.gif", "a-red-circle-7-5.json")


def test_a_race_for_the_default_name_has_no_loser(tmp_path):
    target = default_output("race", 1, folder=tmp_path, suffix=".gif")
    saved = []
    barrier = threading.Barrier(8)

    def run(index):
        barrier.wait()
        saved.append((index, write(target, np.full((1, 4, 4, 3), index * 30, np.uint8), provenance=PROVENANCE)))

    threads = [threading.Thread(target=run, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({files.path for _, files in saved}) == 8
    assert all(read_back(files)[0, 0, 0, 0] == index * 30 for index, files in saved)
    assert len(list(tmp_path.iterdir())) == 16


def test_a_race_between_processes(tmp_path):
    code = """
import sys
import numpy as np
from fastvideo_core.request.media.output import default_output
from fastvideo_core.request.media.writer import VideoWriter
target = default_output("race", 1, folder=sys.argv[1], suffix=".gif")
print("ready", flush=True)
sys.stdin.readline()
for _ in range(5):
    with VideoWriter(target, fps=10) as writer:
        writer.write(np.full((1, 4, 4, 3), 9, np.uint8))
    print(writer.saved.path, flush=True)
"""
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    for run in runs:
        assert run.stdout.readline() == "ready\n"
    for run in runs:
        run.stdin.write("\n")
        run.stdin.flush()
    names = [name for run in runs for name in run.communicate(timeout=60)[0].split()]
    assert [run.returncode for run in runs] == [0, 0]
    assert len(names) == len(set(names)) == 10
    assert sorted(names) == sorted(str(path) for path in tmp_path.iterdir())


@pytest.mark.parametrize("suffix", [".mp4", ".webm", ".gif", ".png"])
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_error_half_way_leaves_nothing(tmp_path, suffix, error):
    with pytest.raises(error), VideoWriter(tmp_path / "new" / f"out{suffix}", fps=16, provenance=PROVENANCE) as writer:
        writer.write(colour_frames(3))
        raise error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("suffix", [".mp4", ".webm", ".gif", ".png"])
def test_an_interrupt_while_the_file_is_finished(tmp_path, monkeypatch, suffix):
    def interrupt(descriptor):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / f"out{suffix}", colour_frames(3), provenance=PROVENANCE)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_that_is_full_at_the_end(tmp_path, monkeypatch, number):
    def full(descriptor):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ResourceError, match="no space left to write"):
        write(tmp_path / "out.gif", colour_frames(3), provenance=PROVENANCE)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("suffix", [".mp4", ".webm", ".gif", ".png"])
@pytest.mark.parametrize("limit", [4_000, 40_000])
def test_a_disk_that_fills_up(tmp_path, suffix, limit):
    """The kernel itself refuses the bytes: a limit on file size, in a process of its own, is as good as a full disk."""
    code = f"""
import resource
import numpy as np
from fastvideo_core.errors import ResourceError
from fastvideo_core.request.media.writer import VideoWriter
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, resource.RLIM_INFINITY))
noise = np.random.default_rng(0).integers(0, 256, (12, 128, 128, 3), dtype=np.uint8)
try:
    with VideoWriter({str(tmp_path / f"out{suffix}")!r}, fps=16) as writer:
        writer.write(noise)
except ResourceError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("no space left to write")
    assert done.stdout.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 256 KiB."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(place)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("may not mount")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.mark.parametrize("suffix", [".mp4", ".webm", ".gif", ".png"])
def test_a_real_full_disk(small_disk, suffix):
    noise = np.random.default_rng(0).integers(0, 256, (30, 128, 128, 3), dtype=np.uint8)
    target = OutputTarget(small_disk / f"out{suffix}")
    with pytest.raises(ResourceError, match="no space left to write"):
        write(target, noise, provenance=PROVENANCE)
    assert list(small_disk.iterdir()) == []
    with pytest.raises(ResourceError, match="free on that disk"):
        check_output(small_disk / "out.mp4")


def test_a_read_only_disk(small_disk):
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    for attempt in (lambda: check_output(small_disk / "a.gif"), lambda: write(small_disk / "a.gif", colour_frames(1))):
        with pytest.raises(OutputError, match="read-only"):
            attempt()


def test_the_codec_failing_is_an_execution_error(tmp_path, monkeypatch):
    from fastvideo_core.request.media import encoder

    def fail(self, frame):
        raise av.ExternalError(1, "the codec gave up")

    monkeypatch.setattr(encoder.ContainerEncoder, "_mux", fail)
    with pytest.raises(ExecutionError, match="the codec gave up"):
        write(tmp_path / "out.mp4", colour_frames(2))
    assert list(tmp_path.iterdir()) == []


def test_no_frames_are_no_video(tmp_path):
    with pytest.raises(OutputError, match="no frames"), VideoWriter(tmp_path / "out.mp4", fps=16):
        pass
    with pytest.raises(OutputError, match="no frames"):
        write(tmp_path / "out.png", np.zeros((0, 4, 4, 3), np.uint8))
    assert list(tmp_path.iterdir()) == []


def test_frames_keep_their_size(tmp_path):
    with pytest.raises(ParameterError, match="change their size"), VideoWriter(tmp_path / "out.gif", fps=16) as writer:
        writer.write(np.zeros((1, 4, 4, 3), np.uint8))
        writer.write(np.zeros((1, 4, 6, 3), np.uint8))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", ["out.safetensors", "out.mov"])
def test_other_formats_are_refused_at_once(tmp_path, path):
    with pytest.raises(OutputError, match=r"allowed: \.mp4, \.webm, \.gif, \.png"):
        VideoWriter(tmp_path / path, fps=16)


def test_sound_is_refused_before_anything_is_written(tmp_path):
    track = AudioTrack(np.zeros((1, 100), np.float32), 44000)
    with pytest.raises(OutputError, match="nearest: 44100"):
        VideoWriter(tmp_path / "out.mp4", fps=16, audio=track)
    with pytest.raises(OutputError, match="no sound"):
        VideoWriter(tmp_path / "out.gif", fps=16, audio=track)


def test_nothing_is_printed(tmp_path, capfd):
    for suffix in (".mp4", ".webm", ".gif", ".png"):
        write(tmp_path / f"out{suffix}", colour_frames(2))
    assert capfd.readouterr() == ("", "")


def test_targets_of_other_kinds_are_refused(tmp_path):
    with pytest.raises(OutputError, match=r"\.safetensors"):
        VideoWriter(OutputTarget(Path(tmp_path / "out.safetensors")), fps=16)
