from __future__ import annotations

import io

import pytest

from fastvideo_core.cli import progress as progress_module
from fastvideo_core.cli.progress import Tally, format_seconds, open_display
from fastvideo_core.cli.shell import Shell
from fastvideo_core.request.events import RequestCompleted, RequestFailed, RequestProgress


def step(request_id, fraction, number=1, of=4):
    return RequestProgress(
        request_id=request_id, sequence=0, time_s=0.0, node="denoise", step=number, num_steps=of, fraction=fraction
    )


def end(request_id):
    return RequestCompleted(request_id=request_id, sequence=9, time_s=0.0, artifacts=(), duration_s=1.0)


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self):
        return True


def test_one_request_shows_its_step_and_the_time_left():
    tally = Tally(1)
    assert (tally.fraction, tally.remaining_s(5.0), tally.text()) == (0.0, None, "waiting")
    tally.note(step("a", 0.0), 10.0)
    assert tally.remaining_s(11.0) is None
    tally.note(step("a", 0.25), 12.0)
    assert (tally.fraction, tally.text()) == (0.25, "denoise 1/4")
    # A quarter took two seconds; three more quarters take six.
    assert tally.remaining_s(12.0) == pytest.approx(6.0)


def test_several_requests_count_alike():
    tally = Tally(4)
    tally.note(step("a", 0.5), 0.0)
    tally.note(end("a"), 1.0)
    tally.note(step("b", 0.5, of=None), 2.0)
    assert tally.fraction == pytest.approx(1.5 / 4)
    assert tally.text() == "1 of 4 done, denoise 1"


def test_what_failed_has_ended():
    tally = Tally(2)
    tally.note(RequestFailed(request_id="a", sequence=1, time_s=0.0, error="E", message="m"), 0.0)
    assert (tally.num_ended, tally.fraction) == (1, 0.5)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "?"),
        (0, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (185, "3 min 05 s"),
        (3600, "1 h 00 min"),
        (7860, "2 h 11 min"),
    ],
)
def test_durations_in_words(seconds, text):
    assert format_seconds(seconds) == text


def test_a_log_gets_a_line_now_and_then(capfd, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(progress_module.time, "monotonic", lambda: clock[0])
    with Shell() as shell, open_display(shell, is_quiet=False) as display:
        display.phase("loading tiny")
        tally = Tally(1)
        display.begin(tally)
        for second in range(1, 13):
            clock[0] += 1.0
            tally.note(step("a", second / 16, number=second, of=16), clock[0])
            display.refresh()
    # It began with the first step, at second 1: at second 5, five sixteenths took four seconds.
    assert capfd.readouterr().err.splitlines() == [
        "loading tiny",
        "denoise 5/16, 31%, 9 s left",
        "denoise 10/16, 62%, 5 s left",
    ]


def test_a_download_tells_how_far_it_is(capfd, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(progress_module.time, "monotonic", lambda: clock[0])
    with Shell() as shell, open_display(shell, is_quiet=False) as display:
        display.phase("loading tiny")
        for second in range(1, 13):
            clock[0] += 1.0
            display.transfer(10**9 + second * 10**8, 5 * 10**9)
    # The rate is that since the first line, which knows none.
    assert capfd.readouterr().err.splitlines() == [
        "loading tiny",
        "downloading, 1.5 GB of 5 GB, ? left",
        "downloading, 2 GB of 5 GB, 30 s left",
    ]


def test_a_download_moves_the_bar(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with Shell() as shell, open_display(shell, is_quiet=False) as display:
        display.phase("loading tiny")
        display.transfer(10**9, 4 * 10**9)
        shell.tell("drawn")
    assert "downloading, 1 GB of 4 GB" in terminal.getvalue()
    assert "25%" in terminal.getvalue()


def test_quiet_is_quiet(capfd, monkeypatch):
    monkeypatch.setattr(progress_module, "LOG_INTERVAL_S", 0.0)
    with Shell() as shell, open_display(shell, is_quiet=True) as display:
        display.phase("loading tiny")
        display.transfer(1, 2)
        display.begin(Tally(1))
        display.refresh()
    assert capfd.readouterr() == ("", "")


def test_a_terminal_gets_a_bar_that_leaves_results_alone(monkeypatch):
    terminal, pipe = Terminal(), io.StringIO()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr("sys.stdout", pipe)
    monkeypatch.setenv("TERM", "xterm")
    with Shell() as shell, open_display(shell, is_quiet=False) as display:
        display.phase("loading tiny")
        tally = Tally(1)
        display.begin(tally)
        tally.note(step("a", 0.25), 0.0)
        display.refresh()
        shell.say("out.mp4")
        shell.tell("a [bold]message[/bold]")
    shown = terminal.getvalue()
    assert "denoise 1/4" in shown
    assert "25%" in shown
    assert "left" in shown
    assert "a [bold]message[/bold]\n" in shown
    assert pipe.getvalue() == "out.mp4\n"
    # The cursor is shown again at the end, and the bar is gone.
    assert shown.rindex("\x1b[?25h") > shown.rindex("denoise")
