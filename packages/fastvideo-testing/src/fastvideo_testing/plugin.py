"""The pytest plugin: fixtures that the contract suite and tests of plugins share. Imports nothing heavy by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from fastvideo_core.card import ModelCard

__all__ = ["tiny_card"]


@pytest.fixture(scope="session")
def tiny_card(tmp_path_factory: pytest.TempPathFactory) -> ModelCard:
    """A card of the tiny family, with weights in a folder that tests only read."""
    from fastvideo_testing.tiny import write_tiny_checkpoint

    return write_tiny_checkpoint(tmp_path_factory.mktemp("fastvideo-tiny"))
