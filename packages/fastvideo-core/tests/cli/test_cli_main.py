from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fastvideo_core.cli.main import COMMANDS, main
from fastvideo_core.extend import Command, LoadedPlugin, PluginRegistry, hookimpl, load_plugins
from fastvideo_core.extend.commands import COMMAND_KINDS

HELP = "from fastvideo_core.cli.main import main; main(['--help'])"
HEAVY = ("av", "huggingface_hub", "numpy", "pydantic", "rich", "torch", "transformers")


@pytest.mark.parametrize("flag", ["--help", "-h", "help"])
def test_help_lists_every_command(flag, run):
    ran = run(flag)
    assert ran.code == 0
    for name, command in COMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(command.summary)}$", ran.out, re.MULTILINE)


def test_no_command_prints_the_help_and_is_bad_input(run):
    assert run().code == 2
    assert run().out == run("--help").out


@pytest.mark.parametrize(
    "path", [("generate",), ("batch",), ("cards",), ("card", "show"), ("card", "validate"), ("doctor",)]
)
def test_every_command_explains_itself_and_its_exit_codes(path, run):
    ran = run(*path, "--help")
    assert ran.code == 0
    assert f"usage: fastvideo {' '.join(path)}" in ran.out
    assert "exit codes:" in ran.out


class Plugin:
    @hookimpl
    def cli_commands(self):
        return {"greet": Command("say hello", "greet_command"), "cards": Command("hidden by the built-in one", "x")}


@pytest.fixture
def with_command(monkeypatch, tmp_path):
    """Let a plugin bring a command, and another one fail."""
    (tmp_path / "greet_command.py").write_text(GREET)
    monkeypatch.syspath_prepend(str(tmp_path))

    def load(kinds, *, check_requirements):
        assert kinds == COMMAND_KINDS
        registry = load_plugins(available=())
        registry.manager.register(Plugin(), name="command.greet")
        failed = LoadedPlugin("command.gone", "gone", "1.0", "ImportError: no module named gone")
        return PluginRegistry((failed,), registry.manager)

    monkeypatch.setattr("fastvideo_core.extend.plugins.load_plugins", load)


GREET = """
DESCRIPTION, EPILOG = "Say hello.", "Nothing more."

def add_arguments(parser):
    parser.add_argument("name")

def run(args, shell):
    shell.say(f"hello {args.name}")
    return 0
"""


def test_a_plugins_command_is_listed_explains_itself_and_runs(with_command, run):
    ran = run("--help")
    assert re.search(r"^  greet +say hello$", ran.out, re.MULTILINE)
    assert "hidden by" not in ran.out
    assert "usage: fastvideo greet" in run("greet", "--help").out
    assert run("greet", "you").out == "hello you\n"


def test_an_unknown_command_names_plugins_that_failed(with_command, run):
    error = run("gret").error
    assert "command.gone failed to load: ImportError: no module named gone" in error
    assert error.endswith("nearest: greet")


def test_the_group_lists_its_commands(run):
    assert re.search(r"show .*\n.*validate ", run("card", "--help").out)


@pytest.mark.parametrize("flag", ["--version", "-V"])
def test_the_version_is_the_packages(flag, run):
    assert re.fullmatch(r"fastvideo \d+\.\d+\.\d+\n", run(flag).out)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["genrate", "x"], "fastvideo has no command 'genrate'; allowed: generate, .*; nearest: generate"),
        (["card", "shwo"], "fastvideo card has no command 'shwo'; allowed: show, validate; nearest: show"),
        (["generate", "x", "--num-frame", "9"], "fastvideo generate has no flag --num-frame; nearest: --num-frames"),
        (["generate", "x", "--sed=3"], "fastvideo generate has no flag --sed; nearest: --seed"),
        (["generate", "x", "-z"], "fastvideo generate has no flag -z"),
        (["generate", "--prompt", "x"], "fastvideo generate has no flag --prompt"),
        (["generate"], "the following arguments are required: PROMPT"),
        (["generate", "a", "red", "circle"], "takes no further argument 'red'; quote a text that has spaces"),
        (["generate", "x", "--seed"], "--seed: expected one argument"),
        (["batch", "x.jsonl"], "the following arguments are required: -o/--output"),
        (["generate", "x", "-n", "many"], "'many' is not a whole number of at least 1"),
        (["generate", "x", "--set", "seed"], "set='seed': not an assignment; allowed: name=value"),
    ],
)
def test_bad_arguments_are_one_line(arguments, text, run):
    ran = run(*arguments)
    assert ran.code == 2
    assert re.search(f"^error: .*{text}", ran.error)
    assert ran.out == ""


