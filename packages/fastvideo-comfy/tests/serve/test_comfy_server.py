"""ComfyUI's HTTP interface, as its documented API examples use it."""

from __future__ import annotations

import io
import json
import struct
import time
from urllib.error import HTTPError

import av
import numpy as np
import pytest
from PIL import Image


def ready(comfy, make_picture, name="start.png"):
    """Upload the workflow's image, unless it is there."""
    return comfy.upload(make_picture(), name, overwrite="true")


def kinds(messages):
    return [one["type"] if isinstance(one, dict) else "preview" for one in messages]


def wait_for(test, seconds=120):
    end = time.monotonic() + seconds
    while not (found := test()):
        assert time.monotonic() < end
        time.sleep(0.05)
    return found


def test_a_client_uploads_queues_follows_and_downloads(comfy, prompt, make_picture):
    assert ready(comfy, make_picture) == {"name": "start.png", "subfolder": "", "type": "input"}
    with comfy.socket() as socket:
        first = json.loads(socket.recv(timeout=60))
        assert first == {
            "type": "status",
            "data": {"status": {"exec_info": {"queue_remaining": 0}}, "sid": comfy.client_id},
        }
        queued = comfy.queue(prompt, extra_data={"extra_pnginfo": {}, "api_key_comfy_org": "secret"})
        assert set(queued) == {"prompt_id", "number", "node_errors"}
        assert queued["node_errors"] == {}
        seen = comfy.follow(socket, queued["prompt_id"])
    said = [one for one in seen if isinstance(one, dict)]
    order = [kind for kind in kinds(said) if kind not in ("status", "progress")]
    assert order[:2] == ["execution_start", "execution_cached"]
    assert order[-3:] == ["executed", "execution_success", "executing"]
    nodes = [one["data"]["node"] for one in said if one["type"] == "executing"]
    assert nodes[-2:] == ["56", None]
    assert nodes.index("3") < nodes.index("8") < nodes.index("56")
    steps = [
        (one["data"]["value"], one["data"]["max"])
        for one in said
        if one["type"] == "progress" and one["data"]["node"] == "3"
    ]
    assert steps[-1][0] == steps[-1][1] >= 2
    (shown,) = [one["data"]["output"] for one in said if one["type"] == "executed"]
    entry = comfy.json(f"/history/{queued['prompt_id']}")[queued["prompt_id"]]
    assert entry["outputs"] == {"56": shown}
    assert entry["status"]["status_str"] == "success"
    assert entry["status"]["completed"] is True
    assert [kind for kind, _ in entry["status"]["messages"]][-1] == "execution_success"
    assert entry["prompt"][2] == prompt
    assert "api_key_comfy_org" not in entry["prompt"][3]
    data, headers = comfy.get("/view", **shown["images"][0])
    assert headers["Content-Type"] == "video/mp4"
    with av.open(io.BytesIO(data)) as video:
        stream = video.streams.video[0]
        assert (stream.width, stream.height, stream.frames, stream.average_rate) == (32, 32, 5, 16)
    assert comfy.json("/queue") == {"queue_running": [], "queue_pending": []}
    assert comfy.json("/prompt") == {"exec_info": {"queue_remaining": 0}}
    previews = [one for one in seen if isinstance(one, bytes)]
    for preview in previews:
        assert struct.unpack(">II", preview[:8]) == (1, 1)
        assert Image.open(io.BytesIO(preview[8:])).format == "JPEG"


def test_the_same_below_api_and_without_a_socket(comfy, prompt, make_picture):
    ready(comfy, make_picture)
    queued = comfy.post("/api/prompt", {"prompt": prompt, "prompt_id": "my-own-id", "front": True})
    assert queued["prompt_id"] == "my-own-id"
    assert queued["number"] < 0
    entry = wait_for(lambda: comfy.json("/api/history/my-own-id"))["my-own-id"]
    assert entry["status"]["status_str"] == "success"
    assert (
        comfy.refused("/prompt", {"prompt": prompt, "prompt_id": "my-own-id"})[1]["error"]["type"]
        == "invalid_prompt_id"
    )
    assert list(comfy.json("/history", max_items=1)) == ["my-own-id"]
    comfy.post("/history", {"delete": ["my-own-id"]})
    assert comfy.json("/history/my-own-id") == {}
    assert comfy.json("/history/nothing") == {}


def test_an_interrupt_cancels_what_runs(comfy, prompt, make_picture):
    ready(comfy, make_picture)
    prompt["3"]["inputs"].update(steps=900, sampler_name="euler")
    with comfy.socket() as socket:
        queued = comfy.queue(prompt)
        said = {"type": "", "data": {}}
        while said["type"] != "progress" or said["data"]["node"] != "3":
            said = json.loads(socket.recv(timeout=120))
        (running,) = comfy.json("/queue")["queue_running"]
        assert running[1] == queued["prompt_id"]
        comfy.post("/interrupt", {"prompt_id": "another"})
        assert comfy.json("/prompt") == {"exec_info": {"queue_remaining": 1}}
        comfy.post("/interrupt", b"")
        seen = comfy.follow(socket, queued["prompt_id"])
    assert "execution_interrupted" in kinds(seen)
    entry = comfy.json(f"/history/{queued['prompt_id']}")[queued["prompt_id"]]
    assert entry["status"]["status_str"] == "error"
    assert entry["status"]["messages"][-1][0] == "execution_interrupted"
    assert entry["status"]["messages"][-1][1]["node_id"] == "3"
    assert entry["outputs"] == {}


