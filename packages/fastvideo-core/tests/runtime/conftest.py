"""A tiny checkpoint, once for all tests of the runtime, and ways to change its card."""

from __future__ import annotations

import sys
import types

import pytest

from fastvideo_testing.tiny import write_tiny_checkpoint

MADE_UP = "fastvideo_made_up"


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory):
    """The checkpoint's folder; tests must not write into it."""
    folder = tmp_path_factory.mktemp("tiny")
    write_tiny_checkpoint(folder)
    return folder


@pytest.fixture
def made_up(monkeypatch):
    """A module of a test's own objects, and the references to them that a card may hold."""
    module = types.ModuleType(MADE_UP)
    monkeypatch.setitem(sys.modules, MADE_UP, module)

    def add(name, value):
        setattr(module, name, value)
        return f"{MADE_UP}:{name}"

    return add


@pytest.fixture
def with_loop():
    """Return a card with one loop changed."""

    def change(card, loop_id, **fields):
        loop = card.loops.get(loop_id, card.loops["denoise"]).model_copy(update={"loop_id": loop_id, **fields})
        return card.model_copy(update={"loops": {**card.loops, loop_id: loop}})

    return change


@pytest.fixture
def with_task():
    """Return a card with one task changed."""

    def change(card, task="text_to_video", **fields):
        tasks = {**card.capabilities.tasks, task: card.capabilities.tasks[task].model_copy(update=fields)}
        return card.model_copy(update={"capabilities": card.capabilities.model_copy(update={"tasks": tasks})})

    return change
