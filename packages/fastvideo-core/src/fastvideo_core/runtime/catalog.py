"""From a name to a card: installed cards, local folders, hub repositories. Reads JSON only, never a weight."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Self

from fastvideo_core.card import CheckpointSource, ModelCard, foreign_refs
from fastvideo_core.errors import (
    CardError,
    CheckpointError,
    FastVideoError,
    PluginError,
    UnknownCardError,
    describe_failure,
)
from fastvideo_core.extend import PluginRegistry, load_plugins
from fastvideo_core.runtime.templates import load_templates, with_templates

__all__ = ["CARD_FILE", "INDEX_FILE", "Catalog", "read_json"]

CARD_FILE = "card.json"
INDEX_FILE = "model_index.json"

FetchConfigs = Callable[[str, str | None], Path]
"""Downloads the JSON files of a hub repository at a revision and returns the local folder."""


class Catalog:
    """The cards that the installed plugins bring, and the plugins' way to describe a checkpoint.

    Args:
        registry: Loaded plugins.
        fetch_configs: How to get a hub repository's JSON files; None asks the hub.
    """

    def __init__(self, registry: PluginRegistry, *, fetch_configs: FetchConfigs | None = None) -> None:
        self._fetch_configs = fetch_configs
        self._registry = registry
        self.cards, self.repositories = self._collect()
        self.templates, self._registry = load_templates(self._registry)

    @classmethod
    def installed(cls) -> Self:
        """Return the catalog of the installed model plugins."""
        return cls(load_plugins(("model",)))

    @property
    def registry(self) -> PluginRegistry:
        """The plugins behind the catalog, those that failed to load included."""
        return self._registry

    def find(self, name: str) -> ModelCard:
        """Return the card of a name, with the plugins' program templates that it can run among its tasks.

        Args:
            name: Id of an installed card, path of a local folder, or a hub repository `org/name`, with `@revision` if
                another than its default is meant.

        Raises:
            UnknownCardError: Nothing of that name.
            CardError: What is there is no valid card.
            CheckpointError: The folder or repository holds no checkpoint that an installed family knows.
            PluginError: A template has the name of a task of the card.
        """
        return with_templates(self._find(name), self.templates)

    def _find(self, name: str) -> ModelCard:
        if name in self.cards:
            return self.cards[name]
        path = _existing_path(name)
        if path is not None and path.is_dir():
            return self.read_folder(path)
        if path is not None:
            raise UnknownCardError(
                "a file, not a folder", field="card", value=name, allowed="a folder in diffusers layout"
            )
        repository, _, revision = name.partition("@")
        if revision == "" and repository in self.repositories:
            return self.cards[self.repositories[repository]]
        if name.count("/") == 1 and not name.startswith((".", "/", "~")):
            return self._read_hub(repository, revision or None)
        raise self._unknown(name)

    def read_folder(self, folder: Path) -> ModelCard:
        """Return the card of a local folder: its own `card.json`, or what a family makes of its `model_index.json`.

        Raises:
            CardError: `card.json` is not a valid card.
            CheckpointError: Neither file is there or can be read, or no family knows the layout.
        """
        source = CheckpointSource(kind="folder", location=str(folder.resolve()))
        return self._describe(folder, source)

    def _read_hub(self, repository: str, revision: str | None) -> ModelCard:
        fetch = self._fetch_configs or _fetch_from_hub
        folder = fetch(repository, revision)
        # The hub cache names the folder of a snapshot after its commit, which pins what a branch name does not.
        source = CheckpointSource(kind="hub", location=repository, revision=folder.name)
        return self._describe(folder, source)

    def _describe(self, folder: Path, source: CheckpointSource) -> ModelCard:
        card_file = folder / CARD_FILE
        if _is_file(card_file):
            card = self._read_card(card_file)
            return card.model_copy(update={"checkpoint": card.checkpoint.model_copy(update={"source": source})})
        index = read_json(folder / INDEX_FILE, missing=f"{folder} holds neither {CARD_FILE} nor {INDEX_FILE}")
        configs = {
            path.parent.name: read_json(path) for path in sorted(folder.glob("*/*config.json")) if _is_config(path)
        }
        described = self._ask_families(source, index, configs, folder)
        if described is None:
            raise CheckpointError(
                f"no installed family knows {index.get('_class_name', 'a pipeline without _class_name')!r} "
                f"({folder / INDEX_FILE}); installed: {', '.join(self._families()) or 'none'}"
            )
        return described

    def _read_card(self, path: Path) -> ModelCard:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise CardError(f"{path} cannot be read: {describe_failure(error)}") from error
        card = ModelCard.from_json(text, origin=str(path))
        for place, ref in foreign_refs(card, self._registry.packages):
            raise CardError(f"{path}: {place} names {ref!r}, which belongs to no installed plugin; install its plugin")
        return card

    def _ask_families(
        self, source: CheckpointSource, index: Mapping[str, Any], configs: Mapping[str, Any], folder: Path
    ) -> ModelCard | None:
        """Return what a family makes of a checkpoint in its layout, or None if it is of none.

        Raises:
            CheckpointError: A family knows the layout, and something in it is missing or wrong.
        """
        try:
            card = self._registry.manager.hook.card_from_layout(source=source, index=index, configs=configs)
        except FastVideoError:
            raise
        except Exception as error:
            raise CheckpointError(f"{folder} cannot be described: {describe_failure(error)}") from error
        if card is not None and not isinstance(card, ModelCard):
            raise PluginError(f"card_from_layout returned a {type(card).__name__}; allowed: ModelCard or None")
        return card

    def _collect(self) -> tuple[dict[str, ModelCard], dict[str, str]]:
        """Return the plugins' cards by id and card ids by repository; a plugin that fails is noted as failed.

        Raises:
            CardError: Two plugins bring a card of the same id.
        """
        cards: dict[str, ModelCard] = {}
        repositories: dict[str, str] = {}
        for name, _ in sorted(self._registry.manager.list_name_plugin()):
            try:
                own = _cards_of(self._registry, name)
                repositories |= _repositories_of(self._registry, name, own)
            except Exception as error:  # noqa: BLE001 - a plugin may raise anything; the others' cards stay
                self._registry = self._registry.with_failure(name, describe_failure(error))
                continue
            if doubled := sorted(cards.keys() & own.keys()):
                raise CardError(f"{name} brings cards that another plugin brings too, {doubled}; uninstall one")
            cards |= own
        return dict(sorted(cards.items())), repositories

    def _families(self) -> list[str]:
        return sorted({card.family for card in self.cards.values()})

    def _unknown(self, name: str) -> UnknownCardError:
        known = [*self.cards, *self.repositories]
        near = get_close_matches(name, known, n=1, cutoff=0.4)
        failed = [f"{plugin.name} failed to load: {plugin.error}" for plugin in self._registry.failed]
        hint = f" ({'; '.join(failed)})" if failed else ""
        return UnknownCardError(
            f"no such card{hint}",
            field="card",
            value=name,
            allowed=f"an installed card ({', '.join(self.cards) or 'none'}), a local folder, a hub repository org/name",
            nearest=next(iter(near), None),
        )


def read_json(path: Path, *, missing: str | None = None) -> Mapping[str, Any]:
    """Read a JSON object.

    Raises:
        CheckpointError: The file is missing, or is no JSON object.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(missing or f"{path} is missing") from None
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(data, dict):
        raise CheckpointError(f"{path} holds a JSON {type(data).__name__}, not an object")
    return data


