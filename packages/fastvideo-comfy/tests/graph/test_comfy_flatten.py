"""From files to flat graphs: subgraphs, modes, virtual nodes, widgets, and files that are wrong."""

from __future__ import annotations

import pytest

from fastvideo_comfy.graph import Link, flatten, parse_document
from fastvideo_comfy.graph.widgets import WIDGETS

UUID = "11111111-2222-3333-4444-555555555555"
LINK = ("id", "origin_id", "origin_slot", "target_id", "target_slot")
OTHER = "11111111-2222-3333-4444-666666666666"


def node(node_id, kind, *, inputs=(), outputs=(), values=None, mode=0, **more):
    slots = [
        {"name": name, "type": t, "link": link, **({"widget": {"name": name}} if widget else {})}
        for name, t, link, widget in inputs
    ]
    return {
        "id": node_id, "type": kind, "mode": mode, "inputs": slots,
        "outputs": [{"name": t, "type": t, "links": []} for t in outputs], "widgets_values": values, **more,
    }  # fmt: skip


def flat(nodes, links=(), definitions=()):
    content = {"nodes": nodes, "links": [list(link) for link in links], "definitions": {"subgraphs": list(definitions)}}
    return flatten(parse_document(content))


def definition(inputs, nodes, links, name=UUID):
    return {
        "id": name, "name": "inner", "inputs": inputs, "outputs": [{"name": "INT", "type": "INT"}], "nodes": nodes,
        "links": [dict(zip(LINK, link, strict=True)) for link in links],
    }  # fmt: skip


def inner(value=5):
    """One PrimitiveInt whose widget is the definition's input `value`, and which is its output."""
    return definition(
        [{"name": "value", "type": "INT", "linkIds": [1]}],
        [node(7, "PrimitiveInt", inputs=[("value", "INT", 1, True)], outputs=["INT"], values=[value, "fixed"])],
        [(1, -10, 0, 7, 0), (2, 7, 0, -20, 0)],
    )


def sink(link, kind="Sink"):
    return node(99, kind, inputs=[("x", "INT", link, False)])


def test_values_inside_hold_where_proxy_widgets_stand_for_them():
    instance = node(3, UUID, inputs=[("value", "INT", None, True)], outputs=["INT"], properties={"proxyWidgets": []})
    graph = flat([instance, sink(9)], [(9, 3, 0, 99, 0, "INT")], [inner()])
    assert graph.nodes["99"].inputs == {"x": Link("3:7", 0)}
    assert graph.nodes["3:7"].inputs == {"value": 5}
    assert "3" not in graph.nodes


def test_an_instances_own_values_hide_those_inside():
    instance = node(3, UUID, inputs=[("value", "INT", None, True)], outputs=["INT"], values=[8], properties={})
    assert flat([instance], [], [inner()]).nodes["3:7"].inputs == {"value": 8}


def test_a_link_hides_both():
    outer = node(1, "Source", outputs=["INT"])
    instance = node(3, UUID, inputs=[("value", "INT", 4, True)], outputs=["INT"], values=[8])
    graph = flat([outer, instance], [(4, 1, 0, 3, 0, "INT")], [inner()])
    assert graph.nodes["3:7"].inputs == {"value": Link("1", 0)}


def test_a_nested_instance_has_the_ids_of_all_around_it():
    outer = definition(
        [{"name": "value", "type": "INT", "linkIds": [1]}],
        [node(4, UUID, inputs=[("value", "INT", 1, True)], outputs=["INT"], properties={"proxyWidgets": []})],
        [(1, -10, 0, 4, 0), (2, 4, 0, -20, 0)],
        name=OTHER,
    )
    instance = node(3, OTHER, inputs=[("value", "INT", None, True)], outputs=["INT"], values=[11])
    graph = flat([instance, sink(9)], [(9, 3, 0, 99, 0, "INT")], [inner(), outer])
    assert graph.nodes["99"].inputs["x"] == Link("3:4:7", 0)
    assert graph.nodes["3:4:7"].inputs == {"value": 11}


@pytest.mark.parametrize(
    ("types", "output", "taken"),
    [
        (["MODEL", "CLIP"], 1, "b"),  # the same index
        (["CLIP", "MODEL"], 0, "b"),  # the first exact type
        (["CLIP", "*"], 0, "b"),  # the first that fits
        (["CLIP", "VAE"], 0, None),  # none: the link is dropped
    ],
)
def test_a_bypassed_node_passes_on_an_input(types, output, taken):
    wanted = types[output] if taken == "b" and output == 1 else "MODEL"
    sources = [node(1, "A", outputs=[types[0]]), node(2, "B", outputs=[types[1]])]
    kinds = ["MODEL", "CLIP"] if output == 1 else ["MODEL"]
    skipped = node(5, "Patch", mode=4, inputs=[("a", types[0], 1, False), ("b", types[1], 2, False)], outputs=kinds)
    consumer = node(9, "End", inputs=[("x", wanted, 3, False)])
    links = [(1, 1, 0, 5, 0, "*"), (2, 2, 0, 5, 1, "*"), (3, 5, output, 9, 0, "*")]
    graph = flat([*sources, skipped, consumer], links)
    assert graph.nodes["9"].inputs == ({"x": Link("2", 0)} if taken else {})
    assert graph.nodes["5"].activity == "bypassed"


