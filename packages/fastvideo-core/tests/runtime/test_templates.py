"""Program templates of a plugin, used by the engine and from the command line like a card's own tasks."""

from __future__ import annotations

import re
import sys

import pytest
from importlib_metadata import EntryPoint

from fastvideo_core.cli.main import main
from fastvideo_core.errors import ParameterError, PluginError
from fastvideo_core.extend import ENTRY_POINT_GROUP, load_plugins, plugins
from fastvideo_core.runtime.engine import Engine
from fastvideo_core.runtime.templates import load_templates, with_templates
from fastvideo_testing.tiny import tiny_card

PLUGIN = """
from fastvideo_core.extend import ProgramTemplate, hookimpl

@hookimpl
def program_templates():
    return [
        ProgramTemplate(
            "sketch", "templates_plugin:SKETCH", "a video in few steps", parameters="templates_plugin:SketchParameters"
        ),
        ProgramTemplate("elsewhere", "templates_plugin:ELSEWHERE"),
    ]


def __getattr__(name):
    import templates_program
    return getattr(templates_program, name)
"""
PROGRAM = """
from typing import Literal
from pydantic import BaseModel, Field
from fastvideo_core.program.base import ArtifactNode, InlineProgram, InputEdge, ModelLoopNode, TensorEdge

DECODE = ModelLoopNode(node_id="decode", loop="decode", inputs={"latents": TensorEdge(node="draw", output="latents")})
SKETCH = InlineProgram(
    program_id="sketch",
    nodes=(
        ModelLoopNode(node_id="words", loop="text", inputs={"prompt": InputEdge(name="prompt")}),
        ModelLoopNode(node_id="draw", loop="denoise", inputs={"embeds": TensorEdge(node="words", output="embeds")}),
        DECODE,
        ArtifactNode(
            node_id="video", modality="video", source=TensorEdge(node="decode", output="frames"), parameters=("fps",)
        ),
    ),
)
ELSEWHERE = InlineProgram(
    program_id="elsewhere",
    nodes=(
        ModelLoopNode(node_id="x", loop="no_such_loop"),
        ArtifactNode(node_id="video", modality="video", source=TensorEdge(node="x", output="frames")),
    ),
)


class SketchParameters(BaseModel):
    num_inference_steps: int = Field(default=2, ge=1, le=3, description="few")
    height: int = 64
    note: str | None = None
    style: Literal["ink", "chalk"] = "ink"
"""
TINY = """

@hookimpl
def card_from_layout(source, index, configs):
    from fastvideo_testing.tiny.plugin import card_from_layout
    return card_from_layout(source, index, configs)
"""


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """Write a plugin with templates, and return its entry point."""
    names = []

    def write(program=PROGRAM, module=PLUGIN):
        place = tmp_path / "plugin"
        place.mkdir(exist_ok=True)
        (place / "templates_plugin.py").write_text(module)
        (place / "templates_program.py").write_text(program)
        monkeypatch.syspath_prepend(str(place))
        names.extend(["templates_plugin", "templates_program"])
        return EntryPoint(name="model.templates", value="templates_plugin", group=ENTRY_POINT_GROUP)

    yield write
    for name in names:
        sys.modules.pop(name, None)


def load(*entries):
    return load_templates(load_plugins(available=entries))


def test_a_card_offers_what_it_can_run_and_nothing_else(plugin, tiny_folder):
    templates, registry = load(plugin())
    assert registry.failed == ()
    assert set(templates) == {"sketch", "elsewhere"}
    card = tiny_card(tiny_folder)
    tasks = with_templates(card, templates).capabilities.tasks
    assert set(tasks) == {*card.capabilities.tasks, "sketch"}
    own, task = card.task("text_to_video"), tasks["sketch"]
    assert (task.description, task.outputs) == ("a video in few steps", {"video": "video"})
    assert task.inputs == {"prompt": own.inputs["prompt"]}
    steps, style = task.parameters["num_inference_steps"], task.parameters["style"]
    assert (steps.default, steps.minimum, steps.maximum, steps.description) == (2, 1, 3, "few")
    assert (style.type, style.choices, style.default) == ("string", ("ink", "chalk"), "ink")
    assert (task.parameters["note"].is_nullable, task.parameters["note"].default) == (True, None)
    assert task.parameters["height"] == own.parameters["height"].model_copy(update={"default": 64})
    assert task.parameters["width"] == own.parameters["width"]


