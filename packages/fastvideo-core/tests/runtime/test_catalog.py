from __future__ import annotations

import errno
import json
import shutil
from pathlib import Path

import pytest

from fastvideo_core.card import CheckpointSource, ModelCard
from fastvideo_core.errors import CardError, CheckpointError, PluginError, UnknownCardError
from fastvideo_core.extend import LoadedPlugin, PluginRegistry, hookimpl, load_plugins
from fastvideo_core.runtime.catalog import Catalog, read_json
from fastvideo_testing.tiny import plugin as tiny_plugin
from fastvideo_testing.tiny import tiny_card


def plugin(**hooks):
    """Return a plugin with some hooks."""
    return type("Plugin", (), {name: staticmethod(hookimpl(function)) for name, function in hooks.items()})()


def catalog(fetch=None, **plugins):
    """Return the catalog of some plugins, by the second part of their names, and of the tiny family."""
    manager = load_plugins(available=[]).manager
    known = []
    for name, hooks in {"tiny": tiny_plugin, **plugins}.items():
        manager.register(hooks, name=f"model.{name}")
        known.append(LoadedPlugin(f"model.{name}", f"{name}-dist", "1.0"))
    return Catalog(PluginRegistry(tuple(known), manager), fetch_configs=fetch)


def named(*names):
    return [tiny_card(Path("weights"), model_id=name) for name in names]


@pytest.fixture
def folder(tiny_folder, tmp_path):
    """A copy of the tiny checkpoint's JSON files."""
    place = tmp_path / "checkpoint"
    shutil.copytree(tiny_folder, place, ignore=shutil.ignore_patterns("*.safetensors"))
    return place


def test_installed_cards_are_found_by_name():
    cards = catalog(a=plugin(model_cards=lambda: named("z-card", "b-card")), b=plugin(model_cards=lambda: named("m")))
    assert list(cards.cards) == ["b-card", "m", "z-card"]
    assert cards.find("m").model_id == "m"
    assert cards.registry.failed == ()


def test_an_unknown_name_tells_what_there_is():
    cards = catalog(a=plugin(model_cards=lambda: named("wan-shapes")))
    with pytest.raises(UnknownCardError, match="card='wan-shape': no such card; .*wan-shapes.*; nearest: wan-shapes"):
        cards.find("wan-shape")


@pytest.mark.parametrize("name", ["", "~no-such-user/x", "a\0b", "x" * 5000, "none/of/these", "./none", "/none/x"])
def test_odd_names_are_unknown_cards(name):
    with pytest.raises(UnknownCardError, match="no such card"):
        catalog().find(name)


def test_a_file_is_no_card(tmp_path):
    (tmp_path / "weights.safetensors").write_bytes(b"")
    with pytest.raises(UnknownCardError, match="a file, not a folder"):
        catalog().find(str(tmp_path / "weights.safetensors"))


def test_a_folder_with_a_card_is_that_card_where_it_lies(folder):
    card = catalog().find(str(folder))
    assert card == tiny_card(folder.resolve())
    assert card.checkpoint.source == CheckpointSource(kind="folder", location=str(folder.resolve()))


def test_a_folder_in_a_familys_layout_is_described_by_the_family(folder):
    (folder / "card.json").unlink()
    seen = {}

    def describe(source, index, configs):
        seen.update(index=index, configs=configs)

    card = catalog(a=plugin(card_from_layout=describe)).find(str(folder))
    assert card == tiny_card(folder.resolve())
    assert seen["index"] == {"_class_name": "TinyPipeline"}
    assert sorted(seen["configs"]) == ["text_encoder", "transformer", "vae"]
    assert seen["configs"]["vae"]["latent_channels"] == 4


def change_card(folder, change):
    data = json.loads((folder / "card.json").read_text())
    change(data)
    (folder / "card.json").write_text(json.dumps(data))


@pytest.mark.parametrize(
    ("break_it", "error", "text"),
    [
        (lambda f: (f / "card.json").write_text("{"), CardError, "card.json is not a valid card: "),
        (lambda f: (f / "card.json").write_bytes(b"\xff"), CardError, "card.json cannot be read: UnicodeDecodeError"),
        (lambda f: change_card(f, lambda d: d.pop("loops")), CardError, "card.json is not a valid card: loops: Field"),
        (
            lambda f: change_card(f, lambda d: d["checkpoint"]["components"]["vae"].update(key_map="os:system")),
            CardError,
            "card.checkpoint.components.vae.key_map names 'os:system', which belongs to no installed plugin",
        ),
        (
            lambda f: [(f / n).unlink() for n in ("card.json", "model_index.json")],
            CheckpointError,
            "holds neither card",
        ),
        (lambda f: layout(f, "{"), CheckpointError, "model_index.json cannot be read as JSON"),
        (lambda f: layout(f, "[" * 100_000), CheckpointError, "model_index.json cannot be read as JSON: .*recursion"),
        (lambda f: layout(f, "[]"), CheckpointError, "model_index.json holds a JSON list, not an object"),
        (lambda f: layout(f, "{}"), CheckpointError, "no installed family knows 'a pipeline without _class_name'"),
        (lambda f: layout(f, '{"_class_name": "Flux"}'), CheckpointError, "no installed family knows 'Flux'"),
        (lambda f: (layout(f, "{}"), (f / "vae/config.json").write_text("1")), CheckpointError, "a JSON int, not an"),
    ],
)
def test_a_folder_that_is_no_checkpoint(folder, break_it, error, text):
    break_it(folder)
    with pytest.raises(error, match=text) as caught:
        catalog().find(str(folder))
    assert "\n" not in str(caught.value)


