from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fastvideo_core.request.media.staging import Staging, remove_stale, replace_file


def stage(staging, name, text):
    path = staging.path / name
    path.write_text(text)
    return path


def test_files_appear_together_and_nothing_else(tmp_path):
    with Staging(tmp_path) as staging:
        names = {stage(staging, "a", "A"): tmp_path / "out.mp4", stage(staging, "b", "B"): tmp_path / "out.json"}
        staging.sync(names)
        assert [path.name for path in tmp_path.iterdir()] == [staging.path.name]
        staging.publish(names)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"out.mp4": "A", "out.json": "B"}


def test_the_hidden_folder_is_hidden_and_private(tmp_path):
    with Staging(tmp_path) as staging:
        assert staging.path.name.startswith(".")
        assert staging.path.stat().st_mode & 0o077 == 0


def test_files_get_ordinary_permissions(tmp_path):
    mask = os.umask(0o022)
    try:
        with Staging(tmp_path) as staging:
            staging.publish({stage(staging, "a", "A"): tmp_path / "out"})
    finally:
        os.umask(mask)
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o644


def test_a_taken_name_takes_back_what_was_placed(tmp_path):
    (tmp_path / "out.json").write_text("mine")
    with Staging(tmp_path) as staging:
        names = {stage(staging, "a", "A"): tmp_path / "out.mp4", stage(staging, "b", "B"): tmp_path / "out.json"}
        with pytest.raises(FileExistsError):
            staging.publish(names)
        assert not (tmp_path / "out.mp4").exists()
        # The staged files are still there for another name.
        staging.publish({a: b.with_stem("out-2") for a, b in names.items()})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out-2.json", "out-2.mp4", "out.json"]
    assert (tmp_path / "out.json").read_text() == "mine"


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_an_error_leaves_nothing_not_even_folders(tmp_path, error):
    with pytest.raises(error), Staging(tmp_path / "new" / "deep") as staging:
        stage(staging, "a", "A")
        raise error
    assert list(tmp_path.iterdir()) == []


def test_folders_that_somebody_else_uses_stay(tmp_path):
    with Staging(tmp_path / "new" / "deep"):
        (tmp_path / "new" / "other").write_text("")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["other"]


def test_an_interrupt_while_names_are_given(tmp_path, monkeypatch):
    real = Path.hardlink_to

    def interrupted(self, target):
        if self.name == "out.json":
            raise KeyboardInterrupt
        real(self, target)

    monkeypatch.setattr(Path, "hardlink_to", interrupted)
    with pytest.raises(KeyboardInterrupt), Staging(tmp_path) as staging:
        staging.publish(
            {stage(staging, "a", "A"): tmp_path / "out.mp4", stage(staging, "b", "B"): tmp_path / "out.json"}
        )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP])
def test_file_systems_without_links(tmp_path, monkeypatch, number):
    def unsupported(self, target):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "hardlink_to", unsupported)
    (tmp_path / "taken").write_text("mine")
    with Staging(tmp_path) as staging:
        staging.publish({stage(staging, "a", "A"): tmp_path / "out"})
        with pytest.raises(FileExistsError):
            staging.publish({stage(staging, "b", "B"): tmp_path / "taken"})
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"out": "A", "taken": "mine"}


def test_other_link_errors_are_not_hidden(tmp_path, monkeypatch):
    def full(self, target):
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(Path, "hardlink_to", full)
    with Staging(tmp_path) as staging, pytest.raises(OSError, match="full"):
        staging.publish({stage(staging, "a", "A"): tmp_path / "out"})
    assert list(tmp_path.iterdir()) == []


def test_replacing_a_file_leaves_the_new_content_alone(tmp_path):
    path = tmp_path / "new" / "state.json"
    replace_file(path, b"one")
    replace_file(path, b"two")
    assert path.read_bytes() == b"two"
    assert list(path.parent.iterdir()) == [path]


def test_a_replacement_that_fails_keeps_the_old_content(tmp_path, monkeypatch):
    path = tmp_path / "state.json"
    replace_file(path, b"one")

    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        replace_file(path, b"two")
    assert path.read_bytes() == b"one"
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_killed_process_has_left_is_removed_and_nothing_else(tmp_path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    running = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    names = [f".fastvideo-{process.pid}-x.part" for process in (ended, running)]
    for name in (*names, ".fastvideo-x.part", "mine"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "media.mp4").write_text("half")
    for process in (ended, running):
        remove_stale(tmp_path, process.pid)
    remove_stale(tmp_path / "gone", ended.pid)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([names[1], ".fastvideo-x.part", "mine"])
    running.communicate(b"\n")


def test_the_present_process_can_remove_what_one_of_its_number_has_left(tmp_path):
    with Staging(tmp_path) as staging:
        assert staging.path.name.startswith(f".fastvideo-{os.getpid()}-")
        remove_stale(tmp_path, os.getpid())
        assert not staging.path.exists()


def test_a_result_clears_away_what_killed_processes_of_this_machine_have_left(tmp_path):
    with Staging(tmp_path) as staging:
        own = staging.path.name
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    machine = own.removeprefix(f".fastvideo-{os.getpid()}-").rsplit("-", 1)[0]
    left = f".fastvideo-{ended.pid}-{machine}-x.part"
    kept = [
        f".fastvideo-{os.getppid()}-{machine}-x.part",
        f".fastvideo-{ended.pid}-another{machine}-x.part",
        f"fastvideo-{ended.pid}-{machine}-x.part",
        f".fastvideo-{machine}-x.part",
        "mine",
    ]
    for name in (left, *kept):
        (tmp_path / name).mkdir()
        (tmp_path / name / "media.mp4").write_text("half")
    (tmp_path / f".fastvideo-{ended.pid}-{machine}-link.part").symlink_to(tmp_path / "mine")
    with Staging(tmp_path):
        names = {path.name for path in tmp_path.iterdir()}
    assert left not in names
    assert names >= set(kept)
    assert (tmp_path / "mine" / "media.mp4").exists()
