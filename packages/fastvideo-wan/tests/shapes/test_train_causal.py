"""The causal recipe on a tiny model: latents, lessons, steps that go on where they stopped, and roll-outs."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from fastvideo_core.card import ModelCard
from fastvideo_core.errors import ParameterError
from fastvideo_core.runtime.engine import Engine
from fastvideo_core.runtime.validate import card_problems
from fastvideo_wan.models.chunk_masks import spread_mask
from fastvideo_wan.models.chunks import ChunkRule
from fastvideo_wan.models.context import select_rows
from fastvideo_wan.models.past import ListedPast
from fastvideo_wan.models.vae import WanVAE, mean_latents
from fastvideo_wan.shapes.captions import is_held_out
from fastvideo_wan.shapes.render import to_uint8_frames
from fastvideo_wan.shapes.stream_measure import judge_chunk, stream_cases
from fastvideo_wan.shapes.stream_measure import make_streams as make_sessions
from fastvideo_wan.shapes.streams import Turn, draw_stream, first_frame, num_frames, render_stream, render_turn
from fastvideo_wan.shapes.train.base import Base
from fastvideo_wan.shapes.train.checkpoint import load_average
from fastvideo_wan.shapes.train.config import TrainConfig, read_settings
from fastvideo_wan.shapes.train.latents_stage import load_vae
from fastvideo_wan.shapes.train.model import ShapesModel, new_tokenizer, tokenize
from fastvideo_wan.shapes.train.ship_stage import write_components
from fastvideo_wan.shapes.train.vae_stage import vae_config
from fastvideo_wan.shapes.train.workers import Worker
from fastvideo_wan.shapes.train_causal.__main__ import main
from fastvideo_wan.shapes.train_causal.causal_stage import CHECKPOINT, draw_batch, train_causal
from fastvideo_wan.shapes.train_causal.config import CausalConfig
from fastvideo_wan.shapes.train_causal.latents_stage import (
    encode_streams,
    file_streams,
    latents_path,
    read_latents,
    write_latents,
)
from fastvideo_wan.shapes.train_causal.lesson import draw_lesson, draw_prompts, lesson_mask
from fastvideo_wan.shapes.train_causal.model import CausalShapesModel
from fastvideo_wan.shapes.train_causal.openings import opening_loss
from fastvideo_wan.shapes.train_causal.rollout import RollOut
from fastvideo_wan.shapes.train_causal.ship_stage import ship
from fastvideo_wan.shapes.train_causal.watching import held_out_streams, make_streams

RULE = ChunkRule(3, 12)


@pytest.fixture
def causal(tiny: TrainConfig, tmp_path: Path) -> CausalConfig:
    """Settings of a run of a second, and the model that it begins with."""
    torch.manual_seed(3)
    model = ShapesModel(tiny.dit, tiny.vae.latent_channels)
    torch.nn.init.normal_(model.transformer.proj_out.weight, std=0.1)
    base = tmp_path / "base"
    write_components(model, WanVAE(vae_config(tiny.vae)), base, flow_shift=5.0)
    settings = json.loads(tiny.model_dump_json(exclude={"folder"}))
    (base / "recipe.json").write_text(json.dumps({"settings": settings}), encoding="utf-8")
    schedule = {"num_steps": 4, "learning_rate": 0.001, "num_warmup_steps": 1, "save_every": 2, "report_every": 1}
    return CausalConfig.model_validate(
        {
            "folder": tmp_path / "causal",
            "base": base,
            "num_processes": 1,
            "streams": {"num_streams": 4, "streams_per_file": 2, "num_chunks": 3},
            "causal": {
                "batch_size": 2,
                "num_openings": 2,
                "own_from": 1,
                "streams_at_start": 2,
                "eval_every": 4,
                "eval_streams": 2,
                "steps": [1000, 500],
                "schedule": schedule,
            },
        }
    )


def begun(config: CausalConfig) -> CausalShapesModel:
    return config.read_base().load_model(CausalShapesModel).requires_grad_(False).eval()


def test_a_base_is_what_its_own_training_wrote_in_16_bits(causal: CausalConfig) -> None:
    """The layers that stay are those of the written files, in order; the text encoder's table is tied."""
    base = causal.read_base()
    num_layers = base.settings.dit.num_layers
    written = load_file(base.folder / "transformer" / "diffusion_pytorch_model.safetensors")
    model = Base(base.folder, (0,)).load_model(CausalShapesModel)
    got = model.transformer.state_dict()
    for layer in range(1, num_layers):
        name = "attn1.to_q.weight"
        assert torch.equal(got[f"blocks.{layer - 1}.{name}"], written[f"blocks.{layer}.{name}"].float())
    assert f"blocks.{num_layers - 1}.attn1.to_q.weight" not in got
    assert torch.equal(got["proj_out.weight"], written["proj_out.weight"].float())
    assert model.text_encoder.encoder.embed_tokens.weight is model.text_encoder.shared.weight
    assert load_vae(base.folder / "vae").config == base.load_vae().config


