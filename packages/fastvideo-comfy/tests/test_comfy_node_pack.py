"""The node pack, loaded as ComfyUI loads custom nodes, against a stub of the interface that it documents."""

from __future__ import annotations

import gc
import importlib.util
import sys
import tomllib
import types
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import pytest
import torch

import fastvideo_comfy.node_pack
from fastvideo_core.errors import InputError, OutputError

SMALL = {"width": 64, "height": 64, "length": 5, "steps": 2, "cfg": 2.0, "seed": 3, "negative": ""}


class InterruptProcessingException(Exception):
    pass


@dataclass
class VideoComponents:
    images: Any
    frame_rate: Fraction
    audio: Any = None


class VideoFromComponents:
    def __init__(self, components):
        self.components = components

    def get_components(self):
        return self.components


class ProgressBar:
    seen: list[tuple[int, int]]

    def __init__(self, total):
        self.total = total

    def update_absolute(self, value, total=None, preview=None):
        type(self).seen.append((value, total))


class Interrupts:
    """ComfyUI's flag: set from outside, cleared by the exception that it raises."""

    is_set = False

    def processing_interrupted(self):
        return self.is_set

    def throw_exception_if_processing_interrupted(self):
        if self.is_set:
            self.is_set = False
            raise InterruptProcessingException


@pytest.fixture
def comfyui(monkeypatch, tmp_path):
    """The modules of ComfyUI that nodes may use, as it documents them."""
    interrupts = Interrupts()
    ProgressBar.seen = []
    contents = {
        "comfy": {},
        "comfy.utils": {"ProgressBar": ProgressBar},
        "comfy.model_management": {
            "processing_interrupted": interrupts.processing_interrupted,
            "throw_exception_if_processing_interrupted": interrupts.throw_exception_if_processing_interrupted,
        },
        "comfy_api": {},
        "comfy_api.input_impl": {"VideoFromComponents": VideoFromComponents},
        "comfy_api.util": {"VideoComponents": VideoComponents},
        "folder_paths": {"get_output_directory": lambda: str(tmp_path)},
    }
    for name, attributes in contents.items():
        module = types.ModuleType(name)
        vars(module).update(attributes)
        monkeypatch.setitem(sys.modules, name, module)
    return interrupts


@pytest.fixture
def pack(comfyui, monkeypatch):
    """The pack's folder, imported by its path under a name of ComfyUI's choosing."""
    folder = Path(next(iter(fastvideo_comfy.node_pack.__path__)))
    name = str(folder).replace(".", "_x_")
    spec = importlib.util.spec_from_file_location(name, folder / "__init__.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def nodes(pack):
    """An instance of each node, as ComfyUI makes it."""
    return {name: kind() for name, kind in pack.NODE_CLASS_MAPPINGS.items()}


def call(node, **inputs):
    """Call a node with what it asks for and nothing else, as ComfyUI does."""
    asked = node.INPUT_TYPES()
    assert set(asked["required"]) <= set(inputs) <= {*asked["required"], *asked.get("optional", {})}
    return getattr(node, node.FUNCTION)(**inputs)


@pytest.fixture(scope="module")
def resident():
    from fastvideo_comfy.node_pack.nodes import FastVideoLoader

    (model,) = FastVideoLoader().load("wan-shapes", "cpu", "default")
    yield model
    model.close()


def test_every_node_has_what_comfyui_asks_of_it(pack):
    assert set(pack.NODE_CLASS_MAPPINGS) == set(pack.NODE_DISPLAY_NAME_MAPPINGS)
    for kind in pack.NODE_CLASS_MAPPINGS.values():
        asked = kind.INPUT_TYPES()
        assert set(asked) <= {"required", "optional", "hidden"}
        for inputs in asked.values():
            for name, (type_name, *options) in inputs.items():
                assert name.isidentifier()
                assert isinstance(type_name, (str, list))
                assert all(isinstance(one, dict) for one in options)
                if isinstance(type_name, list):
                    assert options[0]["default"] in type_name
        assert isinstance(kind.RETURN_TYPES, tuple)
        assert len(getattr(kind, "RETURN_NAMES", kind.RETURN_TYPES)) == len(kind.RETURN_TYPES)
        assert callable(getattr(kind, kind.FUNCTION))
        assert kind.CATEGORY == "FastVideo"
    assert pack.NODE_CLASS_MAPPINGS["FastVideoSave"].OUTPUT_NODE is True


def test_the_folder_can_be_published(pack):
    content = tomllib.loads((Path(pack.__file__).parent / "pyproject.toml").read_text())
    assert set(content["tool"]["comfy"]) == {"PublisherId", "DisplayName"}
    assert content["project"]["name"]


def test_a_video_comes_out_as_images_and_as_video(nodes, resident, tmp_path):
    images, video, result = call(nodes["FastVideoSampler"], model=resident, prompt="a red circle moving right", **SMALL)
    assert images.shape == (5, 64, 64, 3)
    assert images.dtype == torch.float32
    assert 0 <= images.min() < images.max() <= 1
    components = video.get_components()
    assert torch.equal(components.images, images)
    assert components.frame_rate == Fraction(result.video.fps)
    assert ProgressBar.seen[-1][1] == 100
    assert [value for value, _ in ProgressBar.seen] == sorted(value for value, _ in ProgressBar.seen)
    shown = call(nodes["FastVideoSave"], result=result, filename_prefix="video/x", format="mp4")["ui"]["images"]
    again = call(nodes["FastVideoSave"], result=result, filename_prefix="video/x", format="mp4")["ui"]["images"]
    assert shown == [{"filename": "x.mp4", "subfolder": "video", "type": "output"}]
    assert again[0]["filename"] == "x-2.mp4"
    with av.open(str(tmp_path / "video/x.mp4")) as file:
        assert file.streams.video[0].frames == 5
    with pytest.raises(OutputError, match="leaves its folder"):
        call(nodes["FastVideoSave"], result=result, filename_prefix="../x", format="mp4")


def test_an_interrupt_cancels_the_request(nodes, resident, comfyui):
    comfyui.is_set = True
    with pytest.raises(InterruptProcessingException):
        call(nodes["FastVideoSampler"], model=resident, prompt="a red circle", **{**SMALL, "steps": 900})
    assert comfyui.is_set is False
    images, _, _ = call(nodes["FastVideoSampler"], model=resident, prompt="a red circle moving right", **SMALL)
    assert images.shape[0] == 5


def test_a_card_without_images_refuses_one(nodes, resident):
    with pytest.raises(InputError, match="takes no image"):
        call(nodes["FastVideoSampler"], model=resident, prompt="x", start_image=torch.zeros(1, 8, 8, 3), **SMALL)


def test_the_engine_closes_with_the_last_reference(nodes):
    (model,) = call(nodes["FastVideoLoader"], card="wan-shapes", device="cpu", precision="float32")
    close = model.close
    assert close.alive
    del model
    gc.collect()
    assert not close.alive
