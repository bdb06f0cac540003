"""From a name to a card: installed cards, local folders, hub repositories. Reads JSON only, never a weight."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Self

from fastvideo_core.card import CheckpointSource, ModelCard
from fastvideo_core.errors import CardError, CheckpointError, PluginError, UnknownCardError
from fastvideo_core.extend import PluginRegistry, load_plugins

__all__ = ["CARD_FILE", "DEFAULT_CARD", "INDEX_FILE", "Catalog"]

CARD_FILE = "card.json"
INDEX_FILE = "model_index.json"

DEFAULT_CARD = "wan-shapes"
"""The card of those who name none; it ships with fastvideo-wan and needs no download."""

FetchConfigs = Callable[[str, str | None], Path]
"""Downloads the JSON files of a hub repository at a revision and returns the local folder."""


class Catalog:
    """The cards that the installed plugins bring, and the plugins' way to describe a checkpoint.

    Args:
        registry: Loaded plugins.
        fetch_configs: How to get a hub repository's JSON files; None asks the hub.
    """

    def __init__(self, registry: PluginRegistry, *, fetch_configs: FetchConfigs | None = None) -> None:
        self._registry = registry
        self._fetch_configs = fetch_configs
        self.cards = _collect(registry)
        self.repositories = {
            repository: card_id
            for mapping in registry.manager.hook.hub_repositories()
            for repository, card_id in mapping.items()
        }

    @classmethod
    def installed(cls) -> Self:
        """Return the catalog of the installed model plugins."""
        return cls(load_plugins(("model",)))

    @property
    def registry(self) -> PluginRegistry:
        """The plugins behind the catalog, those that failed to load included."""
        return self._registry

    def find(self, name: str) -> ModelCard:
        """Return the card of a name.

        Args:
            name: Id of an installed card, path of a local folder, or a hub repository `org/name`, with `@revision` if
                another than its default is meant.

        Raises:
            UnknownCardError: Nothing of that name.
            CardError: What is there is no valid card.
            CheckpointError: The folder or repository holds no checkpoint that an installed family knows.
        """
        if name in self.cards:
            return self.cards[name]
        path = Path(name).expanduser()
        if path.is_dir():
            return self.read_folder(path)
        if path.exists():
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
            CheckpointError: Neither file is there, or no family knows the layout.
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
        if card_file.is_file():
            card = ModelCard.from_json(card_file.read_text(encoding="utf-8"), origin=str(card_file))
            return card.model_copy(update={"checkpoint": card.checkpoint.model_copy(update={"source": source})})
        index = read_json(folder / INDEX_FILE, missing=f"{folder} holds neither {CARD_FILE} nor {INDEX_FILE}")
        configs = {
            path.parent.name: read_json(path) for path in sorted(folder.glob("*/*config.json")) if _is_config(path)
        }
        card = self._registry.manager.hook.card_from_layout(source=source, index=index, configs=configs)
        if card is None:
            raise CheckpointError(
                f"no installed family knows {index.get('_class_name', 'a pipeline without _class_name')!r} "
                f"({folder / INDEX_FILE}); installed: {', '.join(self._families()) or 'none'}"
            )
        if not isinstance(card, ModelCard):
            raise PluginError(f"card_from_layout returned a {type(card).__name__}; allowed: ModelCard or None")
        return card

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
            allowed=f"an installed card ({', '.join(self.cards) or 'none'}), a local folder, or a hub repository org/name",
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
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(data, dict):
        raise CheckpointError(f"{path} holds a JSON {type(data).__name__}, not an object")
    return data


def _is_config(path: Path) -> bool:
    return path.name in ("config.json", "scheduler_config.json")


def _collect(registry: PluginRegistry) -> dict[str, ModelCard]:
    cards: dict[str, ModelCard] = {}
    for brought in registry.manager.hook.model_cards():
        for card in brought:
            if card.model_id in cards:
                raise CardError(f"two plugins bring a card {card.model_id!r}; uninstall one")
            cards[card.model_id] = card
    return dict(sorted(cards.items()))


def _fetch_from_hub(repository: str, revision: str | None) -> Path:
    from fastvideo_core.runtime.weights.hub import fetch_configs

    return fetch_configs(repository, revision)
