"""The node pack, loaded as ComfyUI loads custom nodes, against a stub of the interface that it documents."""

from __future__ import annotations

import gc
import importlib.util
import json
import sys
import threading
import tomllib
import types
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import torch

import fastvideo_comfy.node_pack
from fastvideo_comfy.node_pack.local import LocalModel
from fastvideo_comfy.node_pack.nodes import parse_steering
from fastvideo_comfy.node_pack.remote import RemoteModel
from fastvideo_core import Engine
from fastvideo_core.errors import InputError, OutputError, ResourceError
from fastvideo_core.request.media.videos import load_video
from fastvideo_server.config import ServerConfig
from fastvideo_server.http.app import create_app
from fastvideo_server.protocol import DrainingServer, uvicorn_config
from fastvideo_server.serve import open_parts
from fastvideo_testing.tiny import tiny_causal_card, write_tiny_checkpoint

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


SMALL_STREAM = {"width": 16, "height": 16, "seed": 3}


@pytest.fixture(scope="module")
def causal_card(tmp_path_factory):
    """A card of a few thousand weights whose streams are coloured noise."""
    folder = tmp_path_factory.mktemp("tiny-causal")
    write_tiny_checkpoint(folder)
    return tiny_causal_card(folder)


@contextmanager
def serving(card, folder):
    """A server on a thread; gives its address."""
    settings = ServerConfig(folder=folder, port=0, min_free=0)
    with open_parts(settings, card, device="cpu") as parts:
        started, addresses = threading.Event(), []

        def tell(address):
            addresses.append(address)
            started.set()

        server = DrainingServer(uvicorn_config(create_app(parts), settings), parts.service.drain, tell)
        thread = threading.Thread(target=server.run)
        thread.start()
        try:
            assert started.wait(60)
            yield addresses[0]
        finally:
            server.stop()
            thread.join(60)


@pytest.fixture(scope="module", params=["here", "on a server"])
def causal(request, causal_card, tmp_path_factory):
    """A model that makes streams, in this process and by URL."""
    if request.param == "here":
        with Engine.open(causal_card, device="cpu") as engine:
            yield LocalModel(engine)
    else:
        with serving(causal_card, tmp_path_factory.mktemp("server")) as url:
            yield RemoteModel(url)


def test_a_stream_comes_out_whole_and_is_steered(nodes, causal, tmp_path):
    asked = {"model": causal, "prompt": "a red circle", "chunks": 4, **SMALL_STREAM}
    images, video, result = call(nodes["FastVideoStream"], steering="", **asked)
    assert images.dtype == torch.float32
    assert images.shape[0] > 4
    assert video.get_components().frame_rate == result.fps > 1
    assert ProgressBar.seen[-1] == (4, 4)
    turned, _, _ = call(nodes["FastVideoStream"], steering="0: a blue square", **asked)
    assert turned.shape == images.shape
    assert torch.equal(turned[0], images[0])  # of the chunk before the turn
    assert not torch.equal(turned[-1], images[-1])
    shown = call(nodes["FastVideoSave"], result=result, filename_prefix="s", format="mp4")["ui"]["images"]
    with av.open(str(tmp_path / shown[0]["filename"])) as file:
        assert sum(1 for _ in file.decode(video=0)) == images.shape[0]


def test_an_interrupt_ends_a_stream(nodes, causal, comfyui):
    comfyui.is_set = True
    with pytest.raises(InterruptProcessingException):
        call(nodes["FastVideoStream"], model=causal, prompt="x", steering="", chunks=5000, **SMALL_STREAM)
    images, _, _ = call(nodes["FastVideoStream"], model=causal, prompt="x", steering="", chunks=1, **SMALL_STREAM)
    assert images.shape[0] > 0


def test_a_video_of_a_server_is_the_same_as_one_that_is_made_here(nodes, causal, causal_card, comfyui, tmp_path):
    if isinstance(causal, LocalModel):
        pytest.skip("compared with the other one")
    asked = {"prompt": "a red circle", **SMALL, "width": 16, "height": 16, "length": 9, "cfg": 1.0}
    images, _, result = call(nodes["FastVideoSampler"], model=causal, **asked)
    with Engine.open(causal_card, device="cpu") as engine:
        _, _, own = call(nodes["FastVideoSampler"], model=LocalModel(engine), **asked)
    file = load_video(own.save(tmp_path / "own.mp4"))  # the server's went through a file of the same kind
    assert np.array_equal(result.video.frames, file.frames)
    assert torch.equal(images, torch.from_numpy(file.frames).float() / 255)
    shown = call(nodes["FastVideoSave"], result=result, filename_prefix="r", format="mp4")["ui"]["images"]
    assert (tmp_path / shown[0]["filename"]).read_bytes() == result.file
    assert json.loads((tmp_path / "r.json").read_text())["parameters"]["seed"]["value"] == 3
    comfyui.is_set = True
    with pytest.raises(InterruptProcessingException):
        call(nodes["FastVideoSampler"], model=causal, **{**asked, "steps": 900})
    assert [job["status"] for job in causal.ask("GET", "/v1/videos")["data"]] == ["completed"]
    with pytest.raises(InputError, match="guidance_scale"):
        call(nodes["FastVideoSampler"], model=causal, **{**asked, "cfg": 2.0})


def test_servers_that_are_not_there(nodes):
    with pytest.raises(ResourceError, match="cannot be reached"):
        call(nodes["FastVideoServer"], url="http://127.0.0.1:9")
    for url in ("file:///etc/passwd", "nothing", "ftp://x"):
        with pytest.raises(InputError, match="http://HOST:PORT"):
            call(nodes["FastVideoServer"], url=url)


def test_cards_without_streams_say_so(nodes, resident):
    with pytest.raises(InputError, match="makes no streams"):
        call(nodes["FastVideoStream"], model=resident, prompt="x", steering="", chunks=2, **SMALL_STREAM)


@pytest.mark.parametrize("text", ["no number", "x: y", "0:", "3: late", "0: a\n0: b", "-1: a"])
def test_steering_that_is_none(text):
    with pytest.raises(InputError, match="chunks 0 to 2, each once"):
        parse_steering(text, num_chunks=4)


def test_steering():
    assert parse_steering(" 0: a: b \n\n2:c", num_chunks=4) == {0: "a: b", 2: "c"}


def test_the_engine_closes_with_the_last_reference(nodes):
    (model,) = call(nodes["FastVideoLoader"], card="wan-shapes", device="cpu", precision="float32")
    close = model.close
    assert close.alive
    del model
    gc.collect()
    assert not close.alive
