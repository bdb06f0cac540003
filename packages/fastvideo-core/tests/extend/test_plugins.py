from __future__ import annotations

import re
import sys

import pytest
from importlib_metadata import EntryPoint

from fastvideo_core.errors import PluginError
from fastvideo_core.extend import ENTRY_POINT_GROUP, LoadedPlugin, PluginRegistry, find_plugins, load_plugins
from fastvideo_core.extend import hookspecs as specs
from fastvideo_core.extend.hooks import hook_infos

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
    good = LoadedPlugin("model.good", "good-dist", "2.1", package="good_plugin", hooks=("model_cards",))
    assert registry.plugins == (good,)
    assert good.kind == "model"
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
        "attention_backends",
        "card_from_layout",
        "cli_commands",
        "config_sections",
        "doctor_checks",
        "hub_repositories",
        "interceptors",
        "model_cards",
        "observers",
        "program_templates",
        "rewards",
        "samplers",
        "server_parts",
        "training_methods",
        "transports",
        "workflow_nodes",
    }
    for hook in hooks:
        assert hook.__doc__.startswith(("Return", "Describe"))
        assert hook.fastvideo_since == "1.0"
        with pytest.raises(AssertionError, match="a specification is not called"):
            hook(*[None] * hook.__code__.co_argcount)


def test_a_hook_that_will_go_still_works_and_is_told_of(module):
    assert not any(info.deprecated for info in hook_infos())
    specs.deprecated("implement card_from_layout; gone in hooks 2.0")(specs.model_cards)
    try:
        registry = load_plugins(available=[entry("model.good", module("deprecating_plugin", GOOD))])
        (plugin,) = registry.plugins
        assert cards(registry) == ["a card"]
        assert plugin.deprecated == ("model_cards: implement card_from_layout; gone in hooks 2.0",)
        (info,) = [info for info in hook_infos() if info.deprecated]
        assert (info.name, info.deprecated) == ("model_cards", "implement card_from_layout; gone in hooks 2.0")
    finally:
        del specs.model_cards.fastvideo_deprecated


def test_hooks_are_listed_with_what_they_take_and_give():
    infos = {info.name: info for info in hook_infos()}
    layout = infos["card_from_layout"]
    assert (layout.arguments, layout.is_first_result) == (("source", "index", "configs"), True)
    assert layout.returns == "ModelCard | None"
    assert infos["interceptors"].summary.startswith("Return step and block interceptors.")
    assert "Conflicts" in infos["interceptors"].documentation


def test_other_plugins_are_loaded_by_name_and_unwanted_ones_are_not(module):
    available = [
        entry("model.good", module("good_plugin", GOOD)),
        entry("model.unwanted", module("unwanted_plugin", "raise SystemExit('imported')")),
        entry("observer.a", module("observing_plugin", GOOD)),
        entry("observer.b", module("other_observing_plugin", "raise SystemExit('imported')")),
    ]
    registry = load_plugins(names=["observer.a"], without=["model.unwanted"], available=available, strict=True)
    assert [plugin.name for plugin in registry.plugins] == ["model.good", "observer.a"]
    with pytest.raises(PluginError, match="no plugin 'observer.aa' is installed; .*; nearest: observer.a$"):
        load_plugins(names=["observer.aa"], available=available)
    assert [one.name for one in find_plugins(available)] == ["model.good", "model.unwanted", "observer.a", "observer.b"]


@pytest.mark.parametrize(
    ("requires", "why"),
    [
        (["fastvideo-core>=7"], r"it needs fastvideo-core>=7; installed: fastvideo-core \d"),
        (["no-such-library>=1"], "it needs no-such-library>=1, which is not installed"),
        (["what is this?"], "a requirement that cannot be read: 'what is this\\?'"),
        (["fastvideo-core>=0.0", "no-such-library; extra == 'all'", "other; python_version < '3'"], None),
    ],
)
def test_what_a_distribution_requires_is_found_before_the_import(module, requires, why):
    point = entry("model.needy", module("needy_plugin", GOOD))
    point.dist.requires = requires
    registry = load_plugins(available=[point])
    if why is None:
        assert registry.failed == ()
    else:
        assert re.search(why, registry.failed[0].error)
        assert "needy_plugin" not in sys.modules
        with pytest.raises(PluginError, match=r"^model.needy \(some-plugin 1.0\): it"):
            load_plugins(available=[point], strict=True)
        assert load_plugins(available=[point], check_requirements=False).failed == ()


@pytest.mark.parametrize(
    ("stated", "why"),
    [
        ("'>=1.0,<2'", None),
        ("'>=2'", "it was written for hooks >=2; this fastvideo-core has 1.0"),
        ("'new'", "its HOOK_VERSIONS is 'new'; allowed: a version range"),
        ("3", "its HOOK_VERSIONS is 3; allowed: a version range"),
    ],
)
def test_a_module_states_the_hooks_that_it_was_written_for(module, stated, why):
    name = module("versioned_plugin", f"HOOK_VERSIONS = {stated}\n{GOOD}")
    (plugin,) = load_plugins(available=[entry("model.versioned", name)]).plugins
    assert plugin.error is None if why is None else plugin.error.startswith(why)
