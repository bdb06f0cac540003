"""Small checkpoints of Wan variants, built by the reference library once a session."""

from __future__ import annotations

import pytest

from fastvideo_core.runtime.catalog import Catalog
from fastvideo_core.runtime.loading import load_instance
from fastvideo_testing.wan_checkpoints import build_wan_checkpoint


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    """Return a function that gives the folder of a variant; tests must not write into it."""
    built = {}

    def get(variant):
        if variant not in built:
            built[variant] = build_wan_checkpoint(tmp_path_factory.mktemp("wan") / variant, variant)
        return built[variant]

    return get


@pytest.fixture(scope="session")
def instance(checkpoint):
    """Return a function that gives the loaded model of a variant; tests must not change it."""
    loaded = {}

    def get(variant):
        if variant not in loaded:
            loaded[variant] = load_instance(Catalog.installed().read_folder(checkpoint(variant)))
        return loaded[variant]

    return get
