from __future__ import annotations

import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from fastvideo_testing.tiny import tiny_card


@pytest.mark.parametrize("form", ["folder", "file", "id"])
def test_a_good_card(form, run, tiny, installed):
    name = {"folder": tiny, "file": tiny / "card.json", "id": "tiny"}[form]
    ran = run("card", "validate", name)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == "tiny is valid: 4 components, 4 loops, tasks text_to_video, image_to_video\n"


def test_a_card_that_names_what_is_not_there(run, tiny, tmp_path):
    card = tiny_card(tiny)
    loop = card.loops["decode"].model_copy(update={"step": "fastvideo_testing.tiny.decode:run_stpe"})
    path = tmp_path / "mine.json"
    path.write_text(card.model_copy(update={"loops": {**card.loops, "decode": loop}}).model_dump_json())
    ran = run("card", "validate", path)
    assert (ran.code, ran.out) == (2, "")
    assert ran.error.startswith("error: tiny: card.loops.decode.step names 'fastvideo_testing.tiny.decode:run_stpe': ")


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("{", "mine.json is not a valid card: "),
        ("{}", "model_id: Field required"),
        (b"\xff\xfe", "mine.json cannot be read as text"),
        (" " * ((16 << 20) + 1), "mine.json is too large for a card"),
    ],
    ids=["json", "fields", "text", "size"],
)
def test_a_file_that_is_no_card(content, text, run, tmp_path):
    path = tmp_path / "mine.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    ran = run("card", "validate", path)
    assert ran.code == 2
    assert text in ran.error


def test_files_that_are_broken(run, tiny, tmp_path):
    folder = shutil.copytree(tiny, tmp_path / "broken")
    weights = folder / "vae/diffusion_pytorch_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4])
    shutil.rmtree(folder / "transformer")
    ran = run("card", "validate", folder)
    assert (ran.code, ran.out) == (1, "")
    first, second = sorted(ran.err.splitlines())
    assert "vae" in first + second
    assert "transformer" in first + second


def test_tensors_that_are_not_the_models(run, tiny, tmp_path):
    folder = shutil.copytree(tiny, tmp_path / "other")
    path = next((folder / "transformer").glob("*.safetensors"))
    tensors = load_file(path)
    first, second, *_ = sorted(tensors)
    tensors["a_stranger"] = tensors.pop(first)
    tensors[second] = torch.zeros(1, 2, 3, 4)
    save_file(tensors, path)
    ran = run("card", "validate", folder)
    assert (ran.code, ran.out) == (1, "")
    for name in (first, "a_stranger", second):
        assert name in ran.err
    assert ran.err.startswith("error: ")
    assert len(ran.err.splitlines()) == 1


@pytest.mark.parametrize("name", ["tyni", "", "x" * 5000, "a\0b", "~nobody-of-that-name/x"])
def test_an_unknown_card(name, run, installed):
    ran = run("card", "validate", name)
    assert (ran.code, ran.out) == (2, "")
    assert ran.error.startswith("error: card=")
