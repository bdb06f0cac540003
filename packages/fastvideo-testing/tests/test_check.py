"""What `plugins check` runs on a plugin that brings cards: sizes that they take, and files where there are some."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from fastvideo_core.card import CheckpointSource
from fastvideo_core.extend import PluginRegistry
from fastvideo_testing import check
from fastvideo_testing.check import _sizes, checks_of, run_checks


def test_sizes_are_those_of_the_card_that_are_nearest(tiny_card):
    (task,) = [tiny_card.capabilities.default_task]
    spec = tiny_card.capabilities.tasks[task]
    height = spec.parameters["height"].model_copy(update={"minimum": 48, "multiple_of": 16, "default": 48})
    changed = spec.model_copy(update={"parameters": {**spec.parameters, "height": height}})
    card = tiny_card.model_copy(
        update={"capabilities": tiny_card.capabilities.model_copy(update={"tasks": {task: changed}})}
    )
    assert _sizes(card, {"height": 32, "width": 32, "depth": 7}) == {"height": 48, "width": 32}


@pytest.mark.skipif(find_spec("fastvideo_wan") is None, reason="needs the plugin of fastvideo-wan")
def test_a_card_whose_folder_is_not_here_is_checked_without_it(tiny_card, tmp_path, monkeypatch):
    source = CheckpointSource(kind="folder", location=str(tmp_path / "gone"))
    away = tiny_card.model_copy(update={"checkpoint": tiny_card.checkpoint.model_copy(update={"source": source})})
    monkeypatch.setattr(PluginRegistry, "call_one", lambda _, __, hook: [away] if hook == "model_cards" else None)
    results = list(run_checks(checks_of("model.wan", None, tmp_path)))
    assert [(one.check, one.reason) for one in results] == [
        ("loads", ""),
        ("the card is valid and survives JSON", ""),
    ]
    assert check._has_files(tiny_card) and not check._has_files(away)
