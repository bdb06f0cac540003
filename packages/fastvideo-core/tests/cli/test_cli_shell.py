from __future__ import annotations

import os
import signal
import threading

import pytest

from fastvideo_core.cli.shell import Shell, Terminated
from fastvideo_core.errors import OutputError, ResourceError


def send(number):
    """Send this process a signal and let its handler run."""
    os.kill(os.getpid(), number)
    # A handler runs between two bytecodes of the main thread; this makes sure of some.
    threading.Event().wait(0.01)


@pytest.mark.parametrize(
    ("number", "error", "code"), [(signal.SIGINT, KeyboardInterrupt, 130), (signal.SIGTERM, Terminated, 143)]
)
def test_a_signal_interrupts(number, error, code):
    with Shell() as shell:
        with pytest.raises(error):
            send(number)
        assert shell.is_interrupted
        assert not shell.is_impatient
        assert shell.interrupt_code == code


def test_the_first_signal_cancels_and_the_second_interrupts():
    calls = []
    with Shell() as shell, shell.cancels(lambda: calls.append("cancel")):
        send(signal.SIGTERM)
        assert calls == ["cancel"]
        assert not shell.is_impatient
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGINT)
        assert calls == ["cancel"]
        assert shell.is_impatient
        assert shell.interrupt_code == 143


def test_outside_of_cancels_a_signal_interrupts_again():
    with Shell() as shell:
        with shell.cancels(lambda: None):
            pass
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGINT)


def test_the_handlers_are_put_back():
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    with Shell():
        assert signal.getsignal(signal.SIGINT) != before[signal.SIGINT]
    assert {number: signal.getsignal(number) for number in before} == before


def test_other_threads_may_open_one_and_leave_the_signals_alone():
    before = signal.getsignal(signal.SIGINT)
    seen = []

    def work():
        with Shell() as shell:
            seen.extend([signal.getsignal(signal.SIGINT), shell.is_interrupted])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before, False]


def test_results_and_messages_go_their_own_ways(capfd):
    with Shell() as shell:
        shell.say("result")
        shell.tell("message")
    assert capfd.readouterr() == ("result\n", "message\n")


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (OutputError("exists", field="output", value="x"), 2, "error: line 3: output='x': exists\n"),
        (ResourceError("no memory"), 1, "error: line 3: no memory\n"),
        (ValueError("odd"), 1, "error: line 3: unexpected ValueError: odd; --debug shows where\n"),
    ],
)
def test_an_error_is_one_line_and_a_code(error, code, line, capfd):
    with Shell() as shell:
        assert shell.report(error, where="line 3: ") == code
    assert capfd.readouterr().err == line


def test_a_bar_is_kept_below_what_goes_to_its_terminal(capfd, monkeypatch):
    above = []
    with Shell() as shell, shell.prints_above(above.append):
        shell.say("to a pipe")
        monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
        shell.tell("to the terminal")
    assert above == ["to the terminal"]
    assert capfd.readouterr().out == "to a pipe\n"