def test_a_muted_node_passes_nothing_on():
    graph = flat(
        [node(1, "A", outputs=["MODEL"], mode=2), node(9, "End", inputs=[("x", "MODEL", 3, False)])],
        [(3, 1, 0, 9, 0, "MODEL")],
    )
    assert graph.nodes["9"].inputs == {}


def test_what_is_in_a_bypassed_instance_takes_no_part():
    instance = node(3, UUID, inputs=[("value", "INT", None, True)], outputs=["INT"], mode=4)
    assert flat([instance], [], [inner()]).nodes["3:7"].activity == "bypassed"


def test_reroutes_and_primitives_vanish():
    nodes = [
        node(1, "A", outputs=["INT"]),
        node(2, "Reroute", inputs=[("", "*", 1, False)], outputs=["INT"]),
        node(3, "PrimitiveNode", outputs=["INT"], values=[7, "fixed"]),
        node(9, "KSampler", inputs=[("steps", "INT", 2, True), ("seed", "INT", 3, True)], values=[1, "fixed", 2]),
    ]
    graph = flat(nodes, [(1, 1, 0, 2, 0, "INT"), (2, 2, 0, 9, 0, "INT"), (3, 3, 0, 9, 1, "INT")])
    assert set(graph.nodes) == {"1", "9"}
    assert (graph.nodes["9"].inputs["steps"], graph.nodes["9"].inputs["seed"]) == (Link("1", 0), 7)


def test_short_vectors_are_filled_up_and_long_ones_refused():
    short = flat([node(1, "KSampler", values=[5, "randomize", 20, 3.5, "euler", "simple"])])
    assert short.nodes["1"].inputs == {
        "seed": 5, "steps": 20, "cfg": 3.5, "sampler_name": "euler", "scheduler": "simple", "denoise": 1.0,
    }  # fmt: skip
    assert short.problems == []
    long = flat([node(1, "KSampler", values=[5, "randomize", 20, 3.5, "euler", "simple", 1, 2])])
    assert [(one.node, one.code) for one in long.problems] == [("1", "widget_count")]


def test_every_control_is_no_input():
    for kind, names in WIDGETS.items():
        values = [f"v{index}" for index in range(len(names))]
        assert "~" not in flat([node(1, kind, values=values)]).nodes["1"].inputs


def test_comments_go_and_alternatives_are_refused():
    graph = flat([node(1, "CLIPTextEncode", values=["a /* not */ b // rest\n\\{c\\}"])])
    assert graph.nodes["1"].inputs["text"] == "a  b \n{c}"
    assert graph.problems == []
    assert [one.code for one in flat([node(1, "CLIPTextEncode", values=["{a|b}"])]).problems] == ["random_prompt"]


@pytest.mark.parametrize(
    ("nodes", "links", "definitions", "codes"),
    [
        ([node(1, "A"), node(1, "B")], [], [], {"duplicate_id"}),
        ([node(1, UUID)], [], [], {"missing_definition"}),
        ([node(9, "A", inputs=[("x", "INT", 5, False)])], [], [], {"dangling_link"}),
        ([node(9, "A", inputs=[("x", "INT", 5, False)])], [(5, 77, 0, 9, 0, "INT")], [], {"dangling_link"}),
        ([{"id": None, "type": "A"}, 5, {"id": 1}], [], [], {"invalid_node"}),
        ([node(1, "A")], [(1, 2)], [], {"invalid_link"}),
        ([node(1, "GetNode")], [], [], {"wireless_link"}),
        ([node(1, "A")], [], [{"name": "no id"}], {"invalid_subgraph"}),
        (
            [node(1, "Reroute", inputs=[("", "*", 1, False)], outputs=["*"]), sink(2)],
            [(1, 1, 0, 1, 0, "*"), (2, 1, 0, 99, 0, "*")], [], {"cycle"},
        ),
        ([node(1, UUID)], [], [definition([], [node(2, UUID)], [])], {"subgraph_cycle"}),
        ([node(1, UUID, values=[1, 2, 3])], [], [inner()], {"widget_count"}),
        ([{"id": 1, "type": "A", "inputs": [3]}], [], [], {"invalid_input"}),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_file_is_named(nodes, links, definitions, codes):
    assert {one.code for one in flat(nodes, links, definitions).problems} == codes


def test_the_api_form_keeps_what_looks_like_a_link_apart():
    graph = flatten(
        parse_document(
            {
                "1": {"class_type": "A", "inputs": {"x": ["2", 0], "y": {"__value__": ["2", 0]}, "z": [1, 2]}},
                "2": {"class_type": "B", "inputs": {}, "_meta": {"title": "mine"}},
            }
        )
    )
    assert graph.nodes["1"].inputs == {"x": Link("2", 0), "y": ["2", 0], "z": [1, 2]}
    assert graph.nodes["2"].title == "mine"
    assert graph.to_prompt()["1"]["inputs"] == {
        "x": ["2", 0], "y": {"__value__": ["2", 0]}, "z": {"__value__": [1, 2]},
    }  # fmt: skip


def test_ten_thousand_nodes_in_a_chain_are_followed():
    nodes = [node(k, "Reroute", inputs=[("", "*", k, False)], outputs=["*"]) for k in range(1, 10_000)]
    graph = flat(
        [node(0, "A", outputs=["*"]), *nodes, node(10_000, "End", inputs=[("x", "*", 10_000, False)])],
        [(k, k - 1, 0, k, 0, "*") for k in range(1, 10_001)],
    )
    assert graph.nodes["10000"].inputs == {"x": Link("0", 0)}