def test_without_templates_a_card_is_itself(tiny_folder):
    card = tiny_card(tiny_folder)
    assert with_templates(card, {}) is card


def test_a_template_is_generated_from_like_a_task(plugin, tiny_folder):
    card = with_templates(tiny_card(tiny_folder), load(plugin())[0])
    with Engine.open(card, tasks=["sketch"]) as engine:
        parameters = {"seed": 3, "height": 16, "width": 16, "num_frames": 5}
        result = engine.generate("x", task="sketch", **parameters)
        with pytest.raises(ParameterError, match=r"num_inference_steps=4: .*nearest: 3"):
            engine.generate("x", task="sketch", num_inference_steps=4)
    assert result.video.frames.shape == (5, 16, 16, 3)
    assert result.parameters["num_inference_steps"] == 2
    with Engine.open(tiny_card(tiny_folder)) as engine:
        plain = engine.generate("x", num_inference_steps=2, **parameters)
    assert (plain.video.frames == result.video.frames).all()


def test_from_the_command_line(plugin, tiny_folder, tmp_path, monkeypatch, capsys):
    entry = plugin()
    (tmp_path / "plugin" / "templates_plugin.py").write_text(f"{PLUGIN}{TINY}")
    monkeypatch.setattr(plugins, "entry_points", lambda group: [entry])
    asked = ["--card", str(tiny_folder), "--task", "sketch", "--seed", "1", "-o", str(tmp_path / "x.mp4")]
    assert main(["generate", "x", *asked, "--quiet"]) == 0
    assert main(["card", "show", str(tiny_folder)]) == 0
    assert "task sketch  a video in few steps" in capsys.readouterr().out
    wrong = ["--card", str(tiny_folder), "--task", "skech", "-o", str(tmp_path / "y.mp4")]
    assert main(["generate", "x", *wrong]) == 2
    assert "nearest: sketch" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("SKETCH = 1\nELSEWHERE = 2\nclass SketchParameters: pass\n", "is no program"),
        (PROGRAM.replace("(BaseModel)", ""), "is no pydantic model"),
        (PROGRAM.replace("ge=1, le=3", "gt=1"), "num_inference_steps says exclusiveMinimum; allowed: minimum"),
        (PROGRAM.replace('Literal["ink", "chalk"] = "ink"', "list[int] = []"), "style is of no kind that a parameter"),
        (PROGRAM.replace("default=2", "default=9"), "num_inference_steps|default"),
        ("raise OSError('gone')\n", "gone"),
    ],
)
def test_a_template_that_is_none_makes_its_plugin_a_failed_one(program, why, plugin):
    templates, registry = load(plugin(program))
    assert templates == {}
    (failed,) = registry.failed
    assert failed.name == "model.templates"
    assert re.search(why, failed.error)


def test_a_name_of_the_cards_own_is_refused(plugin, tiny_folder):
    templates, _ = load(plugin(module=PLUGIN.replace('"sketch"', '"text_to_video"', 1)))
    with pytest.raises(
        PluginError, match="brings a program template 'text_to_video', and card tiny has a task of that"
    ):
        with_templates(tiny_card(tiny_folder), templates)


@pytest.mark.parametrize(
    ("field", "why"),
    [
        ("height: int = 63", "sketch.*: height does not fit the card's"),
        ("height: int = Field(default=1024, ge=1024)", "height does not fit"),
        ("height: str = '64'", "height is of another type than the card's, integer"),
        ("height: int | None = None", "height is of another type"),
    ],
)
def test_what_the_cards_loops_do_not_take_is_refused(field, why, plugin, tiny_folder):
    templates, _ = load(plugin(PROGRAM.replace("height: int = 64", field)))
    with pytest.raises(PluginError, match=why):
        with_templates(tiny_card(tiny_folder), templates)
