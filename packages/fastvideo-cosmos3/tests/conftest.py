"""The tiny checkpoint of the package, and the reference implementations reading the same files."""

from __future__ import annotations

import pytest
import torch

from fastvideo_cosmos3.parity.reference import load_pipeline, load_reasoner
from fastvideo_cosmos3.testing import write_checkpoint


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    """Sums are added up in one order; the models are too small for more threads to be of use."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """Return the tiny checkpoint's folder; tests must not write into it."""
    return write_checkpoint(tmp_path_factory.mktemp("cosmos3") / "tiny")


@pytest.fixture(scope="session")
def pipeline(folder):
    """Return the diffusers pipeline of the tiny checkpoint."""
    return load_pipeline(folder)


@pytest.fixture(scope="session")
def reasoner(folder):
    """Return the transformers reasoner of the tiny checkpoint."""
    return load_reasoner(folder)
