"""Words that the tokenizer does not know end no request: they are told, on the command line and in Python."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastvideo_core.cli.main import main
from fastvideo_core.errors import InputWarning
from fastvideo_core.runtime.engine import Engine

SMALL = {"num_frames": 1, "num_inference_steps": 1}
MESSAGE = "prompt: the model does not know these words: dog, grass"


def test_python_warns_of_them() -> None:
    with Engine.open("wan-shapes") as engine:
        with pytest.warns(InputWarning) as warned:
            result = engine.generate("a dog on green grass", seed=1, **SMALL)
        assert [str(warning.message) for warning in warned] == [MESSAGE]
        assert result.warnings == (MESSAGE,)
        assert result.video.frames.shape[0] == 1
        assert engine.generate("a red circle on green", seed=1, **SMALL).warnings == ()


def test_the_negative_prompt_counts_where_it_is_used() -> None:
    with Engine.open("wan-shapes") as engine:
        given = {"seed": 1, "negative_prompt": "blur", **SMALL}
        with pytest.warns(InputWarning, match="^negative_prompt: the model does not know these words: blur$"):
            engine.generate("a red circle", **given)
        assert engine.generate("a red circle", guidance_scale=1.0, **given).warnings == ()


def test_the_command_line_tells_of_them_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    flags = ["--num-frames", "1", "--seed", "1", "--quiet", "-n", "2"]
    assert main(["generate", "a dog on green grass", "-o", str(tmp_path / "dog.gif"), *flags]) == 0
    captured = capfd.readouterr()
    assert captured.err.splitlines() == [f"warning: {MESSAGE}"]
    assert len(captured.out.splitlines()) == 2
