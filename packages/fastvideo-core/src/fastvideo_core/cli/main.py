"""The entry point: one command a module, imported only when it is asked for."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import Any

from fastvideo_core.cli.parser import Parser
from fastvideo_core.cli.shell import Shell
from fastvideo_core.errors import InputError
from fastvideo_core.extend.commands import COMMAND_KINDS, Command, collect_commands
from fastvideo_core.parallel.threads import limit_spinning

__all__ = ["COMMANDS", "main"]


_PROGRAM = "fastvideo"
_HERE = "fastvideo_core.cli"

COMMANDS = {
    "generate": Command("make a video, or several, from a prompt", f"{_HERE}.generate"),
    "stream": Command("make a stream that takes new prompts while it runs", f"{_HERE}.stream"),
    "batch": Command("run the requests of a JSON Lines file together", f"{_HERE}.batch"),
    "cards": Command("list the installed model cards", f"{_HERE}.cards"),
    "card": Command(
        "look at one card",
        subcommands={
            "show": Command("tasks, inputs, parameters, recipe, parity and figures", f"{_HERE}.card_show"),
            "validate": Command("check a card, and the files of a checkpoint folder", f"{_HERE}.card_validate"),
        },
    ),
    "plugins": Command(
        "look at plugins, check them, begin one",
        subcommands={
            "list": Command("installed plugins, and which are on", f"{_HERE}.plugins_list"),
            "info": Command("what one plugin brings and needs", f"{_HERE}.plugins_info"),
            "hooks": Command("every hook that a plugin may implement", f"{_HERE}.plugins_hooks"),
            "check": Command("run the contract suite on an installed plugin", f"{_HERE}.plugins_check"),
            "new": Command("write a package that passes the contract suite", f"{_HERE}.plugins_new"),
        },
    ),
    "config": Command(
        "look at the deploy config",
        subcommands={
            "check": Command("whether a file means something on this machine", f"{_HERE}.config_check"),
            "show": Command("every value, and where it comes from", f"{_HERE}.config_show"),
            "schema": Command("JSON schema for editors", f"{_HERE}.config_schema"),
        },
    ),
    "parity": Command("measure a card against its references", f"{_HERE}.parity"),
    "doctor": Command("tell what this machine can run, and why not the rest", f"{_HERE}.doctor"),
}

_EXIT_CODES = """\
exit codes: 0 done, 1 failed, 2 bad input, 130 interrupted (Ctrl-C), 143 terminated.
With --debug, or FASTVIDEO_DEBUG=1 in the environment, errors come with a traceback."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code.

    Args:
        argv: Arguments without the program's name; None takes those of the process, and the process for its own.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if argv is None:
        limit_spinning()
    with Shell(is_debug=_wants_debug(arguments), owns_process=argv is None) as shell:
        try:
            return shell.ended(_run(arguments, COMMANDS, _PROGRAM, shell))
        except SystemExit as done:  # argparse ends --help and --version so
            return shell.ended(done.code if isinstance(done.code, int) else 0)
        except KeyboardInterrupt:
            return shell.interrupted()
        except Exception as error:  # noqa: BLE001 - whatever it is, it ends as one line and an exit code
            return shell.report(error)


def _run(arguments: list[str], commands: dict[str, Command], path: str, shell: Shell) -> int:
    name = arguments[0] if arguments else "--help"
    if name in ("-h", "--help", "help"):
        shell.say(_help(_all_commands()[0] if path == _PROGRAM else commands, path))
        return 0 if arguments else 2
    if name in ("--version", "-V") and path == _PROGRAM:
        shell.say(_version())
        return 0
    failures: tuple[str, ...] = ()
    if name not in commands and path == _PROGRAM:
        commands, failures = _all_commands()
    command = commands.get(name)
    if command is None:
        raise _unknown(name, commands, path, failures)
    if command.subcommands is not None:
        return _run(arguments[1:], command.subcommands, f"{path} {name}", shell)
    module: Any = import_module(command.module)
    parser = Parser(prog=f"{path} {name}", description=module.DESCRIPTION, epilog=f"{module.EPILOG}\n\n{_EXIT_CODES}")
    parser.add_argument("--debug", action="store_true", help="show a traceback with an error")
    module.add_arguments(parser)
    code: int = module.run(parser.parse(arguments[1:]), shell)
    return code


def _help(commands: dict[str, Command], path: str) -> str:
    width = max(len(name) for name in commands)
    lines = [f"  {name:<{width}}  {command.summary}" for name, command in commands.items()]
    if path != _PROGRAM:
        return "\n".join([f"usage: {path} COMMAND ...", "", *lines])
    return "\n".join(
        [
            "usage: fastvideo COMMAND ...",
            "",
            'A prompt becomes a video:  fastvideo generate "a red circle moving right"',
            "",
            "commands:",
            *lines,
            "",
            "`fastvideo COMMAND --help` has the flags of a command, `fastvideo --version` the version.",
            _EXIT_CODES,
        ]
    )


def _version() -> str:
    from importlib_metadata import version

    return f"fastvideo {version('fastvideo-core')}"


def _all_commands() -> tuple[dict[str, Command], tuple[str, ...]]:
    """Return the built-in commands and then those of plugins, and why plugins bring none."""
    from fastvideo_core.extend.plugins import load_plugins

    commands, registry = collect_commands(load_plugins(COMMAND_KINDS, check_requirements=False))
    failures = tuple(f"{plugin.name} failed to load: {plugin.error}" for plugin in registry.failed)
    return {**COMMANDS, **{name: one for name, one in commands.items() if name not in COMMANDS}}, failures


def _unknown(name: str, commands: dict[str, Command], path: str, failures: Sequence[str]) -> InputError:
    near = get_close_matches(name, commands, n=1, cutoff=0.4)
    hint = f" ({'; '.join(failures)})" if failures else ""
    return InputError(
        f"{path} has no command {name!r}{hint}", allowed=", ".join(commands), nearest=next(iter(near), None)
    )


def _wants_debug(arguments: list[str]) -> bool:
    flags = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return "--debug" in flags or os.environ.get("FASTVIDEO_DEBUG", "0") not in ("", "0")