def test_refusals_name_the_nodes(comfy, prompt, make_picture):
    ready(comfy, make_picture)
    prompt["3"]["inputs"]["sampler_name"] = "eular"
    prompt["99"] = {"class_type": "NothingKnown", "inputs": {}}
    prompt["8"]["inputs"]["samples"] = ["99", 0]
    status, body = comfy.refused("/prompt", {"prompt": prompt})
    assert status == 400
    assert body["error"]["type"] == "prompt_outputs_failed_validation"
    (error,) = body["node_errors"]["99"]["errors"]
    assert error["type"] == "unsupported_node"
    assert body["node_errors"]["99"]["class_type"] == "NothingKnown"
    assert body["node_errors"]["99"]["dependent_outputs"] == ["56"]


@pytest.mark.parametrize("name", ["gone.png", "../../start.png", "/etc/passwd"])
def test_an_image_that_is_not_there_is_an_error_of_its_node(comfy, prompt, name):
    prompt["52"]["inputs"]["image"] = name
    status, body = comfy.refused("/prompt", {"prompt": prompt})
    assert (status, list(body["node_errors"])) == (400, ["52"])
    entry = body["node_errors"]["52"]
    assert entry["class_type"] == "LoadImage"
    assert entry["errors"][0]["extra_info"]["input_name"] == "image"


def test_a_model_that_is_not_served_is_refused(comfy, prompt, make_picture):
    ready(comfy, make_picture)
    prompt["37"]["inputs"]["unet_name"] = "wan2.1_i2v_720p_14B_fp16.safetensors"
    status, body = comfy.refused("/prompt", {"prompt": prompt})
    assert (status, body["node_errors"]["37"]["errors"][0]["type"]) == (400, "model_not_available")


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"{", "invalid_json"),
        (b"[]", "invalid_json"),
        (b"[" * 100_000, "invalid_json"),
        ({}, "no_prompt"),
        ({"prompt": {}}, "invalid_prompt"),
        ({"prompt": []}, "invalid_prompt"),
        ({"prompt": {"1": {"inputs": {}}}}, "invalid_prompt"),
        ({"prompt": {"1": {"class_type": "CLIPTextEncode", "inputs": {}}}}, "prompt_no_outputs"),
        ({"prompt": {"1": {"class_type": "KSampler", "inputs": []}}}, ""),
        ({"prompt": {"__proto__": {"class_type": "SaveVideo", "inputs": {"video": ["__proto__", 0]}}}}, ""),
    ],
)
def test_bodies_that_are_no_prompt(comfy, body, kind):
    status, answer = comfy.refused("/prompt", body)
    assert status == 400
    assert set(answer) == {"error", "node_errors"}
    assert set(answer["error"]) == {"type", "message", "details", "extra_info"}
    if kind:
        assert answer["error"]["type"] == kind


def test_names_do_not_leave_the_folder(comfy, make_picture, served):
    for query in (
        {"filename": "../../jobs.sqlite3"}, {"filename": "jobs.sqlite3", "subfolder": "../../.."},
        {"filename": "/etc/passwd"}, {"filename": "..\\..\\x"}, {"filename": "x", "type": "secrets"}, {"filename": ""},
    ):  # fmt: skip
        with pytest.raises(HTTPError) as caught:
            comfy.get("/view", **query)
        assert caught.value.code == 400
        caught.value.close()
    with pytest.raises(HTTPError) as caught:
        comfy.get("/view", filename="nothing.png", type="input")
    assert caught.value.code == 404
    caught.value.close()
    for fields in ({"subfolder": "../../x"}, {"type": "output"}, {"type": "secrets"}):
        with pytest.raises(HTTPError) as caught:
            comfy.upload(make_picture(), "x.png", **fields)
        assert caught.value.code == 400
        caught.value.close()
    with pytest.raises(HTTPError) as caught:
        comfy.upload(b"<html>", "x.html")
    assert caught.value.code == 400
    caught.value.close()
    _, parts = served
    assert not (parts.config.folder / "parts" / "x").exists()


