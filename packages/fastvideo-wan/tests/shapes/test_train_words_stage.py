"""The words stage: the order of words tells phrases apart afterwards, and nothing else changes."""

from __future__ import annotations

import random

import pytest
import torch

from fastvideo_wan.shapes.captions import draw_caption, is_held_out, is_ordered
from fastvideo_wan.shapes.scenes import draw_scene
from fastvideo_wan.shapes.train.checkpoint import load_average
from fastvideo_wan.shapes.train.config import TrainConfig, WordsStage
from fastvideo_wan.shapes.train.model import new_tokenizer, tokenize
from fastvideo_wan.shapes.train.words_stage import (
    draw_captions,
    load_taught_model,
    load_text_encoder,
    plainer,
    train_words,
    wanted_vectors,
)
from fastvideo_wan.shapes.train.workers import Worker

PAIR = ("a red circle moving from left to right", "a red circle moving from right to left")


@pytest.fixture
def trained(with_transformer: TrainConfig) -> TrainConfig:
    """A run of which the words stage has been trained for some steps."""
    schedule = {"num_steps": 120, "learning_rate": 0.01, "num_warmup_steps": 5, "ema_decay": 0.9}
    words = WordsStage.model_validate({"batch_size": 32, "schedule": schedule})
    config = with_transformer.model_copy(update={"words": words})
    train_words(Worker(), config)
    return config


def test_the_plainer_form_says_the_same_without_an_order() -> None:
    assert plainer("a disc going from left to right, on grey") == "a disc going to the right, on grey"
    assert plainer("From top to bottom.") == "to the bottom."
    rng = random.Random(0)
    for _ in range(100):
        caption = draw_caption(draw_scene(rng), rng)
        assert not is_ordered(plainer(caption))
        assert (plainer(caption) == caption) != is_ordered(caption)


def test_half_of_the_captions_have_an_order_and_none_is_held_out() -> None:
    captions = draw_captions(random.Random(1), 40)
    assert sum(map(is_ordered, captions)) >= 20
    assert not all(map(is_ordered, captions))
    assert not any(map(is_held_out, captions))


def test_wanted_vectors_are_those_of_the_plainer_words(with_transformer: TrainConfig) -> None:
    tokenizer, encoder = new_tokenizer(), load_text_encoder(with_transformer).eval()
    texts = ["a red disc going from left to right on grey", "a red disc going to the right on grey", "a blue box"]
    wanted = wanted_vectors(encoder, tokenizer, texts)
    ids, mask = tokenize(tokenizer, texts)
    with torch.no_grad():
        given = encoder(ids, mask).last_hidden_state * mask.unsqueeze(-1)
    assert torch.equal(wanted[1:], given[1:])
    place = tokenizer.encode(texts[0]).tokens.index("from")
    plain = [0, 1, 2, 3, place, place + 1, place + 1, place + 2]  # from A to B is given: to the the B
    assert torch.equal(wanted[0, : place + 4], given[1, plain])
    assert wanted[0, int(mask[0].sum()) :].abs().max() == 0


def test_the_order_of_words_counts_afterwards(trained: TrainConfig) -> None:
    tokenizer = new_tokenizer()

    def error(encoder: torch.nn.Module) -> float:
        """Return how far a pair's vectors are from what is wanted."""
        ids, mask = tokenize(tokenizer, PAIR)
        with torch.no_grad():
            hidden = encoder(ids, mask).last_hidden_state * mask.unsqueeze(-1)
        wanted = wanted_vectors(load_text_encoder(trained).eval(), tokenizer, list(PAIR))
        return float((hidden - wanted).norm() / wanted.norm())

    taught, before = load_taught_model(trained).text_encoder.eval(), load_text_encoder(trained).eval()
    assert error(taught) < 0.5 * error(before)


def test_the_transformer_stays_as_it_is(trained: TrainConfig) -> None:
    weights = load_average(trained.folder / "dit.safetensors")
    for name, tensor in load_taught_model(trained).transformer.state_dict().items():
        assert torch.equal(tensor, weights[f"transformer.{name}"])


def test_a_resumed_run_equals_an_unbroken_one(trained: TrainConfig) -> None:
    def train(num_steps: int) -> dict[str, torch.Tensor]:
        schedule = trained.words.schedule.model_copy(update={"decay_part": 0.0, "num_steps": num_steps})
        words = trained.words.model_copy(update={"schedule": schedule})
        train_words(Worker(), trained.model_copy(update={"words": words}))
        return load_average(trained.folder / "words.safetensors")

    (trained.folder / "words.safetensors").unlink()
    unbroken = train(6)
    (trained.folder / "words.safetensors").unlink()
    train(3)
    resumed = train(6)
    assert all(torch.equal(unbroken[name], resumed[name]) for name in unbroken)
