"""flash-attn that is made up: a module with a kernel of plain operations, a release, and a device."""

from __future__ import annotations

import sys
import types

import importlib_metadata
import pytest
import torch

from fastvideo_flashattn import availability

NAMES = {2: ("flash-attn", "flash_attn"), 3: ("flash-attn-3", "flash_attn_interface")}


@pytest.fixture(autouse=True)
def _fresh():
    availability.best_kernel.cache_clear()
    yield
    availability.best_kernel.cache_clear()


@pytest.fixture
def releases(monkeypatch):
    """Say which releases of flash-attn are installed; none of them, at first."""
    installed = {}
    real = importlib_metadata.version

    def version(name):
        if name in ("flash-attn", "flash-attn-3", "flashattn-hopper"):
            if name not in installed:
                raise importlib_metadata.PackageNotFoundError(name)
            return installed[name]
        return real(name)

    monkeypatch.setattr(importlib_metadata, "version", version)
    return installed


@pytest.fixture
def device(monkeypatch):
    """Say which compute capability the machine's device has."""

    def put(capability):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Made-up GPU")

    return put


@pytest.fixture
def kernel(monkeypatch):
    """Put a kernel in the place of a version's own, and return what it is called with."""
    calls = []

    def put(number, function):
        def flash_attn_func(q, k, v, **named):
            calls.append((q, k, v, named))
            return function(q, k, v, named["softmax_scale"])

        module = types.ModuleType(NAMES[number][1])
        module.flash_attn_func = flash_attn_func
        monkeypatch.setitem(sys.modules, NAMES[number][1], module)
        return calls

    return put
