"""The streaming weights in the package: small, whole, with a card that tells the truth, and streams that follow."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from fastvideo_core.runtime.engine import Engine
from fastvideo_wan.cards.shapes import shapes_cards
from fastvideo_wan.shapes.evaluation import ATTRIBUTES, wilson_interval
from fastvideo_wan.shapes.stream_measure import judge_chunk, make_streams, stream_cases
from fastvideo_wan.shapes.train_causal.ship_stage import write_card

FOLDER = Path(str(files("fastvideo_wan").joinpath("data", "wan-shapes-causal")))
MAX_BYTES = 12 * 1000**2
LEAST = {"switched": ("all", 0.85), "after_60_chunks": ("all", 0.80), "follows": ("all", 0.85)}
"""The part of held-out streams that must be right, by what was asked of them."""
RECIPE = json.loads((FOLDER / "recipe.json").read_text(encoding="utf-8"))
OTHER_SEED = 4_000


def test_everything_together_is_small() -> None:
    assert sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()) <= MAX_BYTES


@pytest.mark.parametrize("name", ["transformer", "vae", "text_encoder"])
def test_weights_are_16_bits_and_finite(name: str) -> None:
    (path,) = (FOLDER / name).glob("*.safetensors")
    with safe_open(path, framework="pt") as file:
        for key in file.keys():
            tensor = file.get_tensor(key)
            assert tensor.dtype == torch.float16 and tensor.isfinite().all(), key


def test_figures_of_recipe_and_card_agree_and_reach_the_bar() -> None:
    card = next(card for card in shapes_cards() if card.model_id == "wan-shapes-causal")
    for name, (attribute, least) in LEAST.items():
        table = RECIPE["figures"][name]
        for row in (table[one] for one in ATTRIBUTES):
            assert row["part"] == row["right"] / row["n"]
            assert row["interval_95"] == pytest.approx(wilson_interval(row["right"], row["n"]), abs=1e-4)
        assert table["all"]["n"] >= 100
        assert card.figures[f"{name}_all"] == table["all"]["part"]
        assert table[attribute]["part"] >= least


def test_the_card_is_what_the_recipe_gives(tmp_path: Path) -> None:
    for name in ("recipe.json", "vae/config.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes((FOLDER / name).read_bytes())
    write_card(tmp_path)
    written = (tmp_path / "card.json").read_text(encoding="utf-8")
    assert json.loads(written) == json.loads((FOLDER / "card.json").read_text(encoding="utf-8"))


def test_streams_follow_a_prompt_and_then_another() -> None:
    """Streams whose captions and seeds took part in nothing: one that is wrong of three is more than bad luck."""
    with Engine.open("wan-shapes-causal") as engine:
        made = list(make_streams(engine, stream_cases(3, OTHER_SEED, (0, 2)), 5))
    for stream in made:
        assert [len(chunk) for chunk in stream.chunks] == [9, 12, 12, 12, 12]
        for chunk, turn in ((1, 0), (4, 1)):
            scores = judge_chunk(stream.chunks[chunk], stream.case.case(turn))
            assert scores["all"], stream.case.prompts