def test_help_imports_nothing_heavy_and_is_quick():
    code = f"import sys\n{HELP}\nprint([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr.strip() == "[]"
    assert min(cpu_seconds(HELP) for _ in range(3)) < 0.3


def cpu_seconds(code):
    """Return the processor time of a fresh interpreter, which other processes on the machine lengthen little."""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_utime + usage.ru_stime


def test_an_unexpected_error_is_one_line_too(run, monkeypatch):
    def broken(*arguments):
        raise ZeroDivisionError("first line\nsecond line")

    monkeypatch.setattr("fastvideo_core.cli.generate.run", broken)
    ran = run("generate", "x")
    assert (ran.code, ran.error) == (
        1,
        "error: unexpected ZeroDivisionError: first line second line; --debug shows where",
    )


@pytest.mark.parametrize("how", ["flag", "environment"])
def test_debugging_shows_where(how, place, capfd, monkeypatch):
    monkeypatch.setenv("FASTVIDEO_DEBUG", "1" if how == "environment" else "0")
    code = main(["generate", "x", "--card", "/nowhere/at/all", *(["--debug"] if how == "flag" else [])])
    err = capfd.readouterr().err
    assert code == 2
    assert err.startswith("Traceback")
    assert "UnknownCardError" in err
    assert err.splitlines()[-1].startswith("error: card='/nowhere/at/all'")


def test_a_prompt_may_look_like_the_debug_flag(run, tiny):
    assert run("generate", "--card", tiny, "--seed", "x", "--", "--debug").error.startswith("error: seed='x'")


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_nobody_who_reads_is_no_error(stream, start):
    reading, writing = os.pipe()
    os.close(reading)
    arguments = ["--help"] if stream == "stdout" else ["nonsense"]
    process = start(*arguments, **{stream: writing})
    os.close(writing)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out or "", err or "") == (0 if stream == "stdout" else 2, "", "")


def test_output_that_the_terminal_cannot_show_is_escaped(start):
    process = start("generate", "x", "--card", "日本", code="sys.stderr.reconfigure(encoding='ascii', errors='strict')")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert err.startswith(r"error: card='\u65e5\u672c': no such card")


def test_the_module_is_the_command_too(place):
    done = subprocess.run(
        [sys.executable, "-m", "fastvideo_core.cli", "--version"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.startswith("fastvideo ")


def run_with(tail, place, *arguments):
    """Run the command in a shell that first does something to its streams; return exit code and stderr."""
    line = f'exec "$@" {tail}'
    command = ["sh", "-c", line, "sh", sys.executable, "-m", "fastvideo_core.cli", *map(str, arguments)]
    done = subprocess.run(command, cwd=place, stderr=subprocess.PIPE, text=True, check=False, timeout=60)
    return done.returncode, done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("arguments", [["--version"], ["generate", "--help"]])
def test_a_stdout_that_cannot_be_written_is_one_line(arguments, place):
    code, err = run_with(">/dev/full", place, *arguments)
    assert (code, err) == (1, "error: stdout cannot be written: No space left on device\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_messages_that_cannot_be_written_stop_nothing(place):
    assert run_with(">out.txt 2>/dev/full", place, "--version") == (0, "")
    assert (place / "out.txt").read_text().startswith("fastvideo ")
    assert run_with(">/dev/full 2>/dev/full", place, "gnerate") == (2, "")


def test_closed_streams_stop_nothing(place, tiny):
    code, _ = run_with("<&- >&- 2>&-", place, "generate", "a red circle", "--card", tiny, "-o", "out.gif")
    assert code == 0
    assert (place / "out.gif").read_bytes().startswith(b"GIF89a")
    assert run_with("<&-", place, "batch", "-", "-o", "d", "--card", tiny) == (
        2,
        "error: file='-': holds no request; allowed: one JSON object a line\n",
    )
