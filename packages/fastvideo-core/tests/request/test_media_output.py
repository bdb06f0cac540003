from __future__ import annotations

import errno
import os
import shutil
import tempfile
from fractions import Fraction
from pathlib import Path

import pytest

from fastvideo_core.errors import OutputError, ResourceError
from fastvideo_core.request.media.output import (
    AUDIO_FORMATS,
    GENERATE_FORMATS,
    VIDEO_FORMATS,
    check_format,
    check_output,
    check_video_fits,
    default_output,
    estimate_bytes,
    frame_path,
    sidecar_path,
)


@pytest.mark.parametrize("suffix", [*GENERATE_FORMATS, ".MP4", ".Png"])
def test_a_good_path_is_known_and_nothing_is_reserved(tmp_path, suffix):
    path = tmp_path / f"out{suffix}"
    target = check_output(path)
    assert (target.path, target.suffix, target.on_conflict) == (path, suffix.lower(), "error")
    assert target.free_bytes > 1 << 20
    assert list(tmp_path.iterdir()) == []


def test_missing_folders_are_fine_and_not_made_yet(tmp_path):
    check_output(tmp_path / "a" / "b" / "out.mp4")
    assert list(tmp_path.iterdir()) == []


def test_relative_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert check_output("out.mp4").path == Path("out.mp4")
    assert check_output("new/out.mp4").path == Path("new/out.mp4")


@pytest.mark.parametrize(
    ("name", "problem", "nearest"),
    [
        ("out.mp5", "unknown extension '.mp5'", "out.mp4"),
        ("out.avi", "unknown extension '.avi'", "out.mp4"),
        ("out.webp", "unknown extension '.webp'", "out.webm"),
        ("out.jpg", "unknown extension '.jpg'", "out.png"),
        ("out.safetensor", "unknown extension '.safetensor'", "out.safetensors"),
        ("v1.0", "unknown extension '.0'", "v1.mp4"),
        ("out", "has no extension", "out.mp4"),
        (".mp4", "has no extension", ".mp4.mp4"),
        ("out.", "has no extension", "out..mp4"),
        ("-", "has no extension", "-.mp4"),
        ("there", "is a folder", "there/video.mp4"),
        ("there/", "is a folder", "there/video.mp4"),
        ("..", "is a folder", "../video.mp4"),
        ("taken.mp4/", "is a folder", "taken.mp4/video.mp4"),
    ],
)
def test_unusable_names_say_what_would_do(tmp_path, monkeypatch, name, problem, nearest):
    monkeypatch.chdir(tmp_path)
    Path("there").mkdir()
    with pytest.raises(OutputError, match=problem) as caught:
        check_output(name)
    assert caught.value.nearest == nearest
    assert caught.value.field == "output"


@pytest.mark.parametrize("suffix", [".avi", ".wmv", ".mov"])
def test_a_videos_format_that_is_not_written_is_nearest_to_one_that_is(suffix, tmp_path):
    with pytest.raises(OutputError, match="unknown extension") as caught:
        check_output(tmp_path / f"out{suffix}", allowed=(*GENERATE_FORMATS, *AUDIO_FORMATS))
    assert caught.value.nearest == str(tmp_path / "out.mp4")


@pytest.mark.parametrize("name", ["", "  ", "a\0b.mp4"])
def test_no_name_at_all(name):
    with pytest.raises(OutputError, match="not a file name"):
        check_output(name)


def test_other_kinds_have_their_own_formats(tmp_path):
    assert check_output(tmp_path / "a.wav", allowed=AUDIO_FORMATS).suffix == ".wav"
    with pytest.raises(OutputError, match=r"allowed: \.wav"):
        check_output(tmp_path / "a.mp4", allowed=AUDIO_FORMATS)


def test_nothing_is_written_over(tmp_path):
    for name in ("out.mp4", "out-2.mp4", "out-3.json"):
        (tmp_path / name).write_text("mine")
    with pytest.raises(OutputError, match="exists, and nothing is written over") as caught:
        check_output(tmp_path / "out.mp4")
    # out-3.mp4 is free, but its sidecar would not be.
    assert caught.value.nearest == str(tmp_path / "out-4.mp4")


def test_a_link_that_leads_nowhere_takes_the_name(tmp_path):
    (tmp_path / "out.mp4").symlink_to(tmp_path / "gone")
    with pytest.raises(OutputError, match="exists"):
        check_output(tmp_path / "out.mp4")


def test_a_folder_of_that_name(tmp_path):
    (tmp_path / "out.mp4").mkdir()
    with pytest.raises(OutputError, match="is a folder") as caught:
        check_output(tmp_path / "out.mp4")
    assert caught.value.nearest == str(tmp_path / "out-2.mp4")


def test_numbered_frames_take_the_name(tmp_path):
    (tmp_path / "out-0017.png").write_text("mine")
    with pytest.raises(OutputError, match="exists"):
        check_output(tmp_path / "out.png")
    check_output(tmp_path / "out.mp4")
    check_output(tmp_path / "ou.png")


def test_a_taken_sidecar_has_a_second_name(tmp_path):
    assert sidecar_path(tmp_path / "out.gif") == tmp_path / "out.json"
    (tmp_path / "out.json").write_text("{}")
    assert sidecar_path(tmp_path / "out.gif") == tmp_path / "out.gif.json"
    check_output(tmp_path / "out.gif")
    (tmp_path / "out.gif.json").write_text("{}")
    with pytest.raises(OutputError, match=r"its sidecar .*out\.gif\.json exists"):
        check_output(tmp_path / "out.gif")


