from __future__ import annotations

import pytest

from fastvideo_core.runtime.engine import Engine
from fastvideo_testing.samples import extensions_of


@pytest.fixture
def open_with(tiny_card):
    """Open an engine of the tiny card, or another one, with an observer and others on."""

    def open_engine(spec, *others, card=tiny_card, engine=None, **options):
        extensions = extensions_of(spec, *others, options={f"observer.{spec.name}": options})
        return Engine.open(card, extensions=extensions, **(engine or {}))

    return open_engine


@pytest.fixture
def observer_of():
    """Return what gives an engine's only observer."""

    def find(engine):
        (observer,) = engine.instance.hooks.observers.values()
        return observer

    return find
