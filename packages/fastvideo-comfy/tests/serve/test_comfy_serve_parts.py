"""The parts of ComfyUI's interface by themselves: descriptions, bodies, names of files, who listens."""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastvideo_comfy.fold.rules import FOLDS, SWITCH
from fastvideo_comfy.graph.widgets import CONTROL, DEFAULTS, WIDGETS
from fastvideo_comfy.lower.support import COMPILED, LINKED, OUTPUTS
from fastvideo_comfy.serve.accepting import RefusedPromptError, read_prompt
from fastvideo_comfy.serve.definitions import DEFINITIONS
from fastvideo_comfy.serve.files import FileRoom, media_type
from fastvideo_comfy.serve.hub import Hub
from fastvideo_comfy.serve.part import make_part
from fastvideo_core.errors import InputError, PluginError
from fastvideo_core.extend.extensions import NO_EXTENSIONS

DEEP = "[" * 20_000
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3), max_leaves=9,
)  # fmt: skip


def test_everything_that_compiles_is_described():
    assert set(DEFINITIONS) == {*COMPILED, *FOLDS, SWITCH}
    assert {name for name, one in DEFINITIONS.items() if one.is_output} == set(OUTPUTS)


@pytest.mark.parametrize("name", sorted(DEFINITIONS))
def test_descriptions_agree_with_what_the_compiler_reads(name):
    inputs = {one.name: one for one in DEFINITIONS[name].inputs}
    stored = [one for one in WIDGETS.get(name, ()) if one != CONTROL]
    valued = [one for one, said in inputs.items() if said.type in ("INT", "FLOAT", "STRING", "BOOLEAN", "COMBO")]
    # The order of values is what the front end stores; CreateVideo's later ones are inputs of newer versions.
    assert valued == stored[: len(valued)]
    assert len(valued) >= len(stored) - 3
    linked = set(LINKED.get(name, "").split())
    extra = set(inputs) - set(valued)
    if name in COMPILED:
        assert extra <= linked
        assert linked - extra <= {"format.codec", "codec.encoding"}
    for key, value in DEFAULTS.get(name, {}).items():
        if key in inputs and "default" in inputs[key].options and key != "type":
            assert inputs[key].options["default"] == value, key
    controls = [one for one, said in inputs.items() if said.options.get("control_after_generate")]
    assert len(controls) <= list(WIDGETS.get(name, ())).count(CONTROL)


@settings(max_examples=300, deadline=None)
@given(body=JSON | st.fixed_dictionaries({"prompt": JSON}, optional={
    "client_id": JSON, "prompt_id": JSON, "extra_data": JSON, "front": JSON, "partial_execution_targets": JSON,
}))  # fmt: skip
def test_any_body_is_read_or_refused(body):
    data = json.dumps(body, allow_nan=True).encode("utf-8", "surrogatepass")
    try:
        read_prompt(data)
    except RefusedPromptError as error:
        refusal = error
    else:
        return
    assert set(refusal.body) == {"error", "node_errors"}
    assert refusal.status == 400


def test_the_form_of_the_editor_is_read_too():
    node = {"id": 1, "type": "SaveVideo", "inputs": [], "outputs": []}
    body = {"prompt": {"nodes": [node], "links": []}, "client_id": "me", "front": True}
    asked = read_prompt(json.dumps(body).encode())
    assert (asked.document.form, asked.client_id, asked.is_first) == ("ui", "me", True)


@pytest.mark.parametrize("data", [b"\xff\xfe", DEEP.encode(), b'{"prompt": ' + DEEP.encode(), b'"x"', b"null", b"NaN"])
def test_bytes_that_are_no_object(data):
    with pytest.raises(RefusedPromptError):
        read_prompt(data)


NAMES = st.text(max_size=30) | st.lists(
    st.sampled_from(["..", ".", "/", "\\", "a", "~", "C:", "\0", " ", "b.png"])
).map("".join)


@settings(max_examples=400, deadline=None)
@given(kind=st.sampled_from(["input", "output", "temp", "..", ""]), folder=NAMES, name=NAMES)
def test_no_name_leaves_its_folder(kind, folder, name):
    with tempfile.TemporaryDirectory() as place:
        room = FileRoom(Path(place) / "owner")
        try:
            path = room.place(kind, folder, name)
        except InputError:
            return
        root = (Path(place) / "owner" / kind).resolve()
        assert path.is_relative_to(root)
        assert path != root
        room.find(kind, folder, name)


def test_without_comfyuis_samplers_there_is_no_part():
    host = SimpleNamespace(extensions=NO_EXTENSIONS, section=None)
    with pytest.raises(PluginError, match="name sampler.comfy in the config's plugins too"):
        make_part(host)


def test_links_do_not_lead_out_of_a_folder(tmp_path):
    room = FileRoom(tmp_path / "owner")
    (tmp_path / "secret.txt").write_text("x")
    (tmp_path / "owner/output/link.txt").symlink_to(tmp_path / "secret.txt")
    (tmp_path / "owner/output/folder").symlink_to(tmp_path)
    for subfolder, name in (("", "link.txt"), ("folder", "secret.txt")):
        with pytest.raises(InputError, match="leaves its folder"):
            room.find("output", subfolder, name)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("a.png", "image/png"), ("a.mp4", "video/mp4"), ("a.html", ""), ("a.svg", ""), ("a.js", ""), ("a", "")],
)
def test_only_media_are_shown(name, kind):
    assert media_type(name) == (kind or "application/octet-stream")


def test_a_listener_who_takes_nothing_is_let_go():
    async def run():
        hub = Hub()
        slow, other = hub.join("me", "slow"), hub.join("me", "other")
        for number in range(3000):
            hub.tell("me", "slow", "progress", {"value": number})
        assert not hub.has("me", "slow")
        assert hub.has("me", "other")
        while (message := slow.outbox.get_nowait()) is not None:
            assert message["type"] == "progress"
        hub.tell("you", "other", "progress", {})
        hub.tell_all("me", "status", {})
        assert other.outbox.qsize() == 1

    asyncio.run(run())
