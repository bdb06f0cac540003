from __future__ import annotations

import sys
import types

import numpy as np
import pytest
from importlib_metadata import EntryPoint

from fastvideo_core import VideoGenerator
from fastvideo_core.errors import ConfigError, InputError, OutputError, ParameterError, PromptError, UnknownCardError
from fastvideo_core.extend import ENTRY_POINT_GROUP, find_plugins, hookimpl
from fastvideo_core.runtime.engine import Engine
from fastvideo_testing.samples import HOLD
from fastvideo_testing.tiny import tiny_card, write_tiny_checkpoint


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    write_tiny_checkpoint(folder)
    return folder


@pytest.fixture
def generator(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with VideoGenerator.from_pretrained(folder) as generator:
        yield generator


def test_a_video_is_made_and_saved(generator, folder, tmp_path):
    video = generator.generate("a red circle", seed=7, num_frames=5)
    assert video.video_path == "outputs/a-red-circle-7.mp4"
    assert (tmp_path / video.video_path).is_file()
    assert (tmp_path / "outputs/a-red-circle-7.json").is_file()
    assert (video.prompt, video.seed, video.fps, video.frames.shape) == ("a red circle", 7, 8.0, (5, 32, 32, 3))
    assert video.parameters["num_frames"] == 5
    assert video.generation_time > 0
    with Engine.open(tiny_card(folder)) as engine:
        assert np.array_equal(video.frames, engine.generate("a red circle", seed=7, num_frames=5).video.frames)


def test_the_older_name_does_the_same(generator):
    one, other = (call("x", seed=1, save_video=False) for call in (generator.generate, generator.generate_video))
    assert np.array_equal(one.frames, other.frames)


def test_nothing_is_saved_that_is_not_wanted(generator, tmp_path):
    assert generator.generate("x", save_video=False).video_path is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "path"),
    [
        ({"output_path": "videos/"}, "videos/x-1.mp4"),
        ({"output_path": "a.webm"}, "a.webm"),
        ({"output_path": "videos", "output_video_name": "mine"}, "videos/mine.mp4"),
        ({"output_path": "videos", "output_video_name": "mine.gif"}, "videos/mine.gif"),
    ],
)
def test_where_it_goes(options, path, generator, tmp_path):
    assert generator.generate("x", seed=1, **options).video_path == path
    assert (tmp_path / path).is_file()


def test_several_prompts(generator):
    videos = generator.generate(["x", "y"], seed=1)
    assert [video.video_path for video in videos] == ["outputs/x-1.mp4", "outputs/y-1.mp4"]


def test_a_request_with_sections(generator, tmp_path):
    from PIL import Image

    Image.new("RGB", (8, 8), "red").save(tmp_path / "red.png")
    request = {
        "prompt": "x",
        "negative_prompt": "y",
        "inputs": {"image_path": str(tmp_path / "red.png")},
        "sampling": {"seed": 3, "num_inference_steps": 2},
        "output": {"output_path": "a.mp4"},
    }
    video = generator.generate(request)
    assert video.video_path == "a.mp4"
    assert (video.parameters["seed"], video.parameters["negative_prompt"]) == (3, "y")
    plain = generator.generate("x", negative_prompt="y", seed=3, num_inference_steps=2, save_video=False)
    assert not np.array_equal(video.frames, plain.frames)
    assert generator.generate({"prompt": "x"}, save_video=False).video_path is None


@pytest.mark.parametrize(
    ("request_", "options", "error", "text"),
    [
        ("x", {"num_frames": 8}, ParameterError, "num_frames=8: .*nearest: 9"),
        ("x", {"num_videos_per_prompt": 2}, ParameterError, "num_videos_per_prompt=2: "),
        ("", {}, PromptError, "the text is empty"),
        ("x", {"output_path": "a.mp4", "output_video_name": "b.mkv"}, OutputError, "unknown extension '.mkv'"),
        (
            ["x", "y"],
            {"output_path": "a.mp4"},
            ParameterError,
            "output_path='a.mp4': several videos .*allowed: a folder",
        ),
        (["x", ""], {}, PromptError, "the text is empty"),
        ({"sampling": {}}, {}, InputError, "the request has no prompt"),
        (
            {"prompt": "x", "output": {"return_state": True}},
            {},
            ParameterError,
            "output.return_state=True: .*output_path",
        ),
        ({"prompt": "x", "sampling": {"sed": 1}}, {}, ParameterError, "sed=1: .*nearest: seed"),
        (5, {}, InputError, "prompt=5: not a prompt; allowed: text, or a list of texts"),
        (None, {}, InputError, "prompt=None: not a prompt"),
        ({"prompt": "x", "sampling": None}, {}, ParameterError, "sampling=None: not a section; allowed: a mapping"),
        ({"prompt": "x", "output": "a.mp4"}, {}, ParameterError, "output='a.mp4': not a section"),
        ({"prompt": "x", 3: 4}, {}, ParameterError, "request=3: not a field's name"),
        ("x", {"output_path": 5}, ParameterError, "output_path=5: not a path"),
        ("x", {"output_video_name": 5}, ParameterError, "output_video_name=5: not a path"),
        ("x", {"output_video_name": "../b.mp4"}, ParameterError, "output_video_name='../b.mp4': .*nearest: b.mp4"),
        ({"prompt": "x", "sampling": {"request": "y"}}, {}, ParameterError, "sampling.request='y': not a parameter"),
        (
            {"prompt": "x", "sampling": {"output_path": "y"}},
            {},
            ParameterError,
            "sampling.output_path='y': .*allowed: output_path in output",
        ),
    ],
)
def test_bad_input_is_refused_before_any_work(request_, options, error, text, generator, tmp_path):
    with pytest.raises(error, match=text):
        generator.generate(request_, **options)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_exists_is_not_written_over(generator, tmp_path):
    (tmp_path / "a.mp4").write_text("old")
    with pytest.raises(OutputError, match="output_path='a.mp4': exists"):
        generator.generate("x", output_path="a.mp4")


