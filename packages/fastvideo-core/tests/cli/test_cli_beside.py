"""What is written beside a result, and under which extension if nobody says."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastvideo_core.cli.jobs import Ask, beside, prepare_ask, usual_suffix
from fastvideo_core.cli.reading import read_actions
from fastvideo_core.errors import MediaError
from fastvideo_testing.tiny import tiny_card


def test_names_of_what_stands_beside():
    assert beside(Path("a/clip.mp4"), "text", "text") == Path("a/clip.text.txt")
    assert beside(Path("clip.webm"), "actions", "action") == Path("clip.actions.safetensors")


@pytest.fixture
def card():
    return tiny_card(Path("nowhere"))


def test_the_usual_extension_is_kept_where_the_task_makes_such_a_file(card):
    assert usual_suffix(card, Ask("x"), ".mp4") == ".mp4"
    assert usual_suffix(card, Ask("x"), ".webm") == ".webm"


@pytest.mark.parametrize(("modality", "suffix"), [("image", ".png"), ("text", ".txt"), ("audio", ".wav")])
def test_a_task_that_makes_something_else_has_an_extension_of_its_own(card, modality, suffix):
    task = card.task("text_to_video").model_copy(update={"outputs": {"made": modality}})
    tasks = card.capabilities.model_copy(update={"tasks": {"text_to_video": task}})
    changed = card.model_copy(update={"capabilities": tasks})
    assert usual_suffix(changed, Ask("x"), ".mp4") == suffix


def test_latents_are_not_written_beside_a_video(card):
    prepared, artifact = prepare_ask(card, Ask("x"), ".mp4")
    assert (artifact, prepared.request.outputs.artifacts) == ("video", ("video",))


def test_actions_of_a_file(tmp_path):
    path = tmp_path / "moves.json"
    path.write_text("[[1, 2.5]]")
    assert read_actions(str(path)) == [[1, 2.5]]
    for content in ("{}", "no json", "[" * 100_000, "[[NaN]]", "[[1e999]]"):
        path.write_text(content)
        with pytest.raises(MediaError, match="list of lists"):
            read_actions(str(path))
    with pytest.raises(MediaError, match="No such file"):
        read_actions(str(tmp_path / "nothing.json"))
