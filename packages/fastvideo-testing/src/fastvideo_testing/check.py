"""Runs the contract suite on an installed plugin and prints a report: `python -m fastvideo_testing.check PLUGIN`."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fastvideo_core.card import ModelCard, resolve_ref
from fastvideo_core.errors import FastVideoError, ParameterError, describe_failure
from fastvideo_core.extend import PluginRegistry, load_plugins
from fastvideo_core.runtime.catalog import Catalog
from fastvideo_core.runtime.weights.needs import find_weights

__all__ = ["Check", "CheckResult", "checks_of", "main", "run_checks"]

_SPEC_HOOKS = (
    "attention_backends", "config_sections", "doctor_checks", "interceptors", "observers", "program_templates",
    "rewards", "samplers", "server_parts", "training_methods", "transports", "workflow_nodes",
)  # fmt: skip
"""Hooks that give descriptions."""
SMALL = {"num_frames": 9, "height": 32, "width": 32}
MAX_BYTES = 256 << 20
"""Cards with more weights than this are checked where they are named, and not of themselves."""


@dataclass(frozen=True, slots=True)
class Check:
    """One promise of one thing that a plugin brings."""

    subject: str
    name: str
    run: Callable[[], None]


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What became of a check.

    Attributes:
        subject: What was checked.
        check: Which promise.
        is_passed: Whether it holds.
        reason: Why not.
        seconds: How long it took.
    """

    subject: str
    check: str
    is_passed: bool
    reason: str
    seconds: float


def main(arguments: list[str] | None = None) -> int:
    """Run all checks of a plugin and print what became of them."""
    parser = argparse.ArgumentParser(prog="python -m fastvideo_testing.check")
    parser.add_argument("plugin")
    parser.add_argument("--card")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        results = list(run_checks(checks_of(args.plugin, args.card, Path(folder))))
    is_passed = bool(results) and all(result.is_passed for result in results)
    if args.json:
        rows = [asdict(result) for result in results]
        _say(json.dumps({"plugin": args.plugin, "passed": is_passed, "checks": rows}, indent=2))
    else:
        for result in results:
            state = "passed" if result.is_passed else "FAILED"
            what = f"{result.subject}: {result.check}" + (f": {result.reason}" if result.reason else "")
            _say(f"{state}  {result.seconds:6.1f} s  {what}")
        count = sum(result.is_passed for result in results)
        _say(
            f"{args.plugin}: {count} of {len(results)} checks passed" if results else f"{args.plugin}: nothing to check"
        )
    return 0 if is_passed else 1


def run_checks(checks: Iterator[Check]) -> Iterator[CheckResult]:
    """Run checks, and yield what became of each."""
    for check in checks:
        started_at = time.monotonic()
        reason = ""
        try:
            check.run()
        except Exception as error:  # noqa: BLE001 - whatever a plugin raises is its failure
            reason = str(error) if isinstance(error, AssertionError) else describe_failure(error)
        seconds = round(time.monotonic() - started_at, 3)
        yield CheckResult(check.subject, check.name, not reason, " ".join(reason.split()), seconds)


def checks_of(plugin: str, card_name: str | None, folder: Path) -> Iterator[Check]:
    """Yield the checks of all that a plugin brings.

    Args:
        plugin: Its name.
        card_name: A card to check it by; None takes its own, and for hooks the tiny family's.
        folder: For files.
    """
    registry = load_plugins((), names=[plugin])
    (loaded,) = registry.plugins

    def load() -> None:
        if loaded.error is not None:
            raise FastVideoError(loaded.error)

    yield Check(plugin, "loads", load)
    if loaded.error is not None:
        return
    yield from _description_checks(registry, plugin)
    named = None if card_name is None else Catalog.installed().find(card_name)
    yield from _family_checks(registry, plugin, named, folder)
    yield from _hook_checks(registry, plugin, named, folder)
    yield from _transport_checks(registry, plugin)


def _description_checks(registry: PluginRegistry, plugin: str) -> Iterator[Check]:
    from fastvideo_testing.contract import attention

    for hook in _SPEC_HOOKS:
        for spec in registry.call_one(plugin, hook) or ():
            yield Check(spec.name, "what the description names is there", partial(attention.check_references, spec))
    for spec in registry.call_one(plugin, "attention_backends") or ():
        if attention.why_not_here(spec) is None:
            yield Check(spec.name, "it attends", partial(attention.check_attention, spec))


