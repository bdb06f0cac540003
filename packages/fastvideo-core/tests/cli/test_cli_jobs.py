from __future__ import annotations

from pathlib import Path

import pytest

from fastvideo_core.cli.jobs import (
    Ask,
    check_engine_options,
    find_card,
    known_formats,
    needed_bytes,
    numbered_outputs,
    output_for,
    prepare_ask,
)
from fastvideo_core.errors import OutputError, ParameterError, PrecisionMismatchError, UnknownCardError
from fastvideo_testing.tiny import tiny_card


@pytest.fixture(scope="module")
def card():
    return tiny_card(Path("nowhere"))


@pytest.mark.parametrize(
    ("suffix", "artifact"),
    [(".mp4", "video"), (".webm", "video"), (".gif", "video"), (".png", "video"), (".safetensors", "latents")],
)
def test_the_extension_decides_the_artifact(suffix, artifact, card):
    task = card.task("text_to_video")
    assert suffix in known_formats()
    assert output_for(task, suffix) == artifact
    prepared, made = prepare_ask(card, Ask("x"), suffix)
    assert made == artifact
    # Latents need no decoding, so it is not among what runs.
    assert ("decode" in [node.node_id for node in prepared.nodes]) == (artifact == "video")


def test_a_task_that_makes_no_such_file(card):
    task = card.task("text_to_video").model_copy(update={"outputs": {"video": "video"}})
    with pytest.raises(OutputError, match=r"output='.safetensors': .*; allowed: .mp4, .webm, .gif, .png"):
        output_for(task, ".safetensors")


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("numframes", "num_frames"), ("imag", "image"), ("num_inference_step", "num_inference_steps"), ("zzz", None)],
)
def test_an_unknown_parameter_names_the_nearest_of_all_names(name, nearest, card):
    ask = Ask("x", parameters={name: 3}, front_names=("prompt", "image"))
    with pytest.raises(
        ParameterError, match=f"{name}=3: the task takes no such parameter; allowed: num_frames, "
    ) as caught:
        prepare_ask(card, ask, ".mp4")
    assert caught.value.nearest == nearest


@pytest.mark.parametrize(("count", "names"), [(1, ["a.mp4"]), (2, ["a-1.mp4", "a-2.mp4"])])
def test_names_of_several_outputs(count, names):
    assert [path.name for path in numbered_outputs(Path("dir/a.mp4"), count)] == names


def test_names_of_many_outputs_sort():
    names = [path.name for path in numbered_outputs(Path("a.mp4"), 10)]
    assert names == sorted(names)
    assert (names[0], names[-1]) == ("a-01.mp4", "a-10.mp4")


def test_more_frames_need_more_space(card):
    small, large = (prepare_ask(card, Ask("x", parameters={"num_frames": n}), ".mp4")[0] for n in (9, 81))
    assert 0 < needed_bytes(small, ".mp4") < needed_bytes(large, ".mp4")
    assert needed_bytes(small, ".safetensors") == 0


@pytest.mark.parametrize("device", ["auto", "cpu", "cuda", "cuda:0", "cuda:13"])
def test_devices(device, card):
    check_engine_options(card, device=device, precision="bfloat16")


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:x", "mps", "", "cpu:0"])
def test_what_is_no_device(device, card):
    with pytest.raises(ParameterError, match="not a device; allowed: auto, cpu, cuda, cuda:<index>"):
        check_engine_options(card, device=device, precision=None)


def test_a_precision_that_the_card_does_not_run_in(card):
    with pytest.raises(PrecisionMismatchError, match="precision='float16': .*; allowed: float32, bfloat16"):
        check_engine_options(card, device="cpu", precision="float16")


def test_cards_by_name_and_by_folder(installed, tiny):
    assert find_card("tiny").model_id == "tiny"
    assert find_card(str(tiny)).checkpoint.source.location == str(tiny)


def test_the_default_card_is_the_one_that_ships(installed):
    with pytest.raises(UnknownCardError, match="card='wan-shapes-4step': .*tiny, tiny-gone"):
        find_card(None)
    with pytest.raises(UnknownCardError, match="card='': no such card"):
        find_card("")