def _is_config(path: Path) -> bool:
    return path.name in ("config.json", "scheduler_config.json")


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError as error:  # not so for what is missing, but for a folder that this user may not enter
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error


def _cards_of(registry: PluginRegistry, plugin: str) -> dict[str, ModelCard]:
    """Return the cards that a plugin brings, by id."""
    brought = tuple(registry.call_one(plugin, "model_cards") or ())
    for card in brought:
        if not isinstance(card, ModelCard):
            raise PluginError(f"model_cards gave a {type(card).__name__}; allowed: ModelCard")
    cards = {card.model_id: card for card in brought}
    if len(cards) < len(brought):
        raise PluginError("model_cards gave two cards of the same id")
    return cards


def _repositories_of(registry: PluginRegistry, plugin: str, cards: Mapping[str, ModelCard]) -> dict[str, str]:
    """Return the hub repositories that a plugin's cards stand for."""
    repositories = dict(registry.call_one(plugin, "hub_repositories") or {})
    if unknown := sorted(set(repositories.values()) - set(cards)):
        raise PluginError(f"hub_repositories names cards that the plugin does not bring: {', '.join(unknown)}")
    return repositories


def _existing_path(name: str) -> Path | None:
    """Return the file or folder of a name, or None if there is none that this user can see."""
    try:
        path = Path(name).expanduser()
        return path if name and path.exists() else None
    except (OSError, RuntimeError, ValueError):  # too long, no such user, a NUL
        return None


def _fetch_from_hub(repository: str, revision: str | None) -> Path:
    from fastvideo_core.runtime.weights.hub import fetch_configs

    return fetch_configs(repository, revision)
