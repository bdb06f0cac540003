"""Node types that plugins bring are evaluated like the compiler's own; what they do wrong is told by their names."""

from __future__ import annotations

import json
import sys

import importlib_metadata
import pytest

from fastvideo_comfy.fold.brought import BroughtNode, check_nodes, configured_nodes
from fastvideo_comfy.product import call_product, make_product
from fastvideo_core.cli.main import main
from fastvideo_core.errors import PluginError
from fastvideo_core.extend import NodeSpec

HALF = NodeSpec(
    "half",
    "comfy_test_nodes:half",
    node_type="TestHalfSize",
    inputs=(("width", "INT"), ("height", "INT"), ("name", "STRING")),
    outputs=("INT", "INT", "STRING"),
)
MODULE = """
from __future__ import annotations

from fastvideo_core.extend import NodeSpec, hookimpl


def half(inputs):
    if inputs["width"] % 32:
        raise ValueError("the width is no multiple of 32")
    if inputs["name"] == "broken":
        raise RuntimeError("out of luck")
    if inputs["name"] == "short":
        return [1]
    return [inputs["width"] // 2, inputs["height"] // 2, f"half {inputs['name']}"]


@hookimpl
def workflow_nodes():
    return [
        NodeSpec(
            "half", "comfy_test_nodes:half", node_type="TestHalfSize",
            inputs=(("width", "INT"), ("height", "INT"), ("name", "STRING")), outputs=("INT", "INT", "STRING"),
        )
    ]
"""


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Let a plugin be installed that brings a node type."""
    place = tmp_path / "comfy_test-1.0.dist-info"
    place.mkdir()
    (tmp_path / "comfy_test_nodes.py").write_text(MODULE)
    (place / "METADATA").write_text("Metadata-Version: 2.1\nName: comfy-test\nVersion: 1.0\n")
    (place / "entry_points.txt").write_text("[fastvideo.plugins]\nnode.test = comfy_test_nodes\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib_metadata.MetadataPathFinder.invalidate_caches()
    config = tmp_path / "deploy.yaml"
    config.write_text("plugins:\n  node.test:\n")
    yield config
    sys.modules.pop("comfy_test_nodes", None)


@pytest.fixture
def nodes(installed):
    """The node types that are on."""
    return configured_nodes(installed)


@pytest.fixture
def halved(prompt):
    """The text-to-video workflow, whose size comes out of a node of the plugin."""
    prompt["90"] = {"class_type": "TestHalfSize", "inputs": {"width": 1664, "height": 960, "name": "a fox"}}
    prompt["40"]["inputs"] |= {"width": ["90", 0], "height": ["90", 1]}
    prompt["6"]["inputs"]["text"] = ["90", 2]
    return prompt


def test_a_node_of_a_plugin_is_evaluated(halved, look, nodes):
    compiled = look(halved, nodes=nodes)
    assert compiled.report.is_supported, compiled.report.table()
    assert compiled.report.node("90").status == "folded"
    (request,) = compiled.program.requests
    assert (request.parameters["width"], request.parameters["height"]) == (832, 480)
    assert "half a fox" in compiled.program.model_dump_json()


def test_it_is_off_unless_the_config_names_its_plugin(halved, look, installed):
    assert configured_nodes() == {}
    assert "comfy_test_nodes" not in sys.modules
    report = look(halved, nodes=configured_nodes()).report
    assert not report.is_supported
    assert "TestHalfSize: no rule for this node type" in report.table()


def test_values_of_the_ui_form_get_their_names_in_order(workflow, look, nodes):
    document = dict(workflow("text_to_video_wan").content)
    sizes = next(node for node in document["nodes"] if node["type"] == "EmptyHunyuanLatentVideo")
    link = 1 + max(row[0] for row in document["links"])
    outputs = [
        {"name": name, "type": kind, "links": [link]} for name, kind in [("w", "INT"), ("h", "INT"), ("n", "STRING")]
    ]
    node = {"id": 900, "type": "TestHalfSize", "inputs": [], "outputs": outputs, "widgets_values": [1664, 960, "x"]}
    sizes.setdefault("inputs", []).append({"name": "width", "type": "INT", "link": link, "widget": {"name": "width"}})
    document["nodes"] = [*document["nodes"], node]
    document["links"] = [*document["links"], [link, 900, 0, sizes["id"], len(sizes["inputs"]) - 1, "INT"]]
    compiled = look(document, nodes=nodes)
    assert compiled.report.is_supported, compiled.report.table()
    assert compiled.program.requests[0].parameters["width"] == 832
    node["widgets_values"] = [1, 2, "x", 4]
    problems = look(document, nodes=nodes).report.problems
    assert "node 900: the file stores 4 widget values, which is more than it has" in {one.line() for one in problems}


@pytest.mark.parametrize(
    ("inputs", "where", "why"),
    [
        ({"width": 1665}, "", "the width is no multiple of 32"),
        ({"width": "wide"}, "width", "not a value of its type"),
        ({"height": True}, "height", "not a value of its type"),
        ({"height": None}, "height", "the value is missing"),
        ({"depth": 3}, "depth", "it has no such input"),
        ({"name": ["39", 0]}, "name", "it depends on what is only known while it runs"),
    ],
)
def test_a_value_that_it_does_not_take_is_a_reason(inputs, where, why, halved, look, nodes):
    halved["90"]["inputs"] |= inputs
    problems = look(halved, nodes=nodes).report.problems
    assert ("90", where, "not_foldable", why) in {(one.node, one.input, one.code, one.message) for one in problems}


@pytest.mark.parametrize(
    ("name", "why"), [("broken", "failed: RuntimeError: out of luck"), ("short", r"gave \(1,\); it declares INT, INT")]
)
def test_a_plugin_that_fails_is_named(name, why, halved, look, nodes):
    halved["90"]["inputs"]["name"] = name
    with pytest.raises(PluginError, match=f"workflow node 'half' {why}"):
        look(halved, nodes=nodes)


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (NodeSpec("mine", "a:b", node_type="KSampler"), "the type 'KSampler' is the compiler's own"),
        (NodeSpec("mine", "a:b", node_type="ComfySwitchNode"), "is the compiler's own"),
        (NodeSpec("mine", "a:b", node_type="Mine", inputs=(("model", "MODEL"),)), "model is of type 'MODEL'; allowed"),
        (NodeSpec("mine", "a:b", node_type="Mine", outputs=("LATENT",)), "output 0 is of type 'LATENT'; allowed"),
    ],
)
def test_what_cannot_be_evaluated_is_refused(spec, why):
    with pytest.raises(PluginError, match=f"workflow node 'mine': .*{why}"):
        check_nodes({spec.node_type: spec})
    assert BroughtNode(HALF).spec is HALF


def test_products_and_commands_know_the_nodes(halved, look, nodes, find_card, installed, tmp_path, capsys):
    compiled = look(halved, nodes=nodes)
    product = make_product(compiled, name="half", version="1", parameters={"width": ("90", "width")})
    again = call_product(product, {"width": 1280}, find_card=find_card, nodes=nodes)
    assert again.expect().requests[0].parameters["width"] == 640
    file = tmp_path / "workflow.json"
    file.write_text(json.dumps(halved))
    assert main(["comfy", "check", str(file), "--config", str(installed)]) == 0
    assert main(["comfy", "check", str(file)]) == 2
    assert "no rule for this node type" in capsys.readouterr().out
