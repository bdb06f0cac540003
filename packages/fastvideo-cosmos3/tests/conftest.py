"""The tiny checkpoint of the package, and the reference implementations reading the same files."""

from __future__ import annotations

import json
import re
import warnings

import pytest
import torch
from safetensors.torch import load_file

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
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from diffusers import Cosmos3OmniPipeline

        loaded = Cosmos3OmniPipeline.from_pretrained(
            str(folder), torch_dtype=torch.float32, enable_safety_checker=False
        )
    loaded.set_progress_bar_config(disable=True)
    return loaded


@pytest.fixture(scope="session")
def reasoner(folder):
    """Return the transformers reasoner of the tiny checkpoint, its tensors renamed as the library itself does it."""
    from transformers import Cosmos3OmniConfig, Cosmos3OmniForConditionalGeneration

    config = Cosmos3OmniConfig(**json.loads((folder / "config.json").read_text()))
    model = Cosmos3OmniForConditionalGeneration(config).eval()
    tensors = load_file(folder / "transformer" / "diffusion_pytorch_model.safetensors")
    named = {_reasoner_name(name): tensor for name, tensor in tensors.items()}
    seen = load_file(folder / "vision_encoder" / "model.safetensors")
    named |= {f"model.visual.{name}": tensor for name, tensor in seen.items()}
    own = model.state_dict()
    found = model.load_state_dict({name: tensor for name, tensor in named.items() if name in own}, strict=True)
    assert not found.missing_keys
    return model


def _reasoner_name(name):
    name = re.sub(r"^(layers|embed_tokens|norm)\.", r"model.language_model.\1.", name)
    pairs = {"to_q": "q_proj", "to_k": "k_proj", "to_v": "v_proj", "to_out": "o_proj", "norm_q": "q_norm"}
    for ours, theirs in {**pairs, "norm_k": "k_norm"}.items():
        name = name.replace(f".self_attn.{ours}.", f".self_attn.{theirs}.")
    return name
