from __future__ import annotations

import math
import threading
from collections import Counter
from typing import ClassVar

import numpy as np
import pytest
import torch

from fastvideo_core.errors import CheckpointError, ConfigError
from fastvideo_core.extend.base import RewardSpec
from fastvideo_core.loop.work import WorkKind
from fastvideo_rl.rewards.base import Sample
from fastvideo_rl.rewards.clip import ClipOptions, ClipScore, PickScore
from fastvideo_rl.rewards.scorer import RewardChoice, Scorer
from fastvideo_rl.rollout.records import BehaviorRecord, Group

HERE = "test_rl_rewards_made_up"


class Brightness:
    """Mean value of all pixels; made up."""

    sizes: ClassVar[Counter] = Counter()
    wait: threading.Event | None = None

    def __init__(self, options):
        self.options = options

    def score(self, samples):
        Brightness.sizes[len(samples)] += 1
        if Brightness.wait is not None:
            Brightness.wait.wait(30)
        return [float(sample.frames_FYX3.mean()) for sample in samples]


class Fussy(Brightness):
    def score(self, samples):
        if any(sample.prompt == "raise" for sample in samples):
            raise RuntimeError("no such thing")
        return [math.nan if sample.prompt == "nan" else float(len(sample.prompt)) for sample in samples]


class WrongShape(Brightness):
    def score(self, samples):
        return torch.zeros(len(samples), 2)


class TooFew(Brightness):
    def score(self, samples):
        return [0.0] * (len(samples) + 1)


@pytest.fixture
def made_up(extensions, monkeypatch):
    import sys
    import types
    from dataclasses import replace

    module = types.ModuleType(HERE)
    classes = {"bright": Brightness, "fussy": Fussy, "wrong-shape": WrongShape, "too-few": TooFew}
    for name, cls in classes.items():
        setattr(module, cls.__name__, cls)
        classes[name] = RewardSpec(name=name, implementation=f"{HERE}:{cls.__name__}")
    monkeypatch.setitem(sys.modules, HERE, module)
    Brightness.sizes.clear()
    return replace(extensions, rewards={**extensions.rewards, **classes})


def record(prompt, value=10, frames=3):
    pixels = np.full((frames, 16, 16, 3), value, np.uint8)
    return BehaviorRecord(prompt, 0, {}, {}, None, (), torch.zeros(1), "v", None, pixels, 8.0)


def group(prompt, *values):
    return Group(prompt, [record(prompt, value) for value in values])


def test_rewards_are_added_up_with_their_weights(made_up):
    choices = [RewardChoice(name="bright", weight=0.5), RewardChoice(name="fussy", weight=-2.0)]
    groups = [group("abc", 10, 20), group("ab", 30)]
    with Scorer(choices, made_up) as scorer:
        for one in groups:
            scorer.submit(one)
        scorer.settle()
    assert [one.rewards for one in groups[0].records] == [{"bright": 10, "fussy": 3}, {"bright": 20, "fussy": 3}]
    assert [one.reward for some in groups for one in some.records] == [5 - 6, 10 - 6, 15 - 4]


def test_samples_share_calls_as_units_of_the_engine(made_up):
    seen = []
    with Scorer([RewardChoice(name="bright")], made_up) as scorer:
        body = scorer.engine.instance.steps["reward_batch"]
        scorer.engine.instance.steps["reward_batch"] = lambda instance, plans, ctx: (
            seen.append({plan.kind for plan in plans}),
            body(instance, plans, ctx),
        )[1]
        one = group("x", *range(24))
        scorer.submit(one)
        scorer.settle()
    assert sum(size * count for size, count in Brightness.sizes.items()) == 24
    assert max(Brightness.sizes) > 1
    assert set().union(*seen) == {WorkKind.REWARD_BATCH}
    assert [item.reward for item in one.records] == list(range(24))


def test_scoring_is_asynchronous(made_up):
    Brightness.wait = threading.Event()
    try:
        with Scorer([RewardChoice(name="bright")], made_up) as scorer:
            one = group("x", 4)
            scorer.submit(one)  # comes back while the reward still waits
            assert one.records[0].rewards == {}
            Brightness.wait.set()
            scorer.settle()
            assert one.records[0].reward == 4
    finally:
        Brightness.wait = None


