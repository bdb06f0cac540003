from __future__ import annotations

import re

import pytest

from fastvideo_core.extend import Command, hookimpl, load_plugins
from fastvideo_core.extend.commands import collect_commands

ONE = Command("one line", "some.module")


def registry_of(**brought):
    """Return a registry of plugins that bring what is given, by their names."""

    class Plugin:
        def __init__(self, commands):
            self.commands = commands

        @hookimpl
        def cli_commands(self):
            if isinstance(self.commands, Exception):
                raise self.commands
            return self.commands

    registry = load_plugins(available=())
    for name, commands in brought.items():
        registry.manager.register(Plugin(commands), name=name)
    return registry


def test_commands_of_all_plugins_are_there_by_name():
    commands, registry = collect_commands(registry_of(b={"beta": ONE}, a={"zeta": ONE}, c={}))
    assert list(commands) == ["beta", "zeta"]
    assert registry.failed == ()


@pytest.mark.parametrize(
    ("brought", "reason"),
    [
        (["eval"], "gave a list; allowed: a mapping"),
        ({"Eval": ONE}, "the name 'Eval'; allowed: lower case"),
        ({"eval": "some.module"}, "a str for 'eval'; allowed: Command"),
        (ValueError("broken"), "ValueError: broken"),
        ({"taken": ONE, "other": ONE}, r"another plugin brings too, \['taken'\]; uninstall one"),
    ],
)
def test_a_plugin_that_fails_brings_nothing_and_says_why(brought, reason):
    commands, registry = collect_commands(registry_of(a={"taken": ONE}, b=brought))
    assert commands == {"taken": ONE}
    (failed,) = registry.failed
    assert failed.name == "b"
    assert re.search(reason, failed.error)