def test_uploads_take_the_next_name_unless_they_are_the_same(comfy, make_picture):
    one, other = make_picture((1, 2, 3)), make_picture((4, 5, 6))
    assert comfy.upload(one, "n.png", subfolder="s/t") == {"name": "n.png", "subfolder": "s/t", "type": "input"}
    assert comfy.upload(one, "n.png", subfolder="s/t")["name"] == "n.png"
    assert comfy.upload(other, "n.png", subfolder="s/t")["name"] == "n (1).png"
    assert comfy.upload(other, "n.png", subfolder="s/t", overwrite="true")["name"] == "n.png"
    data, _ = comfy.get("/view", filename="n.png", subfolder="s/t", type="input")
    assert data == other
    small, headers = comfy.get("/view", filename="n.png", subfolder="s/t", type="input", preview="webp;50")
    assert (headers["Content-Type"], Image.open(io.BytesIO(small)).format) == ("image/webp", "WEBP")
    _, headers = comfy.get("/view", filename=comfy.upload(one, "p.html")["name"], type="input")
    assert headers["Content-Type"] == "application/octet-stream"
    assert headers["Content-Disposition"].startswith("attachment")
    assert "s/t/n.png" in comfy.json("/object_info/LoadImage")["LoadImage"]["input"]["required"]["image"][0]


def test_adapters_are_put_on_for_a_prompt_and_taken_off(comfy, prompt, make_picture, served):
    ready(comfy, make_picture)
    _, parts = served
    module = parts.service.engine.instance.component("transformer")
    base = {name: one.clone() for name, one in module.state_dict().items()}

    def run(*names):
        changed = json.loads(json.dumps(prompt))
        source = ["37", 0]
        for number, name in enumerate(names, start=200):
            inputs = {"model": source, "lora_name": f"{name}.safetensors", "strength_model": 0.5}
            changed[str(number)] = {"class_type": "LoraLoaderModelOnly", "inputs": inputs}
            source = [str(number), 0]
        changed["54"]["inputs"]["model"] = source
        queued = comfy.queue(changed)
        entry = wait_for(lambda: comfy.json(f"/history/{queued['prompt_id']}"))[queued["prompt_id"]]
        assert entry["status"]["status_str"] == "success", entry["status"]
        data, _ = comfy.get("/view", **entry["outputs"]["56"]["images"][0])
        with av.open(io.BytesIO(data)) as video:
            return np.stack([frame.to_ndarray(format="rgb24") for frame in video.decode(video=0)])

    plain = run()
    turned = run("turn", "tilt")
    assert np.abs(plain.astype(int) - turned).max() > 2
    assert np.array_equal(plain, run())
    assert all((one == base[name]).all() for name, one in module.state_dict().items())
    listed = comfy.json("/object_info/LoraLoaderModelOnly")["LoraLoaderModelOnly"]["input"]["required"]["lora_name"][0]
    assert {"turn.safetensors", "tilt.safetensors"} <= set(listed)


def test_adapters_that_are_not_there_or_another_models(comfy, prompt, make_picture):
    ready(comfy, make_picture)
    inputs = {"model": ["37", 0], "lora_name": "gone.safetensors", "strength_model": 1.0}
    prompt["200"] = {"class_type": "LoraLoaderModelOnly", "inputs": inputs}
    prompt["54"]["inputs"]["model"] = ["200", 0]
    status, body = comfy.refused("/prompt", {"prompt": prompt})
    assert (status, list(body["node_errors"])) == (400, ["200"])
    inputs["lora_name"] = "other.safetensors"
    queued = comfy.queue(prompt)
    entry = wait_for(lambda: comfy.json(f"/history/{queued['prompt_id']}"))[queued["prompt_id"]]
    kind, said = entry["status"]["messages"][-1]
    assert (kind, said["exception_type"]) == ("execution_error", "CheckpointError")
    assert "another model's" in said["exception_message"]
    assert said["traceback"] == []


def test_object_info_describes_what_compiles(comfy):
    info = comfy.json("/object_info")
    sampler = info["KSampler"]
    assert list(sampler["input"]["required"]) == sampler["input_order"]["required"] == [
        "model", "seed", "steps", "cfg", "sampler_name", "scheduler", "positive", "negative", "latent_image", "denoise",
    ]  # fmt: skip
    assert "uni_pc" in sampler["input"]["required"]["sampler_name"][0]
    assert sampler["output"] == ["LATENT"]
    assert info["SaveVideo"]["output_node"] is True
    assert "wan2.1_i2v_480p_14B_fp16.safetensors" in info["UNETLoader"]["input"]["required"]["unet_name"][0]
    assert comfy.json("/object_info/Nothing") == {}
    assert comfy.json("/models/loras") == ["other.safetensors", "tilt.safetensors", "turn.safetensors"]
    assert comfy.json("/system_stats")["devices"]
    assert comfy.json("/embeddings") == comfy.json("/extensions") == []


def test_a_client_that_comes_again_takes_the_place_of_its_first_connection(comfy):
    with comfy.socket() as first, comfy.socket() as second:
        assert json.loads(second.recv(timeout=60))["type"] == "status"
        second.send(json.dumps({"type": "feature_flags", "data": {"supports_preview_metadata": True}}))
        answer = json.loads(second.recv(timeout=60))
        assert answer["type"] == "feature_flags"
        assert answer["data"]["max_upload_size"] > 0
        second.send(b"\x00")
        second.send("no JSON")
        assert json.loads(first.recv(timeout=60))["type"] == "status"
        with pytest.raises(Exception, match="received 1000"):
            first.recv(timeout=60)
