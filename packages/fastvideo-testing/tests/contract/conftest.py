"""Objects that tests make up, where references can name them."""

from __future__ import annotations

import sys
import types

import pytest

MADE_UP = "fastvideo_made_up_for_the_contract"


@pytest.fixture
def made_up(monkeypatch):
    """Put an object into a module of its own, and return the reference to it."""
    module = types.ModuleType(MADE_UP)
    monkeypatch.setitem(sys.modules, MADE_UP, module)

    def add(name, value):
        setattr(module, name, value)
        if isinstance(value, (type, types.FunctionType)):
            value.__module__ = MADE_UP
        return f"{MADE_UP}:{name}"

    return add