def _family_checks(registry: PluginRegistry, plugin: str, named: ModelCard | None, folder: Path) -> Iterator[Check]:
    from fastvideo_testing.contract import family, kept

    own = tuple(registry.call_one(plugin, "model_cards") or ())
    is_family = bool({"model_cards", "card_from_layout"} & set(registry.plugins[0].hooks))
    for card in own:
        run_card = partial(family.check_card, card, has_files=_has_files(card))
        yield Check(card.model_id, "the card is valid and survives JSON", run_card)
    for card in (named,) if named is not None else own:
        if not is_family or (named is None and not _is_here(card)):
            continue
        given = _sizes(card, SMALL)
        larger = {**given, **_sizes(card, {name: 2 * given[name] for name in ("height", "width") if name in given})}
        place = folder / card.model_id
        place.mkdir()
        for name, run in {
            "next launches nothing and is repeatable": partial(family.check_next, card, given),
            "the state is complete": partial(family.check_fresh_process, card, given, place),
            "requests among others are as alone": partial(family.check_gate, card, given),
            "a cancelled request frees what it held": partial(family.check_cancellation, card, given),
            "costs grow and are near what is counted": partial(family.check_costs, card, given, larger),
            "it says what interceptors will meet": partial(kept.check_branches, card, given),
            "declared parity runs and holds": partial(family.check_parity, card),
            "bad input is refused by its field": partial(family.check_bad_inputs, card),
        }.items():
            yield Check(card.model_id, name, run)


def _has_files(card: ModelCard) -> bool:
    found = find_weights(card)
    return found is not None and bool(found.folders)


def _is_here(card: ModelCard) -> bool:
    found = find_weights(card)
    return found is not None and not found.problems and found.disk_bytes <= MAX_BYTES


def _sizes(card: ModelCard, wanted: Mapping[str, int]) -> dict[str, Any]:
    """Return the values of the default task's parameters that are nearest to some, as far as it has them."""
    known = card.task(card.capabilities.default_task).parameters
    given: dict[str, Any] = {}
    for name, value in wanted.items():
        if name not in known:
            continue
        try:
            given[name] = known[name].validate_value(name, value)
        except ParameterError as error:
            given[name] = error.nearest
    return given


def _hook_checks(registry: PluginRegistry, plugin: str, named: ModelCard | None, folder: Path) -> Iterator[Check]:
    from fastvideo_testing.contract import hooks
    from fastvideo_testing.tiny import write_tiny_checkpoint

    interceptors = tuple(registry.call_one(plugin, "interceptors") or ())
    observers = tuple(registry.call_one(plugin, "observers") or ())
    if not interceptors and not observers:
        return
    card = named or write_tiny_checkpoint(folder / "tiny")
    given = {**_sizes(card, SMALL), **_sizes(card, {"num_inference_steps": 8})}
    both = {
        "off means absent": hooks.check_absent_when_off,
        "requests among others are as alone": hooks.check_hook_gate,
    }
    kinds: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        (
            interceptors,
            {
                "what it remembers is in the request's state": hooks.check_states,
                "the declared error holds": hooks.check_declared_error,
                "exact requests are exact": hooks.check_exact,
            },
        ),
        (
            observers,
            {
                "it changes nothing": hooks.check_observer_reads_only,
                "it lives through failures and closes": hooks.check_observer_calls,
            },
        ),
    ]
    for specs, own in kinds:
        for spec in specs:
            yield Check(spec.name, "the description and its options are right", partial(hooks.check_options, spec))
            for name, run in {**both, **own}.items():
                yield Check(spec.name, name, partial(run, spec, card, given))


def _transport_checks(registry: PluginRegistry, plugin: str) -> Iterator[Check]:
    from fastvideo_testing.contract import transport

    for spec in registry.call_one(plugin, "transports") or ():
        make = resolve_ref(spec.implementation)
        for name, run in {
            "every dtype and size arrives": transport.check_tensors,
            "messages arrive in order": transport.check_order,
            "both ends talk": transport.check_both_ways,
            "sender and receiver share no memory": transport.check_copies,
            "waiting ends in time": transport.check_timeouts,
            "a closed peer is told": transport.check_dead_peer,
            "connecting to nobody is told": transport.check_nobody,
        }.items():
            yield Check(spec.name, name, partial(run, make))
        yield Check(spec.name, "a killed peer is told", partial(transport.check_killed_peer, spec))


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
