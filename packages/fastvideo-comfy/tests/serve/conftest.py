"""A server around a tiny image-to-video checkpoint, with ComfyUI's interface, and a client that speaks as its does."""

from __future__ import annotations

import io
import json
import threading
import uuid
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from websockets.sync.client import connect

from fastvideo_comfy.compiler import examine, installed_cards
from fastvideo_comfy.files import parse_assignments
from fastvideo_comfy.graph import parse_document
from fastvideo_comfy.product import make_product
from fastvideo_core.cli.setup import Setup
from fastvideo_core.deploy import deploy, resolve_config
from fastvideo_core.runtime.catalog import Catalog
from fastvideo_server.config import ServerConfig
from fastvideo_server.http.app import create_app
from fastvideo_server.protocol import DrainingServer, uvicorn_config
from fastvideo_server.serve import open_parts
from fastvideo_testing.wan_checkpoints import build_wan_checkpoint

SOURCE = Path(__file__).parents[1] / "data" / "image_to_video_wan.json"


class Comfy:
    """ComfyUI's documented API examples: HTTP from the standard library, and one WebSocket."""

    def __init__(self, url, key=None):
        self.url = url
        self.client_id = str(uuid.uuid4())
        self.headers = {} if key is None else {"Authorization": f"Bearer {key}"}

    def get(self, path, **query):
        suffix = f"?{urlencode(query)}" if query else ""
        with urlopen(Request(f"{self.url}{path}{suffix}", headers=self.headers)) as answer:
            return answer.read(), answer.headers

    def json(self, path, **query):
        return json.loads(self.get(path, **query)[0])

    def post(self, path, content):
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        with urlopen(Request(f"{self.url}{path}", data=data, headers=self.headers)) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def refused(self, path, content):
        with pytest.raises(HTTPError) as caught:
            self.post(path, content)
        with caught.value as answer:
            return answer.code, json.loads(answer.read())

    def queue(self, prompt, **more):
        return self.post("/prompt", {"prompt": prompt, "client_id": self.client_id, **more})

    def upload(self, data, name, **fields):
        mark = uuid.uuid4().hex
        parts = [
            f'--{mark}\r\nContent-Disposition: form-data; name="{key}"\r\n\r\n{value}\r\n'.encode()
            for key, value in fields.items()
        ]
        head = f'--{mark}\r\nContent-Disposition: form-data; name="image"; filename="{name}"\r\n'
        parts.append(f"{head}Content-Type: application/octet-stream\r\n\r\n".encode() + data + b"\r\n")
        body = b"".join(parts) + f"--{mark}--\r\n".encode()
        headers = {"Content-Type": f"multipart/form-data; boundary={mark}", **self.headers}
        with urlopen(Request(f"{self.url}/upload/image", data=body, headers=headers)) as answer:
            return json.loads(answer.read())

    def socket(self, client_id=None):
        address = f"{self.url.replace('http', 'ws', 1)}/ws?clientId={client_id or self.client_id}"
        return connect(address, additional_headers=self.headers, max_size=None)

    @staticmethod
    def follow(socket, prompt_id, *, timeout=300):
        """Return all messages, up to the one that says that nothing of the prompt is executed any more."""
        seen = []
        while True:
            message = socket.recv(timeout=timeout)
            seen.append(message if isinstance(message, bytes) else json.loads(message))
            if isinstance(message, str):
                said = seen[-1]
                data = said["data"]
                if said["type"] == "executing" and data["node"] is None and data["prompt_id"] == prompt_id:
                    return seen


def picture(colour=(200, 30, 60), size=(48, 40)):
    buffer = io.BytesIO()
    Image.new("RGB", size, colour).save(buffer, format="PNG")
    return buffer.getvalue()


@pytest.fixture(scope="session")
def make_picture():
    return picture


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    return build_wan_checkpoint(tmp_path_factory.mktemp("served") / "tiny", "i2v-vision")


@pytest.fixture(scope="session")
def models(checkpoint):
    """Whose the workflow's model files are."""
    parts = {"wan2.1_i2v_480p_14B_fp16": "transformer", "wan_2.1_vae": "vae"}
    return [f"{file}.safetensors={checkpoint}:{part}" for file, part in parts.items()]


@pytest.fixture(scope="session")
def small_prompt(models):
    """The published image-to-video workflow as the front end would queue it, made small."""
    document = parse_document(SOURCE.read_bytes(), name="image_to_video_wan")
    files = parse_assignments(models)
    values = {
        ("50", "width"): 32, ("50", "height"): 32, ("50", "length"): 5, ("3", "steps"): 2, ("3", "cfg"): 2.0,
        ("3", "seed"): 7, ("52", "image"): "start.png",
    }  # fmt: skip
    compiled = examine(document, find_card=installed_cards(), files=files, values=values)
    compiled.expect()
    return compiled.graph.to_prompt()


@pytest.fixture
def prompt(small_prompt):
    return json.loads(json.dumps(small_prompt))


@pytest.fixture(scope="session")
def adapters(tmp_path_factory):
    """ComfyUI's models folder with two adapters, and one of another model."""
    folder = tmp_path_factory.mktemp("models")
    (folder / "loras").mkdir()
    stem = "diffusion_model.blocks.1.ffn.0"
    for name, scale in (("turn", 1.0), ("tilt", -0.5)):
        parts = {"lora_down": torch.full((2, 24), scale), "lora_up": torch.ones(32, 2)}
        save_file({f"{stem}.{key}.weight": one for key, one in parts.items()}, folder / f"loras/{name}.safetensors")
    other = {"double_blocks.3.img_attn.qkv.lora_A.weight": torch.ones(2, 2)}
    save_file(other, folder / "loras/other.safetensors")
    return folder


@pytest.fixture(scope="session")
def product(small_prompt, models, tmp_path_factory):
    """A product of the workflow, with public parameters."""
    compiled = examine(parse_document(small_prompt), find_card=installed_cards(), files=parse_assignments(models))
    places = {"prompt": ("6", "text"), "seed": ("3", "seed"), "length": ("50", "length"), "picture": ("52", "image")}
    made = make_product(compiled, name="fox", version="2", parameters=places, models=tuple(models))
    path = tmp_path_factory.mktemp("products") / "fox.json"
    path.write_text(made.model_dump_json())
    return path


@pytest.fixture(scope="session")
def served(checkpoint, models, adapters, product, tmp_path_factory):
    """A server that the tests share: its address and its parts."""
    folder = tmp_path_factory.mktemp("server")
    config = folder / "deploy.yaml"
    config.write_text(
        json.dumps(
            {
                "plugins": {"server.comfy": {}, "sampler.comfy": {}},
                "comfy": {"models": models, "folders": str(adapters), "products": [str(product)]},
            }
        )
    )
    setup = Setup(deploy(resolve_config(config)))
    settings = ServerConfig(folder=folder / "jobs", port=0, min_free=0)
    card = setup.find_card(str(checkpoint))
    assert card.model_id == Catalog.installed().find(str(checkpoint)).model_id
    torch.set_num_threads(1)
    with open_parts(settings, card, setup=setup, device="cpu", precision="float32") as parts:
        started, addresses = threading.Event(), []

        def tell(address):
            addresses.append(address)
            started.set()

        server = DrainingServer(uvicorn_config(create_app(parts), settings), parts.service.drain, tell)
        thread = threading.Thread(target=server.run, name="server")
        thread.start()
        try:
            assert started.wait(60)
            yield addresses[0], parts
        finally:
            server.stop()
            thread.join(120)
            assert not thread.is_alive()


@pytest.fixture
def comfy(served):
    return Comfy(served[0])
