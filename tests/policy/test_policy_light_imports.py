"""Cards, plugin modules and the command line's start import neither torch nor transformers."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import importlib_metadata
import pytest

HEAVY = ("av", "diffusers", "huggingface_hub", "numpy", "torch", "transformers")
LIGHT = ("fastvideo_core", "fastvideo_core.card", "fastvideo_core.cli.main", "fastvideo_core.errors")


def heavy_imports(*modules):
    """Return the heavy libraries that a fresh interpreter holds after importing `modules`."""
    code = f"import sys, {', '.join(modules)}; print(*(name for name in {HEAVY!r} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.split()


def plugin_modules():
    """Return the modules that installed FastVideo plugins name in their entry points."""
    return sorted({entry.module for entry in importlib_metadata.entry_points(group="fastvideo.plugins")})


def is_present(module):
    """Say whether a module can be found."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


@pytest.mark.parametrize("module", [*LIGHT, *plugin_modules()])
def test_it_is_light(module):
    assert is_present(module), f"{module} does not exist"
    assert heavy_imports(module) == []


def test_a_heavy_import_is_seen():
    assert heavy_imports("numpy") == ["numpy"]