def test_a_file_where_a_folder_should_be(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file" / "out.mp4", tmp_path / "file" / "deeper" / "out.mp4"):
        with pytest.raises(OutputError, match="a part of the path is a file"):
            check_output(path)


def test_a_link_that_leads_nowhere_where_a_folder_should_be(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    for path in (tmp_path / "link" / "out.mp4", tmp_path / "link" / "deeper" / "out.mp4"):
        with pytest.raises(OutputError, match="the folder is gone"):
            check_output(path)


def test_long_names(tmp_path):
    with pytest.raises(OutputError, match="too long") as caught:
        check_output(tmp_path / f"{'é' * 150}.mp4")
    check_output(caught.value.nearest)
    with pytest.raises(OutputError, match="too long"):
        check_output(tmp_path / ("d" * 300) / "out.mp4")


@pytest.mark.parametrize("path", ["../out.mp4", "a/../../out.mp4", "/out.mp4", "link/out.mp4"])
def test_outside_the_root(tmp_path, monkeypatch, path):
    root = tmp_path / "root"
    root.mkdir()
    (root / "link").symlink_to(tmp_path)
    monkeypatch.chdir(root)
    with pytest.raises(OutputError, match="outside the output folder"):
        check_output(path, root=root)
    check_output("a/../out.mp4", root=root)


def test_a_folder_without_permission(tmp_path):
    tmp_path.chmod(0o500)
    if os.access(tmp_path, os.W_OK):
        pytest.skip("this user may write everywhere")
    try:
        with pytest.raises(OutputError, match="no permission"):
            check_output(tmp_path / "out.mp4")
    finally:
        tmp_path.chmod(0o700)


@pytest.mark.parametrize(
    ("number", "error", "message"),
    [
        (errno.EACCES, OutputError, "no permission"),
        (errno.EROFS, OutputError, "read-only"),
        (errno.ENOSPC, ResourceError, "no space left"),
        (errno.EDQUOT, ResourceError, "no space left"),
        (errno.EIO, ResourceError, "cannot write"),
    ],
)
def test_what_the_system_says_to_the_probe(tmp_path, monkeypatch, number, error, message):
    def refuse(*args, **kwargs):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(tempfile, "NamedTemporaryFile", refuse)
    with pytest.raises(error, match=message) as caught:
        check_output(tmp_path / "out.mp4")
    assert "out.mp4" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_nearly_full_disk(tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=3 << 20))
    assert check_output(tmp_path / "out.mp4").free_bytes == 3 << 20
    needed = estimate_bytes(".png", num_frames=81, height=480, width=832)
    with pytest.raises(ResourceError, match=r"3\.0 MiB free on that disk, about 96\.\d MiB needed"):
        check_output(tmp_path / "out.mp4", needed_bytes=needed)


def test_default_names_count_up(tmp_path):
    first = default_output("a red circle", 7, folder=tmp_path)
    assert first.path == tmp_path / "a-red-circle-7.mp4"
    assert first.on_conflict == "next"
    (tmp_path / "a-red-circle-7.mp4").write_text("")
    again = default_output("a red circle", 7, folder=tmp_path)
    names = again.candidates()
    assert [next(names).name for _ in range(3)] == [
        "a-red-circle-7.mp4",
        "a-red-circle-7-2.mp4",
        "a-red-circle-7-3.mp4",
    ]


def test_the_default_folder_need_not_exist(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert default_output("../../x", 1, suffix=".gif").path == Path("outputs/x-1.gif")
    assert list(tmp_path.iterdir()) == []
    Path("outputs").write_text("a file")
    with pytest.raises(OutputError, match="a part of the path is a file"):
        default_output("x", 1)


def test_frame_names():
    assert frame_path(Path("a/b.png"), 0) == Path("a/b-0001.png")
    assert frame_path(Path("a/b.png"), 12344) == Path("a/b-12345.png")


@pytest.mark.parametrize(
    ("suffix", "height", "width", "fps", "message"),
    [
        (".mp4", 65, 64, 16, r"64x65; allowed: even .*; nearest: 64x66"),
        (".mp4", 64, 63, 16, "nearest: 64x64"),
        (".mp4", 64, 20000, 16, "too large"),
        (".gif", 64, 64, 60, "nearest: fps=50"),
        (".gif", 70000, 2, 10, "sides up to 65535"),
    ],
)
def test_what_a_format_cannot_hold(suffix, height, width, fps, message):
    with pytest.raises(OutputError, match=message):
        check_video_fits(suffix, height=height, width=width, fps=Fraction(fps))


@pytest.mark.parametrize("suffix", [".webm", ".gif", ".png"])
def test_odd_sizes_have_formats(suffix):
    check_video_fits(suffix, height=3, width=5, fps=Fraction(16))


@pytest.mark.parametrize("suffix", [".gif", ".png"])
def test_pictures_hold_no_sound(suffix):
    with pytest.raises(OutputError, match="no sound"):
        check_format(suffix, allowed=VIDEO_FORMATS, has_audio=True)
    check_format(suffix, allowed=VIDEO_FORMATS)


def test_a_build_without_the_encoder(monkeypatch):
    import av

    monkeypatch.setattr(av, "codecs_available", set())
    with pytest.raises(ResourceError, match="has no libx264 encoder"):
        check_video_fits(".mp4", height=4, width=4, fps=Fraction(16))
    check_video_fits(".gif", height=4, width=4, fps=Fraction(16))
