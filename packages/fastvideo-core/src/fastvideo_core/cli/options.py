"""Flags that several commands share."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from fastvideo_core.cli.parser import Parser, assignment, number
from fastvideo_core.defaults import DEFAULT_CARD
from fastvideo_core.errors import ParameterError

__all__ = [
    "add_engine_options",
    "add_parameter_options",
    "add_plugin_options",
    "add_quiet_option",
    "given_parameters",
    "given_plugins",
    "is_config_key",
]

_NUMBERS = {
    "num_frames": "frames of the video",
    "height": "height in pixels",
    "width": "width in pixels",
    "num_inference_steps": "denoising steps",
    "guidance_scale": "how strongly the prompt is followed",
    "flow_shift": "shift of the noise schedule",
    "seed": "seed of the noise; without one it is drawn, and told with the result",
    "fps": "frames a second",
}
_TEXTS = {"negative_prompt": "what not to show", "sampler": "sampler of the denoising steps"}


def add_engine_options(parser: Parser, *, default_card: str = DEFAULT_CARD) -> None:
    """Add the flags that decide which model runs, and how."""
    group = parser.add_argument_group("model")
    group.add_argument(
        "--card",
        metavar="ID|FOLDER|HUB_REPO",
        help=f"installed card, checkpoint folder in diffusers layout, or hub repository (default: {default_card})",
    )
    group.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:INDEX (default: auto)")
    group.add_argument("--precision", help="float32, bfloat16 or float16 (default: the card's)")
    group.add_argument(
        "--exact", action="store_true", help="follow the reference's order of operations, to the bit; slower"
    )


def add_parameter_options(parser: Parser) -> None:
    """Add the parameters that people know by name, and `--set` for all others."""
    group = parser.add_argument_group(
        "parameters", "Ranges and defaults are the card's: `fastvideo card show ID` lists them."
    )
    for name, text in _NUMBERS.items():
        group.add_argument(_flag(name), type=number, metavar="N", help=text)
    for name, text in _TEXTS.items():
        group.add_argument(_flag(name), metavar="TEXT", help=text)
    group.add_argument(
        "--set",
        action="append",
        default=[],
        type=assignment,
        metavar="NAME=VALUE",
        help="any parameter of the card, or a key of the deploy config, such as costs_file or limits.max_running; "
        "VALUE is JSON, or text where it is no JSON; may be repeated",
    )


def add_plugin_options(parser: Parser) -> None:
    """Add `--plugin`, for options of plugins that a request may set."""
    parser.add_argument(
        "--plugin",
        action="append",
        default=[],
        type=plugin_option,
        metavar="KIND.NAME.OPTION=VALUE",
        help="an option of a plugin that the deploy config switches on, for this request alone; may be repeated",
    )


def plugin_option(text: str) -> tuple[str, str, Any]:
    """Read `KIND.NAME.OPTION=VALUE` as plugin, option and value.

    Raises:
        ParameterError: It is no such assignment.
    """
    name, value = assignment(text)
    plugin, separator, option = name.rpartition(".")
    if not separator or "." not in plugin or not option:
        raise ParameterError("names no plugin's option", field="plugin", value=text, allowed="KIND.NAME.OPTION=VALUE")
    return plugin, option, value


def given_plugins(args: Namespace) -> dict[str, dict[str, Any]]:
    """Return the plugins' options that were given, by plugin.

    Raises:
        ParameterError: One was given twice.
    """
    given: dict[str, dict[str, Any]] = {}
    for plugin, option, value in args.plugin:
        if option in given.setdefault(plugin, {}):
            raise ParameterError("given twice", field=f"plugins.{plugin}.{option}", value=value, allowed="once")
        given[plugin][option] = value
    return given


def add_quiet_option(parser: Parser) -> None:
    """Add `--quiet`."""
    parser.add_argument("-q", "--quiet", action="store_true", help="show no progress")


def given_parameters(args: Namespace) -> dict[str, Any]:
    """Return the parameters of the card that were given, and only those.

    Raises:
        ParameterError: One was given twice.
    """
    named = {name: getattr(args, name) for name in (*_NUMBERS, *_TEXTS)}
    given = {name: value for name, value in named.items() if value is not None}
    for name, value in args.set:
        if is_config_key(name):
            continue
        if name in given:
            raise ParameterError("given twice", field=name, value=value, allowed="once")
        given[name] = value
    return given


def is_config_key(name: str) -> bool:
    """Say whether a name in `--set` is a key of the deploy config, and not a parameter of the card.

    It is if it has a dot, which no parameter has, or is a key of the config's top level.
    """
    if "." in name:
        return True
    from fastvideo_core.deploy.config import DeployConfig

    return name in DeployConfig.model_fields


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
