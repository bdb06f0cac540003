from __future__ import annotations

import dataclasses
import sys
import types

import pytest

from fastvideo_core.card import ComponentFiles
from fastvideo_core.loop.state import LoopState
from fastvideo_core.program.base import ArtifactNode, InlineProgram, ModelLoopNode, TensorEdge
from fastvideo_core.runtime.validate import card_problems, checkpoint_problems
from fastvideo_testing.tiny import tiny_card, write_tiny_checkpoint

HERE = "things_that_a_card_names"


@dataclasses.dataclass
class Loose(LoopState):
    """A state with a dictionary, which could hold anything."""


@dataclasses.dataclass(slots=True)
class Foreign:
    """A dataclass that is no state."""


@pytest.fixture
def names(monkeypatch):
    """A module of objects that cards of these tests name."""
    module = types.ModuleType(HERE)
    monkeypatch.setitem(sys.modules, HERE, module)
    return module


@pytest.fixture
def card(tmp_path):
    return write_tiny_checkpoint(tmp_path)


def with_loop(card, loop_id, **fields):
    return card.model_copy(update={"loops": {**card.loops, loop_id: card.loops[loop_id].model_copy(update=fields)}})


def with_program(card, ref):
    tasks = card.capabilities.tasks
    task = tasks["text_to_video"].model_copy(update={"program": ref})
    capabilities = card.capabilities.model_copy(update={"tasks": {**tasks, "text_to_video": task}})
    return card.model_copy(update={"capabilities": capabilities})


def test_a_good_card_has_none(card):
    assert list(card_problems(card)) == []
    assert list(checkpoint_problems(card)) == []


@pytest.mark.parametrize(
    ("loop_field", "ref", "text"),
    [
        ("step", "no_such_package.x:y", "card.loops.decode.step names 'no_such_package.x:y': ModuleNotFoundError"),
        ("loop", f"{HERE}:Nothing", f"card.loops.decode.loop names '{HERE}:Nothing': AttributeError"),
        ("result_schema", f"{HERE}:Nothing", "card.loops.decode.result_schema names"),
        ("can_batch", f"{HERE}:Nothing", "card.loops.decode.can_batch names"),
        ("state_schema", f"{HERE}:Nothing", "card.loops.decode.state_schema names"),
        ("outputs_schema", f"{HERE}:Nothing", "card.loops.decode.outputs_schema names"),
        ("estimate", f"{HERE}:Nothing", "card.loops.decode.estimate names"),
    ],
)
def test_a_name_that_leads_nowhere(loop_field, ref, text, card, names):
    (problem,) = card_problems(with_loop(card, "decode", **{loop_field: ref}))
    assert problem.startswith(text)


def test_names_in_other_parts_of_a_card(card, names):
    component = card.components["vae"].model_copy(
        update={"factory": f"{HERE}:a", "config_schema": f"{HERE}:b", "io_schema": (f"{HERE}:c", f"{HERE}:d")}
    )
    checkpoint = card.checkpoint.model_copy(
        update={"components": {**card.checkpoint.components, "vae": ComponentFiles(folder="vae", key_map=f"{HERE}:e")}}
    )
    update = {"components": {**card.components, "vae": component}, "checkpoint": checkpoint}
    problems = list(card_problems(card.model_copy(update=update)))
    assert [problem.split("'")[1].rpartition(":")[2] for problem in problems] == ["a", "b", "c", "d", "e"]


def test_a_module_that_fails_on_import_is_named_with_its_reason(card, tmp_path, monkeypatch):
    (tmp_path / "module_that_raises.py").write_text("raise RuntimeError('no licence')")
    monkeypatch.syspath_prepend(tmp_path)
    (problem,) = card_problems(with_loop(card, "decode", step="module_that_raises:run"))
    assert problem.endswith("RuntimeError: no licence")


@pytest.mark.parametrize(
    ("state", "text"),
    [(Foreign, "is no dataclass derived from LoopState"), (Loose, "has no slots"), (7, "is no dataclass")],
)
def test_a_state_that_is_none(state, text, card, names):
    names.State = state
    (problem,) = card_problems(with_loop(card, "decode", state_schema=f"{HERE}:State"))
    assert problem.startswith("loop decode: state_schema")
    assert text in problem


@dataclasses.dataclass(slots=True)
class OtherOutputs:
    """What another loop hands on."""

    latents: int


@dataclasses.dataclass(slots=True)
class CapturedOutputs:
    """What a loop hands on that may record its behaviour."""

    frames: int
    behavior: int


def test_what_a_rollout_captures_stands_beside_the_outputs(card, names):
    names.Outputs = CapturedOutputs
    changed = {"outputs_schema": f"{HERE}:Outputs"}
    (problem,) = card_problems(with_loop(card, "decode", **changed))
    assert problem.endswith("has fields behavior, frames; its outputs are frames")
    recorded = with_loop(card, "decode", **changed, behavior_schema="fastvideo_core.loop.behavior:StepBehavior")
    assert list(card_problems(recorded)) == []


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (OtherOutputs, "has fields latents; its outputs are frames"),
        (Loose, "is no dataclass with slots"),
        (7, "is no dataclass with slots"),
    ],
)
def test_a_schema_of_outputs_that_does_not_fit(schema, text, card, names):
    names.Outputs = schema
    (problem,) = card_problems(with_loop(card, "decode", outputs_schema=f"{HERE}:Outputs"))
    assert problem == f"loop decode: outputs_schema '{HERE}:Outputs' {text}"


def test_a_step_that_cannot_be_called(card, names):
    names.step = "text"
    assert list(card_problems(with_loop(card, "decode", step=f"{HERE}:step"))) == [
        f"loop decode: '{HERE}:step' cannot be called"
    ]


def test_a_program_that_is_none(card, names):
    names.program = 7
    assert list(card_problems(with_program(card, f"{HERE}:program"))) == [
        f"task text_to_video: '{HERE}:program' is no program"
    ]


def test_a_program_that_does_not_fit(card, names):
    source = TensorEdge(node="d", output="latents")
    names.program = InlineProgram(
        program_id="p",
        nodes=(
            ModelLoopNode(node_id="d", loop="dream"),
            ArtifactNode(node_id="video", modality="video", source=source),
        ),
    )
    problems = list(card_problems(with_program(card, f"{HERE}:program")))
    assert problems[0].startswith("task text_to_video: loop='dream': no such loop")
    assert (
        problems[1] == "task text_to_video: output 'latents' is declared as latents; the program makes no such artifact"
    )


def test_a_default_that_the_weights_do_not_take(card):
    (problem, other) = card_problems(with_loop(card, "denoise", pinned={"num_inference_steps": 3}))
    assert problem.startswith(
        "task text_to_video: num_inference_steps=4: these weights were trained for the loop denoise"
    )
    assert other.startswith("task image_to_video: ")


def test_files_that_are_broken_are_named_once(card, tmp_path):
    (tmp_path / "transformer/diffusion_pytorch_model.safetensors").write_bytes(b"x" * 40)
    (problem,) = checkpoint_problems(card)
    assert "transformer" in problem


def test_a_folder_that_is_gone(tmp_path):
    (problem,) = checkpoint_problems(tiny_card(tmp_path / "gone"))
    assert "no folder" in problem
