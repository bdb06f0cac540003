from __future__ import annotations

import sys

import pytest
from importlib_metadata import EntryPoint

from fastvideo_core.errors import PluginError
from fastvideo_core.extend import ENTRY_POINT_GROUP, LoadedPlugin, PluginRegistry, load_plugins
from fastvideo_core.extend import hookspecs as specs

GOOD = """
from fastvideo_core.extend import hookimpl

@hookimpl
def model_cards():
    return ["a card"]
"""
MISSPELT = """
from fastvideo_core.extend import hookimpl

@hookimpl
def model_card():
    return []
"""
WRONG_ARGUMENTS = """
from fastvideo_core.extend import hookimpl

@hookimpl
def model_cards(folder):
    return []
"""


class Distribution:
    def __init__(self, name, version="1.0"):
        self.name, self.version = name, version


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Write a module that can be imported, and return its name; names are its own in every test."""
    monkeypatch.syspath_prepend(str(tmp_path))
    written = []

    def write(name, text):
        (tmp_path / f"{name}.py").write_text(text)
        written.append(name)
        return name

    yield write
    for name in written:
        sys.modules.pop(name, None)


def entry(name, value, distribution="some-plugin", version="1.0"):
    point = EntryPoint(name=name, value=value, group=ENTRY_POINT_GROUP)
    vars(point)["dist"] = Distribution(distribution, version)
    return point


def cards(registry):
    return [card for brought in registry.manager.hook.model_cards() for card in brought]


def test_the_installed_plugins_load():
    assert load_plugins(strict=True).failed == ()


def test_a_plugin_is_known_with_its_distribution(module):
    registry = load_plugins(available=[entry("model.good", module("good_plugin", GOOD), "good-dist", "2.1")])
    assert registry.plugins == (LoadedPlugin("model.good", "good-dist", "2.1", package="good_plugin"),)
    assert str(registry.plugins[0]) == "model.good (good-dist 2.1)"
    assert registry.packages == {"good_plugin"}
    assert cards(registry) == ["a card"]


def test_nothing_is_imported_but_the_kinds_that_are_wanted(module):
    available = [
        entry("model.good", module("good_plugin", GOOD)),
        entry("observer.other", module("observing_plugin", "raise SystemExit('imported')")),
        entry("modelling.other", module("modelling_plugin", "raise SystemExit('imported')")),
    ]
    registry = load_plugins(iter(["model"]), available=available, strict=True)
    assert [plugin.name for plugin in registry.plugins] == ["model.good"]
    assert {"good_plugin", "observing_plugin", "modelling_plugin"} & set(sys.modules) == {"good_plugin"}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("import no_such_library", "ModuleNotFoundError: No module named 'no_such_library'"),
        ("raise ValueError('two\\nlines')", "ValueError: two lines"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("x = (", "SyntaxError"),
        ("x = 1", "module bad_plugin implements no hook of fastvideo"),
        (MISSPELT, "PluginValidationError: .*unknown hook 'model_card'"),
        (WRONG_ARGUMENTS, "PluginValidationError: .*folder"),
    ],
    ids=["import", "raises", "exits", "syntax", "no hook", "misspelt", "arguments"],
)
def test_a_plugin_that_fails_is_named_and_the_others_load(module, text, why):
    available = [
        entry("model.a", module("first_plugin", GOOD)),
        entry("model.bad", module("bad_plugin", text), "bad-dist", "0.3"),
        entry("model.z", module("last_plugin", GOOD)),
    ]
    registry = load_plugins(available=available)
    assert [plugin.name for plugin in registry.plugins] == ["model.a", "model.bad", "model.z"]
    (failed,) = registry.failed
    assert (failed.name, failed.distribution, failed.version) == ("model.bad", "bad-dist", "0.3")
    assert "\n" not in failed.error
    assert cards(registry) == ["a card"] * 2
    with pytest.raises(PluginError, match=rf"^model.bad \(bad-dist 0.3\): {why}"):
        load_plugins(available=available, strict=True)


def test_two_distributions_with_one_name_are_refused(module):
    available = [
        entry("model.wan", module("one_plugin", GOOD), "one"),
        entry("model.other", module("third_plugin", GOOD)),
        entry("model.wan", module("two_plugin", GOOD), "two", "3.0"),
    ]
    with pytest.raises(PluginError) as caught:
        load_plugins(available=available)
    assert str(caught.value) == (
        "two plugins are named 'model.wan': one 1.0 (one_plugin) and two 3.0 (two_plugin); uninstall one"
    )
    assert not {"one_plugin", "two_plugin", "third_plugin"} & set(sys.modules), "nothing is imported before"


def test_a_distribution_that_is_seen_twice_is_one(module):
    name = module("good_plugin", GOOD)
    registry = load_plugins(available=[entry("model.good", name), entry("model.good", name)], strict=True)
    assert len(registry.plugins) == 1
    assert cards(registry) == ["a card"]


def test_one_module_under_two_names_is_loaded_once(module):
    name = module("good_plugin", GOOD)
    registry = load_plugins(available=[entry("model.a", name), entry("model.b", name)])
    assert [plugin.error for plugin in registry.plugins] == [None, "module good_plugin is already plugin model.a"]


def test_an_entry_without_a_distribution_is_named_all_the_same(module):
    point = EntryPoint(name="model.loose", value=module("loose_plugin", "raise ValueError"), group=ENTRY_POINT_GROUP)
    with pytest.raises(PluginError, match=r"model.loose \(unknown distribution \?\): ValueError"):
        load_plugins(available=[point], strict=True)


def test_a_plugin_can_be_found_to_be_of_no_use_later(module):
    registry = load_plugins(available=[entry("model.good", module("good_plugin", GOOD))])
    assert registry.call_one("model.good", "model_cards") == ["a card"]
    assert registry.call_one("model.good", "hub_repositories") is None
    assert registry.call_one("model.none", "model_cards") is None
    worse = registry.with_failure("model.good", "no").with_failure("model.a", "nor that")
    assert [(plugin.name, plugin.error) for plugin in worse.failed] == [("model.a", "nor that"), ("model.good", "no")]
    assert registry.failed == ()


def test_no_plugins_are_no_trouble():
    registry = load_plugins(available=[])
    assert registry == PluginRegistry((), registry.manager)
    assert cards(registry) == []


def test_specifications_are_documented_and_not_called():
    hooks = [value for value in vars(specs).values() if hasattr(value, "fastvideo_spec")]
    assert {hook.__name__ for hook in hooks} == {
        "card_from_layout",
        "cli_commands",
        "hub_repositories",
        "model_cards",
    }
    for hook in hooks:
        assert hook.__doc__.startswith(("Return", "Describe"))
        with pytest.raises(AssertionError, match="a specification is not called"):
            hook(*[None] * hook.__code__.co_argcount)
