from __future__ import annotations

import json
import struct

import pytest


@pytest.fixture
def write_raw():
    """Write a safetensors file byte by byte: the header as given, the data as given."""

    def write(path, header, data=b""):
        text = header if isinstance(header, bytes) else json.dumps(header).encode()
        path.write_bytes(struct.pack("<Q", len(text)) + text + data)
        return path

    return write


@pytest.fixture
def write_shards():
    """Write tensors into shards and their index."""
    from safetensors.torch import save_file

    def write(folder, shards, stem="diffusion_pytorch_model", index_name=None):
        folder.mkdir(parents=True, exist_ok=True)
        weight_map = {}
        for number, tensors in enumerate(shards, start=1):
            name = f"{stem}-{number:05}-of-{len(shards):05}.safetensors"
            save_file(tensors, folder / name)
            weight_map.update(dict.fromkeys(tensors, name))
        index = folder / (index_name or f"{stem}.safetensors.index.json")
        index.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}))
        return index

    return write