def test_one_prompt_that_fails_cancels_the_others(generator):
    with pytest.raises(PromptError, match="129 tokens"):
        generator.generate(["x" * 129, "y"], num_inference_steps=1000, save_video=False)
    # The engine is free again, and not after a thousand steps.
    assert generator.generate("z", save_video=False, seed=1).seed == 1


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"num_gpus": 2}, ParameterError, "num_gpus=2: .*nearest: 1"),
        (
            {"dit_cpu_offload": True},
            ParameterError,
            "dit_cpu_offload=True: there is no such option here; allowed: model_path",
        ),
        ({"device": "gpu"}, ParameterError, "device='gpu'"),
        ({"model_path": "wan-shapse"}, UnknownCardError, "card='wan-shapse'"),
    ],
)
def test_bad_options_of_the_model(options, error, text, folder):
    with pytest.raises(error, match=text):
        VideoGenerator.from_pretrained(**{"model_path": folder, **options})


def test_the_number_format_is_a_choice(folder):
    with VideoGenerator.from_pretrained(str(folder), precision="bfloat16") as generator:
        assert generator.engine.instance.precision == "bfloat16"


@pytest.fixture
def config(folder, tmp_path, monkeypatch):
    """Write a deploy config with an interceptor on, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    entry = EntryPoint(name="interceptor.hold", value="fastvideo_testing_hold_plugin", group=ENTRY_POINT_GROUP)
    module = types.ModuleType("fastvideo_testing_hold_plugin")
    module.interceptors = hookimpl(lambda: [HOLD])
    monkeypatch.setitem(sys.modules, module.__name__, module)
    installed = find_plugins()
    monkeypatch.setattr("fastvideo_core.extend.plugins.entry_points", lambda group: [*installed, entry])
    path = tmp_path / "deploy.yaml"
    path.write_text(
        f"card: {folder}\nplugins:\n  interceptor.hold: {{options: {{period: 3}}}}\n"
        f"cards:\n  tiny:\n    parameters: {{num_inference_steps: 7}}\n"
        "output: {folder: videos}\nlimits: {max_running: 3}\n"
    )
    return path


def test_a_deploy_config_says_what_is_not_given(config, tmp_path):
    with VideoGenerator.from_pretrained(config=config) as generator:
        assert generator.engine.card.model_id == "tiny"
        video = generator.generate("x", seed=1)
        assert video.video_path == "videos/x-1.mp4"
        assert video.parameters["num_inference_steps"] == 7
        assert video.parameters.source("num_inference_steps") == "deploy"
        given = generator.generate("x", seed=1, num_inference_steps=4, output_path="mine")
        assert (given.parameters["num_inference_steps"], given.video_path) == (4, "mine/x-1.mp4")
        always = generator.generate("x", seed=1, plugins={"interceptor.hold": {"period": 1}}, save_video=False)
        assert not np.array_equal(always.frames, video.frames)
        for plugins, why in (
            ({"interceptor.hold": {"perid": 1}}, "plugins.interceptor.hold.perid=1: .*nearest: period"),
            ({"interceptor.hlod": {}}, "plugins.interceptor.hlod=.*is not on here; .*nearest: interceptor.hold"),
        ):
            with pytest.raises(ParameterError, match=why):
                generator.generate("x", plugins=plugins)
        with pytest.raises(InputError, match="alters results"):
            generator.generate("x", exact=True)


def test_a_model_may_be_another_than_the_configs(config, folder):
    text = config.read_text().replace(f"card: {folder}", "card: wan-shapes")
    config.write_text(text)
    with VideoGenerator.from_pretrained(folder, config=config) as generator:
        assert generator.engine.card.model_id == "tiny"


def test_plugins_of_a_request_need_a_config(generator):
    with pytest.raises(ParameterError, match="plugins.interceptor.hold=.*the plugin is not on here"):
        generator.generate("x", plugins={"interceptor.hold": {"period": 1}})


def test_no_model_and_no_config_is_refused():
    with pytest.raises(ParameterError, match="no model is named"):
        VideoGenerator.from_pretrained()
    with pytest.raises(ConfigError, match="cannot be read|no such file"):
        VideoGenerator.from_pretrained(config="nowhere.yaml")