@pytest.mark.parametrize("dropped", [(9,), (0, 1)])
def test_layers_that_are_not_there_cannot_be_dropped(causal: CausalConfig, dropped: tuple[int, ...]) -> None:
    with pytest.raises(ParameterError, match="layers 0 to 1, not all"):
        causal.model_copy(update={"dropped_layers": dropped}).read_base()


def test_a_base_must_have_been_written(
    causal: CausalConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = causal.model_copy(update={"base": tmp_path / "none"})
    assert main(["--config", str(written(config))]) == 2
    assert "base" in capsys.readouterr().err


def test_latents_of_a_stream_without_turns_are_those_of_the_clip(causal: CausalConfig) -> None:
    torch.manual_seed(0)
    vae = WanVAE(vae_config(causal.read_base().settings.vae)).requires_grad_(False)
    streams = [draw_stream(random.Random(seed)) for seed in range(2)]
    got = encode_streams(vae, streams, 3, 2)
    clips = torch.stack([render_stream(stream, 3) for stream in streams]) * 2 - 1
    assert clips.shape[2] == num_frames(3) == 33
    assert torch.allclose(got, vae.normalize(mean_latents(vae.encode(clips))), atol=1e-5)


def test_a_turn_is_encoded_as_if_it_had_always_been(causal: CausalConfig) -> None:
    torch.manual_seed(0)
    vae = WanVAE(vae_config(causal.read_base().settings.vae)).requires_grad_(False)
    stream = draw_stream(random.Random(5), (0, 1))
    got = encode_streams(vae, [stream], 3, 2)[0]
    before = vae.encode(render_turn(stream[0], 0, first_frame(1))[None] * 2 - 1)
    after = vae.encode(render_turn(stream[1], 4, first_frame(3) - 4)[None] * 2 - 1)
    assert torch.allclose(got[:, :3], vae.normalize(mean_latents(before))[0], atol=1e-5)
    assert torch.allclose(got[:, 3:], vae.normalize(mean_latents(after))[0, :, 2:], atol=1e-5)


def test_files_hold_what_follows_from_the_seed(causal: CausalConfig) -> None:
    write_latents(Worker(), causal)
    latents, streams = read_latents(latents_path(causal, 1))
    assert streams == json_like(file_streams(causal, 1))
    assert latents.shape == (2, 4, 9, 8, 8)


def json_like(streams: Sequence[Sequence[Turn]]) -> list[list[Turn]]:
    """Return streams with the lists that a JSON file makes of tuples."""

    def turn(value: Turn) -> Turn:
        scene = value.scene
        scene = type(scene)(
            scene.colour, scene.shape, scene.motion, scene.background, scene.radius, [*scene.start_xy], [*scene.end_xy]
        )
        return Turn(value.first_chunk, scene, value.changed)

    return [[turn(value) for value in stream] for stream in streams]


def test_the_mask_of_a_lesson_lets_noisy_chunks_see_clean_ones_before_them() -> None:
    mask = lesson_mask(RULE, 5, range(0))
    seen = [row.nonzero().flatten().tolist() for row in mask]
    assert seen[:5] == [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3], [1, 2, 3, 4]]
    assert seen[5:] == [[5], [0, 6], [0, 1, 7], [0, 1, 2, 8], [1, 2, 3, 9]]