@pytest.mark.parametrize(("prompt", "why"), [("raise", "no such thing"), ("nan", "NaN")])
def test_a_reward_that_fails_ends_its_group_and_no_other(made_up, prompt, why):
    bad, good = group(prompt, 1, 2), group("fine", 1, 2)
    with Scorer([RewardChoice(name="bright"), RewardChoice(name="fussy")], made_up) as scorer:
        scorer.submit(bad)
        scorer.submit(good)
        scorer.settle()
        again = group("fine", 5)
        scorer.submit(again)
        scorer.settle()
    assert bad.records == []
    assert "a reward failed" in bad.reason
    assert why in bad.reason
    assert good.reason is None
    assert [one.rewards["fussy"] for one in good.records] == [4, 4]
    assert again.records[0].rewards["bright"] == 5


@pytest.mark.parametrize(
    ("name", "why"), [("wrong-shape", r"gave shape \(1, 2\); allowed: \(1,\)"), ("too-few", "gave 2 scores")]
)
def test_a_reward_of_another_shape_is_named(made_up, name, why):
    one = group("x", 1)
    with Scorer([RewardChoice(name=name)], made_up) as scorer:
        scorer.submit(one)
        scorer.settle()
    assert name in one.reason
    import re

    assert re.search(why, one.reason)


def test_choices_that_make_no_sense_are_refused(made_up):
    with pytest.raises(ConfigError, match="rewards='shape': no such reward.*nearest: shapes"):
        Scorer([RewardChoice(name="shape")], made_up)
    with pytest.raises(ConfigError, match="named twice"):
        Scorer([RewardChoice(name="bright"), RewardChoice(name="bright")], made_up)
    with pytest.raises(ConfigError, match="no such setting.*nearest: full_travel"):
        Scorer([RewardChoice(name="shapes-speed", options={"full_travels": 1})], made_up)
    with pytest.raises(ConfigError, match="no such setting; allowed: attributes, is_joint"):
        Scorer([RewardChoice(name="shapes", options={"a": 1})], made_up)
    with pytest.raises(ConfigError, match="greater than 0"):
        Scorer([RewardChoice(name="shapes-speed", options={"full_travel": 0})], made_up)


def test_one_reward_twice_has_two_names(made_up):
    choices = [RewardChoice(name="bright"), RewardChoice(name="bright", as_name="dark", weight=-1)]
    one = group("x", 9)
    with Scorer(choices, made_up) as scorer:
        scorer.submit(one)
        scorer.settle()
    assert one.records[0].rewards == {"bright": 9, "dark": 9}
    assert one.records[0].reward == 0


@pytest.fixture(scope="module")
def clip_folder(tmp_path_factory):
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("clip")
    torch.manual_seed(0)
    text = {"vocab_size": 259, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
            "num_attention_heads": 2, "max_position_embeddings": 64, "bos_token_id": 0, "eos_token_id": 1,
            "pad_token_id": 2}  # fmt: skip
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
              "image_size": 16, "patch_size": 8}  # fmt: skip
    CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=8)).save_pretrained(folder)
    special = ["<s>", "</s>", "<pad>"]
    vocabulary = {name: i for i, name in enumerate([*special, *sorted(pre_tokenizers.ByteLevel.alphabet())])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=64, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    ).save_pretrained(folder)
    CLIPImageProcessor(size={"shortest_edge": 16}, crop_size=16).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("kind", [ClipScore, PickScore])
def test_clip_scores_are_the_models_own_logits(clip_folder, kind):
    from transformers import AutoTokenizer, CLIPImageProcessor, CLIPModel

    frames = np.random.default_rng(0).integers(0, 256, (5, 16, 16, 3), np.uint8)
    samples = [Sample("a red circle", frames, 8.0), Sample("b", frames[:1], 8.0)]
    scores = kind(ClipOptions(folder=str(clip_folder), num_frames=3)).score(samples)
    model = CLIPModel.from_pretrained(clip_folder).eval()
    tokens = AutoTokenizer.from_pretrained(clip_folder)(["a red circle"], return_tensors="pt")
    pixels = CLIPImageProcessor.from_pretrained(clip_folder)(images=list(frames[[0, 2, 4]]), return_tensors="pt")
    with torch.no_grad():
        logits = model(**{k: tokens[k] for k in ("input_ids", "attention_mask")}, **pixels).logits_per_text
        wanted = logits.mean() if kind is PickScore else (logits / model.logit_scale.exp()).mean()
    assert scores[0] == pytest.approx(float(wanted), rel=1e-4, abs=1e-6)
    assert len(scores) == 2


def test_a_folder_without_such_a_model_is_refused(tmp_path, extensions):
    with pytest.raises(CheckpointError, match="no folder"):
        Scorer([RewardChoice(name="clip", options={"folder": str(tmp_path / "nothing")})], extensions)
    with pytest.raises(CheckpointError, match="holds no CLIP model"):
        Scorer([RewardChoice(name="pickscore", options={"folder": str(tmp_path)})], extensions)
