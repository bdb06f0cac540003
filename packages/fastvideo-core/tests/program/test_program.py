from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from fastvideo_core.errors import CardError, LoopMismatchError
from fastvideo_core.program import ArtifactNode, InlineProgram, InputEdge, ModelLoopNode, TensorEdge
from fastvideo_testing.tiny import tiny_card
from fastvideo_testing.tiny.programs import IMAGE_TO_VIDEO, TEXT_TO_VIDEO

CARD = tiny_card(Path("weights"))


def loop(node_id, *sources, loop="denoise", output="latents", **fields):
    inputs = {f"from_{source}": TensorEdge(node=source, output=output) for source in sources}
    return ModelLoopNode(node_id=node_id, loop=loop, inputs=inputs, **fields)


def artifact(node_id, source, output="latents"):
    return ArtifactNode(node_id=node_id, modality="latents", source=TensorEdge(node=source, output=output))


def program(*nodes):
    return InlineProgram(program_id="p", nodes=nodes)


@st.composite
def graphs(draw):
    """A program without cycles, in any order, with an artifact of every loop, and its edges."""
    count = draw(st.integers(1, 7))
    edges = {i: draw(st.sets(st.integers(0, i - 1))) if i else set() for i in range(count)}
    nodes = [loop(f"n{i}", *(f"n{j}" for j in sorted(edges[i]))) for i in range(count)]
    nodes += [artifact(f"a{i}", f"n{i}") for i in range(count)]
    return program(*draw(st.permutations(nodes))), edges


@settings(max_examples=40)
@given(graphs(), st.data())
def test_what_an_artifact_needs_runs_sources_first_and_nothing_else(graph, data):
    made, edges = graph
    wanted = data.draw(st.sets(st.sampled_from(sorted(edges)), min_size=1))
    needed = set(wanted)
    for i in sorted(edges, reverse=True):
        needed |= edges[i] if i in needed else set()
    nodes = made.needed_for(tuple(f"a{i}" for i in sorted(wanted)))
    names = [node.node_id for node in nodes]
    assert sorted(names) == sorted([f"n{i}" for i in needed] + [f"a{i}" for i in wanted])
    for i in needed:
        assert all(names.index(f"n{j}") < names.index(f"n{i}") for j in edges[i])
    assert made.needed_for(tuple(f"a{i}" for i in sorted(wanted))) == nodes
    assert InlineProgram.model_validate_json(made.model_dump_json()) == made


def test_nothing_is_needed_for_no_artifact():
    assert program(loop("a"), artifact("x", "a")).needed_for(()) == ()


@pytest.mark.parametrize(
    ("nodes", "text"),
    [
        ((loop("a"), loop("a")), r"nodes named twice: \['a'\]"),
        ((loop("a"), artifact("a", "a")), "nodes named twice"),
        ((loop("a", "b"),), "node 'a' takes a result of 'b', which is not there"),
        ((artifact("x", "b"),), "node 'x' takes a result of 'b', which is not there"),
        ((loop("a", "a"),), r"nodes wait for each other: \['a', 'a'\]"),
        ((loop("a", "c"), loop("b", "a"), loop("c", "b")), "nodes wait for each other"),
    ],
)
def test_what_is_no_graph_is_refused(nodes, text):
    with pytest.raises(ValidationError, match=text):
        program(*nodes)


def test_an_artifact_that_is_not_made_names_those_that_are():
    with pytest.raises(CardError, match="program tiny.text_to_video makes no artifact 'gif'; it makes video, latents"):
        TEXT_TO_VIDEO.needed_for(("gif",))
    with pytest.raises(CardError, match="makes no artifact 'denoise'"):
        TEXT_TO_VIDEO.needed_for(("denoise",))


def test_nodes_that_no_artifact_needs_are_left_out():
    assert [node.node_id for node in TEXT_TO_VIDEO.needed_for(("latents",))] == ["text", "denoise", "latents"]
    names = [node.node_id for node in IMAGE_TO_VIDEO.needed_for(("video",))]
    assert sorted(names) == ["decode", "denoise", "image", "text", "video"]
    assert IMAGE_TO_VIDEO.loop_ids() == ("text", "image", "denoise", "decode")


def test_a_program_that_fits_the_card():
    TEXT_TO_VIDEO.check_against(CARD)
    IMAGE_TO_VIDEO.check_against(CARD)


@pytest.mark.parametrize(
    ("nodes", "error", "text"),
    [
        ((loop("a", loop="none"),), LoopMismatchError, "loop='none': no such loop"),
        ((loop("a"), loop("b", "a", output="x")), CardError, "'b' takes 'x' of loop denoise, which gives .'latents',."),
        ((loop("a"), artifact("x", "a", "y")), CardError, "node 'x' takes 'y' of loop denoise"),
        ((loop("a"), artifact("x", "a"), loop("b", "x")), CardError, "'b' takes a tensor of 'x', which runs no loop"),
        ((loop("a"), artifact("x", "a"), artifact("y", "x")), CardError, "'y' takes a tensor of 'x', which runs no"),
    ],
)
def test_a_program_that_does_not_fit_the_card(nodes, error, text):
    with pytest.raises(error, match=text):
        program(*nodes).check_against(CARD)


def test_a_loop_that_the_weights_do_not_assume():
    other = CARD.loops["denoise"].model_copy(update={"loop_id": "other"})
    card = CARD.model_copy(update={"loops": {**CARD.loops, "other": other}})
    with pytest.raises(LoopMismatchError, match="loop='other': the weights of tiny were made for another loop"):
        program(loop("a", loop="other")).check_against(card)


def test_edges_are_told_apart_by_their_kind():
    node = ModelLoopNode.model_validate(
        {"node_id": "a", "loop": "l", "inputs": {"x": {"kind": "input", "name": "image"}}}
    )
    assert node.inputs == {"x": InputEdge(name="image")}
    with pytest.raises(ValidationError, match="kind"):
        ModelLoopNode.model_validate({"node_id": "a", "loop": "l", "inputs": {"x": {"name": "image"}}})
