"""Values of the program's own, and artifacts of several results."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from fastvideo_core.program import ArtifactNode, ConstantEdge, InlineProgram, InputEdge, ModelLoopNode, TensorEdge
from fastvideo_core.runtime.prepare import known_inputs

FRAMES, SOUND = TensorEdge(node="decode", output="frames"), TensorEdge(node="sound", output="sound")
VIDEO = ArtifactNode(node_id="video", modality="video", source=FRAMES, parts={"audio": SOUND})


def loop(node_id, **inputs):
    return ModelLoopNode(node_id=node_id, loop="denoise", inputs=inputs)


def test_a_part_is_needed_for_its_artifact_and_comes_first():
    plain = ArtifactNode(node_id="plain", modality="video", source=FRAMES)
    program = InlineProgram(program_id="p", nodes=(VIDEO, plain, loop("sound"), loop("decode")))
    assert {node.node_id for node in program.needed_for(("video",))} == {"decode", "sound", "video"}
    assert program.needed_for(("video",))[-1] is VIDEO
    assert {node.node_id for node in program.needed_for(("plain",))} == {"decode", "plain"}


def test_a_part_of_a_node_that_is_not_there_is_refused():
    with pytest.raises(ValidationError, match="takes a result of 'sound'"):
        InlineProgram(program_id="p", nodes=(VIDEO, loop("decode")))


def test_what_a_node_knows_without_others():
    node = loop("a", mode=ConstantEdge(value="image"), flag=ConstantEdge(value=True), prompt=InputEdge(name="prompt"),
                missing=InputEdge(name="image"), other=FRAMES)  # fmt: skip
    expected = {"mode": "image", "flag": True, "prompt": "x", "missing": None}
    assert known_inputs(node, {"prompt": "x"}) == expected
    assert node.tensor_edges() == (FRAMES,)


def test_values_survive_json():
    program = InlineProgram(
        program_id="p", nodes=(loop("a", mode=ConstantEdge(value=2)), loop("sound"), loop("decode"), VIDEO)
    )
    assert InlineProgram.model_validate_json(program.model_dump_json()) == program
