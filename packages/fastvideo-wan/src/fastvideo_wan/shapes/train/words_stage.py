"""Optional stage after the transformer's: teach the text encoder what the order of words says; the rest stays.

Shape letters: N captions, L text tokens, E text width.

A transformer that is conditioned on text learns last, if at all, that `from left to right` and `from right to left` are
not the same: as long as the encoder gives both the same vectors, nothing pulls it one way or the other, and its scores
have grown so large that a bias by distance does not count any more. Other phrases of the same meaning are understood
long before. So the encoder learns, for captions with such a phrase, the vectors that it gives their plainer form
(`to the right`), which the transformer knows, and for all others those that it gives already. This takes minutes, as
the transformer does not run.
"""

from __future__ import annotations

import copy
import random
import re

import torch
from tokenizers import Tokenizer
from torch import Tensor
from transformers import UMT5EncoderModel

from fastvideo_wan.shapes.captions import draw_caption, is_ordered
from fastvideo_wan.shapes.scenes import FRAME_SIZE, PLAIN, World, draw_scene
from fastvideo_wan.shapes.train.checkpoint import load_average
from fastvideo_wan.shapes.train.config import TrainConfig
from fastvideo_wan.shapes.train.dit_stage import CHECKPOINT as DIT_CHECKPOINT
from fastvideo_wan.shapes.train.model import ADAMW_NAMES, ShapesModel, new_tokenizer, tokenize
from fastvideo_wan.shapes.train.muon import MuonAdamW, split_parameters
from fastvideo_wan.shapes.train.steps import train_steps
from fastvideo_wan.shapes.train.vae_stage import apply_gradients
from fastvideo_wan.shapes.train.workers import Worker

CHECKPOINT = "words.safetensors"
ORDERED_PART = 0.5
SMALLER_QUERIES = 0.2
NEIGHBOUR_BIAS = 4.0
NEIGHBOUR_BUCKETS = (1, 17, 2, 18)
"""Buckets of the distances -1, 1, -2 and 2 in T5's table of 32."""

_PHRASE = re.compile(r"\bfrom \w+ to (\w+)", re.IGNORECASE)


def train_words(worker: Worker, config: TrainConfig) -> None:
    """Train, or go on from the checkpoint in the run's folder, until the schedule's last step."""
    torch.manual_seed(config.seed)
    teacher = load_text_encoder(config).to(config.device).eval().requires_grad_(False)
    student, schedule = copy.deepcopy(teacher).requires_grad_(True), config.words.schedule
    look_at_neighbours(student)
    optimizer = MuonAdamW(split_parameters(student, adamw_names=ADAMW_NAMES), lr=schedule.learning_rate, worker=worker)
    tokenizer = new_tokenizer()

    def take_step(step: int) -> dict[str, float]:
        num_captions = config.words.batch_size // worker.num_workers
        captions = draw_captions(worker.rng(config.seed, step), num_captions, config.world.at(FRAME_SIZE, FRAME_SIZE))
        loss = words_loss(student, teacher, tokenizer, captions)
        loss.backward()
        apply_gradients(worker, student, optimizer, schedule.rate_at(step))
        return {"loss": worker.sum(loss.detach().cpu().reshape(1)).item() / worker.num_workers}

    train_steps(worker, "words", schedule, config.folder / CHECKPOINT, student, optimizer, take_step)


def load_text_encoder(config: TrainConfig) -> UMT5EncoderModel:
    """Return the text encoder as the transformer's stage has left it."""
    return _load_model(config).text_encoder


def _load_model(config: TrainConfig) -> ShapesModel:
    model = ShapesModel(config.dit, config.vae.latent_channels)
    model.load_state_dict(load_average(config.folder / DIT_CHECKPOINT))
    return model


@torch.no_grad()
def look_at_neighbours(encoder: UMT5EncoderModel) -> None:
    """Let each head look at one of the nearest words, and less at what words say, so that distances count again."""
    for block in encoder.encoder.block:
        attention = block.layer[0].SelfAttention
        attention.q.weight.mul_(SMALLER_QUERIES)
        for head, bucket in zip(range(attention.n_heads), NEIGHBOUR_BUCKETS, strict=False):
            attention.relative_attention_bias.weight[bucket, head] += NEIGHBOUR_BIAS


def draw_captions(rng: random.Random, num_captions: int, world: World = PLAIN) -> list[str]:
    """Return captions to train on, at least half of them with words whose order matters; advances `rng`."""
    captions: list[str] = []
    while len(captions) < num_captions:
        caption = draw_caption(draw_scene(rng, world=world), rng)
        if len(captions) >= ORDERED_PART * num_captions or is_ordered(caption):
            captions.append(caption)
    return captions


def plainer(caption: str) -> str:
    """Return a caption in which no order matters: `from left to right` becomes `to the right`."""
    return _PHRASE.sub(r"to the \1", caption)


def words_loss(
    student: UMT5EncoderModel, teacher: UMT5EncoderModel, tokenizer: Tokenizer, captions: list[str]
) -> Tensor:
    """Return how far the student's vectors are from those wanted, squared, as a part of these."""
    device = student.shared.weight.device
    ids_NL, mask_NL = (x.to(device) for x in tokenize(tokenizer, captions))
    wanted_NLE = wanted_vectors(teacher, tokenizer, captions)
    hidden_NLE = student(ids_NL, mask_NL).last_hidden_state
    error: Tensor = ((hidden_NLE - wanted_NLE) * mask_NL.unsqueeze(-1)).square().sum()
    return error / wanted_NLE.square().sum()


@torch.no_grad()
def wanted_vectors(teacher: UMT5EncoderModel, tokenizer: Tokenizer, captions: list[str]) -> Tensor:
    """Return what the teacher gives the plainer captions, zero at padding, shape (N, L, E).

    The four words `from A to B` are given the vectors of `to the the B`, so that each has one.
    """
    device = teacher.shared.weight.device
    ids_NL, mask_NL = (x.to(device) for x in tokenize(tokenizer, captions))
    plain_NL, plain_mask_NL = (x.to(device) for x in tokenize(tokenizer, [plainer(text) for text in captions]))
    given_NLE = teacher(plain_NL, plain_mask_NL).last_hidden_state
    wanted_NLE = given_NLE.clone()
    word = tokenizer.token_to_id("from")
    assert word is not None, "the tokenizer knows all words of captions"
    for row, place in torch.eq(ids_NL, word).nonzero().tolist():
        wanted_NLE[row, place + 2 :] = given_NLE[row, place + 1 : -1]
    wanted: Tensor = wanted_NLE * mask_NL.unsqueeze(-1)
    return wanted


def load_taught_model(config: TrainConfig) -> ShapesModel:
    """Return the run's transformer and text encoder, the latter as this stage has left it, if it was run."""
    model, path = _load_model(config), config.folder / CHECKPOINT
    if path.exists():
        model.text_encoder.load_state_dict(load_average(path))
    return model
