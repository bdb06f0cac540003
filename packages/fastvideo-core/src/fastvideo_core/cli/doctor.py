"""`fastvideo doctor`: what this machine can run, and why not the rest."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from fastvideo_core.cli.parser import Parser
from fastvideo_core.cli.setup import add_assignments, add_config_option, read_setup
from fastvideo_core.cli.shell import Shell
from fastvideo_core.cli.table import format_table

if TYPE_CHECKING:
    from fastvideo_core.extend import LoadedPlugin
    from fastvideo_core.extend.doctor import Answer
    from fastvideo_core.runtime.machine import CardVerdict, Machine

__all__ = ["DESCRIPTION", "EPILOG", "add_arguments", "run"]

DESCRIPTION = """\
Tell what this machine can run: Python, torch, memory, devices, disks, video encoders, plugins with what they ask, and
for each installed card whether its weights are here and fit. Asks no network."""
EPILOG = "The exit code is 0 if at least one card can run, else 1."


def add_arguments(parser: Parser) -> None:
    """Add the command's flags."""
    add_config_option(parser)
    add_assignments(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: Namespace, shell: Shell) -> int:
    """Look, and print what was found."""
    from fastvideo_core.extend.doctor import ask_plugins
    from fastvideo_core.runtime.catalog import Catalog
    from fastvideo_core.runtime.machine import inspect_machine, judge_card

    setup = read_setup(args)
    catalog = Catalog.installed() if setup.deployment is None else setup.deployment.catalog
    machine = inspect_machine()
    answers = ask_plugins(catalog.registry)
    verdicts = [judge_card(card, machine) for card in catalog.cards.values()]
    plugins = catalog.registry.plugins
    if args.json:
        shell.say(json.dumps(_document(machine, plugins, answers, verdicts), indent=2))
    else:
        shell.say("\n".join([*_machine_lines(machine, plugins, answers), *_card_lines(verdicts)]))
    return 0 if any(verdict.can_run for verdict in verdicts) else 1


def _document(
    machine: Machine, plugins: Sequence[LoadedPlugin], answers: Sequence[Answer], verdicts: Sequence[CardVerdict]
) -> dict[str, Any]:
    return {
        "machine": asdict(machine),
        "plugins": [asdict(plugin) for plugin in plugins],
        "checks": [asdict(answer) for answer in answers],
        "cards": [{**asdict(verdict), "can_run": verdict.can_run} for verdict in verdicts],
    }


def _machine_lines(machine: Machine, plugins: Sequence[LoadedPlugin], answers: Sequence[Answer]) -> Iterator[str]:
    from fastvideo_core.runtime.weights.text import format_bytes

    rows = [
        ("python", machine.python),
        (
            "torch",
            f"{machine.torch}, {machine.cpu_capability}, {machine.num_threads} threads, {machine.num_cores} cores",
        ),
        *(
            (
                device.name,
                f"{device.title}, {format_bytes(device.available_bytes)} of {format_bytes(device.total_bytes)}",
            )
            for device in machine.devices
        ),
    ]
    if machine.no_gpu_reason is not None:
        rows.append(("gpu", f"none: {machine.no_gpu_reason}"))
    rows += [(f"disk for {use}", f"{format_bytes(free)} free, {place}") for use, (place, free) in machine.disks.items()]
    missing = ", ".join(f"no {name} ({use})" for name, use in machine.missing_encoders.items())
    rows.append(("video", f"PyAV {machine.pyav}, {missing or 'all encoders'}"))
    for plugin in plugins:
        state = "loaded" if plugin.error is None else f"failed: {plugin.error}"
        rows.append((f"plugin {plugin.name}", f"{plugin.distribution} {plugin.version}, {state}"))
    rows += [(answer.check, line) for answer in answers for line in answer.lines]
    yield format_table(rows)


def _card_lines(verdicts: Sequence[CardVerdict]) -> Iterator[str]:
    from fastvideo_core.runtime.weights.text import format_bytes

    yield ""
    if not verdicts:
        yield "no cards: install a package that brings some, such as fastvideo-wan"
        return
    rows = []
    for verdict in verdicts:
        needs = ", ".join(f"{name} {format_bytes(need)}" for name, need in verdict.need_bytes.items())
        runs = "; ".join(f"{device}: {', '.join(names)}" for device, names in verdict.runs_in.items() if names)
        rows.append((verdict.card, runs or "; ".join(verdict.reasons), needs or verdict.weights))
    yield format_table(rows, header=("card", "runs on", "weights in memory"))