def test_a_folder_that_this_user_may_not_enter(folder, monkeypatch):
    def denied(path):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_file", denied)
    with pytest.raises(CheckpointError, match=r"checkpoint/card\.json cannot be read: Permission denied$"):
        catalog().find(str(folder))


def layout(folder, index):
    (folder / "card.json").unlink()
    (folder / "model_index.json").write_text(index)


def test_a_familys_failure_to_describe_names_the_folder(folder):
    (folder / "card.json").unlink()

    def describe(index):
        return index["transformer"]

    with pytest.raises(CheckpointError, match="checkpoint cannot be described: KeyError: 'transformer'"):
        catalog(a=plugin(card_from_layout=describe)).find(str(folder))
    with pytest.raises(PluginError, match="card_from_layout returned a str; allowed: ModelCard or None"):
        catalog(a=plugin(card_from_layout=lambda index: "card")).find(str(folder))


def test_a_cards_own_plugin_may_be_named(folder):
    change_card(folder, lambda d: d["loops"]["decode"].update(step="acme_models.decode:run_step"))
    registry = PluginRegistry((LoadedPlugin("model.acme", "acme", "1", package="acme_models"),), load_plugins().manager)
    assert Catalog(registry).find(str(folder)).loops["decode"].step == "acme_models.decode:run_step"
    with pytest.raises(CardError, match="'acme_models.decode:run_step', which belongs to no installed plugin"):
        catalog().find(str(folder))


def test_a_hub_repository_is_read_and_pinned(folder):
    asked = []

    def fetch(repository, revision):
        asked.append((repository, revision))
        return folder

    cards = catalog(fetch)
    for name in ("org/tiny", "org/tiny@main"):
        source = cards.find(name).checkpoint.source
        assert source == CheckpointSource(kind="hub", location="org/tiny", revision="checkpoint")
    assert asked == [("org/tiny", None), ("org/tiny", "main")]


def test_a_repository_that_a_card_stands_for_is_that_card(folder):
    own = plugin(model_cards=lambda: named("a-card"), hub_repositories=lambda: {"org/a": "a-card"})
    cards = catalog(lambda repository, revision: folder, own=own)
    assert cards.find("org/a") is cards.cards["a-card"]
    assert cards.find("org/a@v2").checkpoint.source.kind == "hub"
    with pytest.raises(UnknownCardError, match="nearest: org/a"):
        cards.find("org/a/b")


def raises():
    raise ValueError("two\nlines")


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (plugin(model_cards=raises), "ValueError: two lines"),
        (plugin(model_cards=lambda: ["card"]), "model_cards gave a str; allowed: ModelCard"),
        (plugin(model_cards=lambda: 3), "TypeError: 'int' object is not iterable"),
        (plugin(model_cards=lambda: named("a", "a")), "model_cards gave two cards of the same id"),
        (
            plugin(hub_repositories=lambda: {"org/x": "x"}),
            "hub_repositories names cards that the plugin does not bring: x",
        ),
        (plugin(model_cards=lambda: named("a"), hub_repositories=raises), "ValueError: two lines"),
    ],
)
def test_a_plugin_that_fails_to_tell_its_cards_is_named_and_the_others_stay(bad, why):
    cards = catalog(bad=bad, good=plugin(model_cards=lambda: named("good")))
    assert list(cards.cards) == ["good"]
    (failed,) = cards.registry.failed
    assert (failed.name, failed.distribution, failed.error) == ("model.bad", "bad-dist", why)
    with pytest.raises(UnknownCardError, match=f"no such card .model.bad failed to load: {why}"):
        cards.find("a")


def test_two_plugins_with_one_card_are_refused():
    both = {name: plugin(model_cards=lambda name=name: named("same", f"own-{name}")) for name in ("a", "b")}
    with pytest.raises(CardError, match=r"model.b brings cards that another plugin brings too, \['same'\]"):
        catalog(**both)


def test_the_installed_catalog_has_cards_that_are_valid():
    for name, card in Catalog.installed().cards.items():
        assert ModelCard.from_json(card.model_dump_json(), origin=name) == card


def test_a_missing_json_file_is_told(tmp_path):
    with pytest.raises(CheckpointError, match="config.json is missing"):
        read_json(tmp_path / "config.json")
    with pytest.raises(CheckpointError, match="^that is not there$"):
        read_json(tmp_path / "config.json", missing="that is not there")