def test_what_is_read_anew_sees_itself_in_both_directions() -> None:
    mask = lesson_mask(RULE, 4, range(2))
    seen = [row.nonzero().flatten().tolist() for row in mask]
    assert seen == [[0, 1], [0, 1], [0, 1, 2], [0, 1, 2, 3], [4], [5], [0, 1, 6], [0, 1, 2, 7]]


def test_what_is_read_anew_sees_a_sink_that_stays() -> None:
    mask = lesson_mask(ChunkRule(3, 12, 3), 6, range(2, 5))
    seen = [row.nonzero().flatten().tolist() for row in mask[:6]]
    assert seen == [[0], [0, 1], [0, 2, 3, 4], [0, 2, 3, 4], [0, 2, 3, 4], [0, 3, 4, 5]]


def test_a_lesson_has_the_right_prompt_for_every_chunk(causal: CausalConfig) -> None:
    stage = causal.causal.model_copy(update={"prompt_drop": 0.0, "unknown_part": 0.0, "recache_part": 1.0})
    stream = draw_stream(random.Random(1), (0, 2))
    lesson = draw_lesson(random.Random(0), [stream], 4, RULE, stage)
    clean, noisy = lesson.prompts[0][:4], lesson.prompts[0][4:]
    assert clean == [noisy[2]] * 4 and noisy[0] == noisy[1] != noisy[2] == noisy[3]
    assert lesson.counted_NG.tolist() == [[False, False, True, True]]
    as_seen = draw_lesson(random.Random(0), [stream], 4, RULE, stage.model_copy(update={"recache_part": 0.0}))
    assert as_seen.prompts[0][:4] == as_seen.prompts[0][4:] and as_seen.counted_NG.all()
    dropped = draw_lesson(random.Random(0), [stream], 4, RULE, stage.model_copy(update={"prompt_drop": 1.0}))
    assert dropped.prompts == [[""] * 8]


def test_a_lesson_is_what_a_session_does_when_its_prompt_changes(causal: CausalConfig) -> None:
    """Read the window anew in one pass, both ways, with the new prompt; then make the next chunk after it."""
    model = begun(causal)
    stage = causal.causal.model_copy(update={"prompt_drop": 0.0, "unknown_part": 0.0, "recache_part": 1.0})
    stream = draw_stream(random.Random(1), (0, 2))
    lesson = draw_lesson(random.Random(0), [stream], 3, RULE, stage)
    generator = torch.Generator().manual_seed(0)
    clean, noisy = (torch.randn(1, 4, 9, 8, 8, generator=generator) for _ in range(2))
    context, rows = model.prepare_prompts(new_tokenizer(), lesson.prompts[0])
    times = torch.tensor([[0.0] * 9 + [700.0] * 9])
    got = model.causal.forward_masked(
        torch.cat([clean, noisy], dim=2),
        times,
        select_rows(context, torch.tensor(rows)),
        spread_mask(lesson.mask_NGG, [3] * 6),
        positions=[*range(9), *range(9)],
    )[:, :, 15:]

    new = select_rows(context, torch.tensor([rows[-1]]))
    whole = ListedPast(ChunkRule(6, 6))
    turns = model.causal.chunk_turns(clean[:, :, :6], [0])
    model.causal.forward_chunk(clean[:, :, :6], torch.zeros(1), new, whole, turns=turns)
    past = ListedPast(RULE, chunk=2)
    half = whole.fresh[0][0].shape[1] // 2
    for chunk in range(2):
        span = slice(chunk * half, (chunk + 1) * half)
        past.kept[chunk] = [(key[:, span], value[:, span]) for key, value in whole.fresh]
    turns = model.causal.chunk_turns(noisy[:, :, 6:], [6])
    expected = model.causal.forward_chunk(noisy[:, :, 6:], torch.tensor([700.0]), new, past, turns=turns)
    assert (got - expected).norm() / expected.norm() < 1e-5


def test_a_run_goes_on_where_it_was_stopped(causal: CausalConfig, capsys: pytest.CaptureFixture[str]) -> None:
    write_latents(Worker(), causal)
    train_causal(Worker(), causal)
    whole = load_average(causal.folder / CHECKPOINT)
    assert "eval 4 before" in capsys.readouterr().out
    (causal.folder / CHECKPOINT).unlink()
    schedule = causal.causal.schedule.model_copy(update={"decay_part": 0.0})
    for num_steps in (2, 4):
        steps = schedule.model_copy(update={"num_steps": num_steps})
        if num_steps == 4:
            steps = causal.causal.schedule
        else:
            # The rate of the whole run, which falls at its end.
            steps = steps.model_copy(update={"learning_rate": causal.causal.schedule.learning_rate})
        part = causal.model_copy(update={"causal": causal.causal.model_copy(update={"schedule": steps})})
        train_causal(Worker(), part)
    resumed = load_average(causal.folder / CHECKPOINT)
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    start = begun(causal).state_dict()
    assert whole.keys() == start.keys()
    assert not torch.equal(whole["transformer.proj_out.weight"], start["transformer.proj_out.weight"])


def test_the_models_own_past_is_kept_where_it_has_seen_nothing(causal: CausalConfig) -> None:
    model = begun(causal)
    stage = causal.causal.model_copy(update={"recache_part": 1.0})
    config = causal.model_copy(update={"causal": stage})
    streams = [draw_stream(random.Random(1), (0, 2)), draw_stream(random.Random(2))]
    latents = torch.randn(2, 4, 9, 8, 8, generator=torch.Generator().manual_seed(0))
    batch = draw_batch(latents, streams, config, random.Random(0), torch.Generator().manual_seed(0))
    own = batch.own_past(model, new_tokenizer())
    assert torch.equal(own[0, :, :6], latents[0, :, :6])
    assert not torch.equal(own[0, :, 6:], latents[0, :, 6:])
    assert not torch.equal(own[1], latents[1])
    assert torch.isfinite(batch.loss(model, new_tokenizer(), own_past=True))


def test_an_opening_is_learnt_as_a_clip_of_its_own(causal: CausalConfig) -> None:
    """Within a chunk everything attends to everything, so the base's own forward gives the same velocity."""
    config, model, tokenizer = causal.causal.model_copy(update={"prompt_drop": 0.0}), begun(causal), new_tokenizer()
    streams = [draw_stream(random.Random(1), (0, 2)), draw_stream(random.Random(2))]
    latents = torch.randn(2, 4, 9, 8, 8, generator=torch.Generator().manual_seed(0))
    got = opening_loss(
        model, tokenizer, latents, streams, config, random.Random(3), torch.Generator().manual_seed(4)
    )  # fmt: skip
    rng, generator = random.Random(3), torch.Generator().manual_seed(4)
    prompts = [draw_prompts(stream[:1], rng, config)[0] for stream in streams]
    levels, clean = torch.rand(2, 1, generator=generator), latents[:, :, :3]
    levels = config.time_shift * levels / (1 + (config.time_shift - 1) * levels)
    noise = torch.randn(clean.shape, generator=generator)
    whole = ShapesModel(causal.read_base().dit, 4).eval()
    whole.load_state_dict(model.state_dict())
    parts = levels[:, :, None, None, None]
    velocity = whole.velocity(
        (1 - parts) * clean + parts * noise, levels[:, 0], whole.encode_text(*tokenize(tokenizer, prompts))
    )
    assert got.item() == pytest.approx(torch.nn.functional.mse_loss(velocity, noise - clean).item(), rel=1e-4)
    assert got.item() > 0.1


def test_streams_made_together_are_those_made_alone(causal: CausalConfig) -> None:
    model = begun(causal)
    prompts = [["a red circle", "a blue square"], ["a red circle", "a green square"]]

    def rolled(rows: list[int], scale: float) -> torch.Tensor:
        stage = causal.causal.model_copy(update={"guidance_scale": scale})
        roll = RollOut(model, new_tokenizer(), stage, [[4, 9][row] for row in rows], (4, 8, 8))
        return torch.cat(list(roll.chunks([[now[row] for row in rows] for now in prompts])), dim=2)

    for scale in (1.0, 2.0):
        both = rolled([0, 1], scale)
        assert both.shape == (2, 4, 6, 8, 8)
        for row in range(2):
            assert torch.allclose(both[row], rolled([row], scale)[0], atol=1e-4)
    assert not torch.allclose(rolled([0], 1.0), rolled([0], 2.0), atol=1e-4)


def test_true_streams_score_full_marks() -> None:
    for case in held_out_streams(4, 1):
        assert all(is_held_out(prompt) for prompt in case.prompts)
        frames = to_uint8_frames(render_stream(case.turns, 7)).numpy()
        for chunk, turn in ((3, 0), (6, 1)):
            span = slice(first_frame(chunk), first_frame(chunk + 1))
            assert all(judge_chunk(frames[span], case.case(turn)).values())
            other = case.case(1 - turn)
            assert not all(judge_chunk(frames[span], other).values())


def test_streams_are_decoded_without_a_seam(causal: CausalConfig) -> None:
    model = begun(causal)
    torch.manual_seed(0)
    vae = WanVAE(vae_config(causal.read_base().settings.vae)).requires_grad_(False)
    cases = stream_cases(1, 2, (0, 1))
    clips = make_streams(model, vae, new_tokenizer(), cases, 2, causal.causal)
    roll = RollOut(model, new_tokenizer(), causal.causal, [cases[0].seed], (4, 8, 8))
    latents = torch.cat(list(roll.chunks([[prompt] for prompt in cases[0].prompts])), dim=2)
    assert clips.shape == (1, 3, num_frames(2), 64, 64)
    assert torch.allclose(clips, vae.decode(vae.denormalize(latents)), atol=1e-4)
    assert to_uint8_frames(clips[0] / 2 + 0.5).shape == (num_frames(2), 64, 64, 3)


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"causal": {"window_frames": 2}}, "window_frames"),
        ({"causal": {"sink_frames": 4}}, "sink_frames"),
        ({"causal": {"steps": [500, 500]}}, "steps"),
        ({"causal": {"batch_size": 3}}, "batch_size"),
        ({"causal": {"num_openings": 3}}, "num_openings"),
        ({"streams": {"turn_shares": [0, 0]}}, "turn_shares"),
        ({"streams": {"num_chunk": 3}}, "num_chunk"),
    ],
)
def test_a_wrong_setting_is_named(tmp_path: Path, changed: dict[str, object], field: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"folder": "run", "base": "base.json", **changed}), encoding="utf-8")
    with pytest.raises(ParameterError, match=field):
        read_settings(path, CausalConfig)
    assert main(["--config", str(path)]) == 2


def test_what_ships_is_judged_on_the_engine_and_makes_the_streams_of_the_roll_out(causal: CausalConfig) -> None:
    base = causal.read_base()
    write_latents(Worker(), causal)
    train_causal(Worker(), causal)
    folder = causal.folder / "shipped"
    recipe = ship(causal, folder, num_cases=2, num_long=1)
    assert {name: table["all"]["n"] for name, table in recipe["figures"].items()} == {
        "follows": 2, "switched": 2, "after_60_chunks": 1,
    }  # fmt: skip
    card = ModelCard.from_json((folder / "card.json").read_text(), origin="here")
    assert card.model_id == "wan-shapes-causal" and card.figures["switched_streams"] == 2
    assert list(card_problems(card)) == []
    assert (causal.folder / "sheets" / "shipped-60-chunks.png").exists()

    case = stream_cases(1, 9, (0, 1))[0]
    with Engine.open(folder) as engine:
        (made,) = make_sessions(engine, [case], 2)
    model = base.load_model(CausalShapesModel)
    model.load_state_dict(load_average(causal.folder / CHECKPOINT))
    model = model.half().float().requires_grad_(False).eval()
    vae = load_vae(folder / "vae")
    stage = causal.causal
    clips = make_streams(model, vae, new_tokenizer(), [case], 1, stage)
    frames = to_uint8_frames(clips[0] / 2 + 0.5)
    assert (frames.int() - torch.as_tensor(made.chunks[0]).int()).abs().max() <= 1
    assert [len(chunk) for chunk in made.chunks] == [9, 12]
    assert main(["--config", str(written(causal)), "--stage", "card", "--output", str(folder)]) == 0
    assert ModelCard.from_json((folder / "card.json").read_text(), origin="here") == card


def written(config: CausalConfig) -> Path:
    path = config.folder.with_name("causal.json")
    path.write_text(config.model_dump_json(), encoding="utf-8")
    return path
