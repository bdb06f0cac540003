from __future__ import annotations

import subprocess
import sys

import importlib_metadata
import pytest

import fastvideo_core

LIGHT = [
    "fastvideo_core",
    "fastvideo_core.card",
    "fastvideo_core.extend",
    "fastvideo_core.loop.work",
    "fastvideo_core.program",
    "fastvideo_core.request.base",
    "fastvideo_core.request.build",
    "fastvideo_core.request.cancel",
    "fastvideo_core.request.events",
    "fastvideo_core.request.parameters",
    "fastvideo_core.runtime.catalog",
]


def test_every_public_name_is_there():
    for name in fastvideo_core.__all__:
        assert getattr(fastvideo_core, name) is not None
    from fastvideo_core import Engine, ModelCard, Request
    from fastvideo_core.card import ModelCard as SameCard
    from fastvideo_core.runtime.engine import Engine as SameEngine

    assert (Engine, ModelCard) == (SameEngine, SameCard)
    assert Request(task="t").task == "t"
    assert fastvideo_core.__version__ == importlib_metadata.version("fastvideo-core")


def test_other_names_are_not():
    with pytest.raises(AttributeError, match="module 'fastvideo_core' has no attribute 'engine_of'"):
        _ = fastvideo_core.engine_of


def test_contracts_are_imported_without_torch():
    code = f"import sys, {', '.join(LIGHT)}; print(*({{'torch', 'transformers', 'numpy'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == []
