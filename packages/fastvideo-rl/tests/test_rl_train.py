"""Runs of a few steps on a small model: all methods, resuming, adapters, what ends a run, what comes out."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from fastvideo_core.errors import ConfigError, FastVideoError, LoopMismatchError, ParityError, StateError
from fastvideo_core.runtime.catalog import Catalog
from fastvideo_core.runtime.engine import Engine
from fastvideo_rl.errors import DivergedError, NoGroupsError
from fastvideo_rl.evaluation import ship_run
from fastvideo_rl.options import read_model
from fastvideo_rl.train.assemble import make_plan
from fastvideo_rl.train.config import TrainConfig, read_config
from fastvideo_rl.train.trainer import Trainer

pytestmark = pytest.mark.usefixtures("varied_rewards")

SDE = {"num_frames": 5, "height": 32, "width": 32, "num_inference_steps": 3, "guidance_scale": 1.0}
FEW = {"name": "fastvideo_wan.cards.few_step:few_step_card", "options": {"steps": [1000, 500]}}
SMALL = {"num_frames": 5, "height": 32, "width": 32}


def train(config, **more):
    reports = []
    with Trainer(make_plan(config)) as trainer:
        trainer.run(reports.append)
        weights = {name: tensor.clone() for name, tensor in trainer.roles.weights("student")["transformer"].items()}
    return reports, weights


METHODS = {
    "diffusion_nft": ({"timesteps_per_sample": 2, "old_decay": 0}, {}),
    "flow_grpo": ({"kind": "cps", "reference_weight": 0.1}, {"optimizer": {"learning_rate": 1e-3, "num_updates": 2}}),
    "mix_grpo": ({"window": 1, "num_starts": 2, "order": "random"}, {}),
    "dpo": ({"beta": 10.0}, {}),
    "dmd2": (
        {"student_every": 2, "guidance_scale": 2.0},
        {"student": FEW, "rollout": {"group_size": 2, "num_groups": 2, "parameters": SMALL}, "rewards": []},
    ),
}


@pytest.mark.parametrize("method", METHODS)
def test_a_run_of_each_method_changes_the_weights_and_ships_a_card(method, config, tmp_path):
    options, more = METHODS[method]
    result = {"model_id": "small-trained", "distribution_samples": 8 if method == "flow_grpo" else None}
    weights = {"ema_decay": 0.5, "is_checkpointed": method == "dpo"}
    chosen = config(method, options, weights=weights, result=result, **more)
    with Trainer(make_plan(chosen)) as trainer:
        before = {name: one.clone() for name, one in trainer.roles.weights("student")["transformer"].items()}
        reports = []
        trainer.run(reports.append)
        assert [report.step for report in reports] == [1, 2]
        assert all(np.isfinite(list(report.numbers.values())).all() for report in reports)
        after, average = (trainer.roles.weights(role)["transformer"] for role in ("student", "ema"))
        assert any(not torch.equal(after[name], before[name]) for name in before)
        folder = ship_run(trainer)
        average = {name: one.clone() for name, one in average.items()}
        assert trainer.gate.level.value == "C2"
    written = load_file(folder / "transformer" / "diffusion_pytorch_model.safetensors")
    assert set(written) == set(average)
    for name, tensor in written.items():
        torch.testing.assert_close(tensor.float(), average[name].to(tensor.dtype).float(), rtol=0, atol=0)
    card = Catalog.installed().find(str(folder))
    assert card.recipe.method == method
    assert card.recipe.settings["steps_done"] == 2
    assert card.recipe.consistency_required.value == "C2"
    assert [test.test_id for test in card.parity.tests if test.level.value == "C2"] == ["behavior"]
    with Engine.open(card) as engine:
        steps = {} if method == "dmd2" else {"num_inference_steps": 2, "guidance_scale": 1.0}
        assert engine.generate("a red circle", seed=1, **SMALL, **steps).video.frames.shape == (5, 32, 32, 3)
        if method == "dmd2":
            assert card.recipe.assumes_loop == "dmd_denoise"
            with pytest.raises(LoopMismatchError, match="num_inference_steps=7"):
                engine.generate("a red circle", num_inference_steps=7)
    report = json.loads((folder / "parity.json").read_text())
    assert report["level"] == "C2"
    assert ("distribution" in report) == (method == "flow_grpo")
    if method == "flow_grpo":
        assert report["distribution"]["is_same"]
        assert report["distribution"]["p_value"] >= report["distribution"]["threshold"] == 0.01
        assert report["distribution"]["num_samples"] == [8, 8]


def test_what_a_result_keeps_of_its_parent_stays_where_it_is(config, folder, tmp_path, monkeypatch):
    lender, parent = tmp_path / "packages" / "lender", tmp_path / "parent"
    shutil.copytree(folder, parent)
    lender.mkdir(parents=True)
    (lender / "__init__.py").touch()
    shutil.copytree(parent / "vae", lender / "data" / "vae")
    card = json.loads(Catalog.installed().find(str(parent)).model_dump_json())
    shutil.rmtree(parent / "vae")
    source = {"kind": "package", "location": "lender:data"}
    card["checkpoint"]["components"]["vae"]["source"] = source
    (parent / "card.json").write_text(json.dumps(card))
    monkeypatch.syspath_prepend(lender.parent)
    for kept in ((), ("vae",)):
        result = {"model_id": "small-trained", "kept": kept}
        chosen = config("flow_grpo", {}, f"run{len(kept)}", card=str(parent), result=result,
                        rollout={"group_size": 2, "num_groups": 1, "parameters": SDE}, num_steps=1)  # fmt: skip
        with Trainer(make_plan(chosen)) as trainer:
            trainer.run()
            shipped = ship_run(trainer)
        written = json.loads((shipped / "card.json").read_text())["checkpoint"]["components"]
        assert (shipped / "vae").is_dir() == (not kept)
        assert (written["vae"]["source"] is None) == (not kept)
        assert written["transformer"]["source"] is None
        with Engine.open(str(shipped)) as engine:
            made = engine.generate("a red circle", seed=1, **SMALL, num_inference_steps=2, guidance_scale=1.0)
        assert made.video.frames.shape == (5, 32, 32, 3)


def test_a_card_under_a_loop_that_its_weights_do_not_assume_is_refused(config):
    chosen = config("dmd2", {"guidance_scale": 2.0}, student=FEW, rewards=[], num_steps=1,
                    rollout={"group_size": 2, "num_groups": 1, "parameters": SMALL})  # fmt: skip
    with Trainer(make_plan(chosen)) as trainer:
        trainer.run()
        folder = ship_run(trainer)
    document = json.loads((folder / "card.json").read_text())
    document["capabilities"]["tasks"]["text_to_video"]["program"] = "fastvideo_wan.programs:TEXT_TO_VIDEO"
    (folder / "card.json").write_text(json.dumps(document))
    with pytest.raises(LoopMismatchError, match="diffusion_denoise"), Engine.open(str(folder)) as engine:
        engine.generate("a red circle", seed=1)


@pytest.mark.parametrize("kind", ["full", "lora"])
def test_a_resumed_run_is_to_the_bit_the_one_that_was_not_stopped(kind, config):
    more = {"weights": {"kind": kind, "rank": 2, "targets": ["attn1.to_q", "attn1.to_out.0"]}, "save_every": 2}
    options = {"timesteps_per_sample": 2}
    _, whole = train(config("diffusion_nft", options, "whole", num_steps=3, **more))
    train(config("diffusion_nft", options, "parts", num_steps=2, **more))
    with Trainer(make_plan(config("diffusion_nft", options, "parts", num_steps=3, **more))) as trainer:
        trainer.resume()
        assert trainer.step == 2
        trainer.run()
        parts = trainer.roles.weights("student")["transformer"]
        assert all(torch.equal(whole[name], parts[name]) for name in whole)


def test_adapters_are_merged_into_the_cards_own_layout(config, folder):
    chosen = config("flow_grpo", weights={"kind": "lora", "rank": 2, "targets": ["attn1.to_q"]}, num_steps=1)
    with Trainer(make_plan(chosen)) as trainer:
        base = {name: one.clone() for name, one in trainer.roles.weights("student")["transformer"].items()}
        own = trainer.engine.instance.component("transformer").state_dict()
        assert set(base) == set(own)
        assert all(torch.equal(base[name], own[name]) for name in own)
        assert all("lora" in name for name in trainer.optimizers["student"].parameters)
        trainer.run()
        after = trainer.roles.weights("student")["transformer"]
        changed = {name for name in base if not torch.equal(base[name], after[name])}
    assert changed == {f"blocks.{i}.attn1.to_q.weight" for i in range(2)}


def test_accumulated_gradients_are_those_of_one_batch(config):
    _, whole = train(config("flow_grpo", num_steps=1, optimizer={"learning_rate": 1e-3, "micro_batch": 64}))
    _, parts = train(config("flow_grpo", output="b", num_steps=1, optimizer={"learning_rate": 1e-3, "micro_batch": 1}))
    moved = max(float((whole[name] - parts[name]).abs().max()) for name in whole)
    assert moved < 3e-4  # of a rate of 1e-3: Adam's first step divides by what may be nearly nothing


def test_checkpointed_blocks_give_the_same_gradients(config):
    found = []
    for flag in (False, True):
        chosen = config("flow_grpo", output=str(flag), num_steps=1, weights={"is_checkpointed": flag})
        found.append(train(chosen)[1])
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


def data_folder(tmp_path, shapes=((16, 2, 4, 4),) * 4):
    folder = tmp_path / "data"
    folder.mkdir()
    rows = []
    for index, shape in enumerate(shapes):
        latents = torch.randn(shape, generator=torch.Generator().manual_seed(index))
        save_file({"latents": latents}, folder / f"{index}.safetensors")
        rows.append(json.dumps({"prompt": f"a thing {index}", "latents": f"{index}.safetensors"}))
    (folder / "index.jsonl").write_text("\n".join(rows) + "\n")
    return folder


def test_supervised_training_lowers_its_loss(config, tmp_path):
    data = str(data_folder(tmp_path))
    more = {"prompts": None, "rewards": [], "data": data, "num_steps": 12, "save_every": 100,
            "rollout": {"group_size": 4, "parameters": {"guidance_scale": 1.0}},
            "optimizer": {"learning_rate": 3e-3, "micro_batch": 4}}  # fmt: skip
    reports, _ = train(config("sft", {"times": "uniform"}, **more))
    losses = [report.numbers["loss"] for report in reports]
    assert np.mean(losses[-4:]) < 0.9 * np.mean(losses[:4])


def test_samples_that_cannot_be_read_are_found_before_anything_is_loaded(config, tmp_path, monkeypatch):
    monkeypatch.setattr(Engine, "open", None)
    folder = data_folder(tmp_path)
    chosen = config("sft", prompts=None, rewards=[], data=str(folder))
    (folder / "1.safetensors").write_bytes(b"nothing")
    with pytest.raises(ConfigError, match=r"1\.safetensors.*not a readable safetensors file"):
        make_plan(chosen)
    (folder / "1.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"1\.safetensors"):
        make_plan(chosen)
    save_file({"latents": torch.zeros(16, 1, 4, 4)}, folder / "1.safetensors")
    with pytest.raises(ConfigError, match="several shapes"):
        make_plan(chosen)
    (folder / "index.jsonl").write_text('{"prompt": ""}\n')
    with pytest.raises(ConfigError, match=r"index\.jsonl, line 1"):
        make_plan(chosen)


WRONG = {
    "no such method": ({"method": "flow_gpro"}, "method.name='flow_gpro': no such method.*nearest: flow_grpo"),
    "no such option": ({"options": {"noise": 1}}, "method.options.noise=1: no such setting.*nearest: noise_level"),
    "bad option": ({"options": {"clip": 0}}, "method.options.clip=0"),
    "no reward": ({"rewards": []}, "needs a reward"),
    "unknown reward": ({"rewards": [{"name": "beauty"}]}, "no such reward"),
    "no role": ({"result": {"model_id": "x", "role": "old"}}, "result.role='old': no such role.*reference, student"),
    "nothing to keep": ({"result": {"model_id": "x", "kept": ["vea"]}}, "result.kept='vea'.*nearest: vae"),
    "kept and trained": ({"result": {"model_id": "x", "kept": ["transformer"]}}, "result.kept='transformer'.*trained"),
    "kept in a folder": ({"result": {"model_id": "x", "kept": ["vae"]}}, "result.kept='vae'.*may move"),
    "one sample": ({"rollout": {"group_size": 1, "parameters": SDE}}, "no advantage over itself"),
    "bad size": ({"rollout": {"parameters": {**SDE, "height": 33}}}, "height=33.*nearest: 32"),
    "no such parameter": ({"rollout": {"parameters": {"hight": 32}}}, "hight=32.*nearest: height"),
    "no data": ({"method": "sft", "rewards": []}, "trains on samples"),
    "no student": ({"method": "dmd2", "rewards": []}, "distils into another loop"),
    "foreign student": ({"method": "dmd2", "student": {"name": "os:system"}}, "not a function of an installed package"),
    "bad steps": ({"method": "dmd2", "student": {**FEW, "options": {"steps": [1, 2]}}}, "falling, from 1000 to 1"),
    "no plugin": ({"plugins": {"reward.nothing": {}}}, "reward.nothing"),
    "bad decay": ({"optimizer": {"betas": [1.0, 0.9]}}, "optimizer.betas.0=1.0"),
    "no transport": ({"transport": "pigeon"}, "transport='pigeon': no such transport"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_in_a_config_is_found_before_any_compute(case, config, monkeypatch):
    changes, message = WRONG[case]
    monkeypatch.setattr(Engine, "submit_prepared", None)
    with pytest.raises(FastVideoError, match=message):
        checked = read_model(TrainConfig, config(checked=False, **changes), field="")
        with Trainer(make_plan(checked)):
            pass


def test_groups_that_do_not_divide_are_refused(config):
    chosen = config(rollout={"group_size": 2, "num_groups": 5, "parameters": SDE})
    with pytest.raises(ConfigError, match=r"rollout.num_groups=5: does not divide among 2 processes.*nearest: 4"):
        make_plan(chosen, world_size=2)


def test_resuming_with_another_config_is_refused(config):
    train(config(num_steps=1))
    with Trainer(make_plan(config(num_steps=2, seed=1))) as trainer, pytest.raises(StateError, match="another config"):
        trainer.resume()
    with (
        Trainer(make_plan(config(output="nothing"))) as trainer,
        pytest.raises(StateError, match="holds no checkpoint"),
    ):
        trainer.resume()


def test_a_folder_with_a_run_is_not_begun_anew(config):
    chosen = config(num_steps=1)
    train(chosen)
    with Trainer(make_plan(chosen)) as trainer, pytest.raises(ConfigError, match="holds a run already; resume it"):
        trainer.run()


def test_other_prompts_make_another_run(config):
    chosen = config(num_steps=1)
    train(chosen)
    Path(chosen.prompts).write_text("something else\n")
    with Trainer(make_plan(chosen)) as trainer, pytest.raises(StateError, match="another config"):
        trainer.resume()


def test_a_run_that_was_moved_with_its_prompts_goes_on(config, tmp_path):
    chosen = config(num_steps=1)
    train(chosen)
    places = {"prompts": tmp_path / "elsewhere.txt", "output": tmp_path / "moved"}
    for name, place in places.items():
        Path(getattr(chosen, name)).rename(place)
    with Trainer(make_plan(chosen.model_copy(update={name: str(place) for name, place in places.items()}))) as trainer:
        trainer.resume()
        assert trainer.step == 1


def test_what_was_logged_after_the_checkpoint_is_dropped_on_resuming(config):
    chosen = config(num_steps=1)
    train(chosen)
    path = Path(chosen.output) / "metrics.jsonl"
    path.write_text(path.read_text() + '{"step": 2, "loss": 7}\n{"step": 3, "lo')
    with Trainer(make_plan(config(num_steps=2))) as trainer:
        trainer.resume()
        trainer.run()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    assert lines[1]["loss"] != 7


def test_a_damaged_checkpoint_is_named(config):
    chosen = config(num_steps=1)
    train(chosen)
    path = next(Path(chosen.output).glob("checkpoints/*/role-student.safetensors"))
    path.write_bytes(path.read_bytes()[:-100])
    with Trainer(make_plan(chosen)) as trainer, pytest.raises(StateError, match="role-student"):
        trainer.resume()


def test_a_loss_that_is_nan_ends_the_run_with_the_last_good_checkpoint(config, monkeypatch):
    from fastvideo_rl.methods import grpo

    chosen, calls = config(num_steps=5, save_every=1), []
    real = grpo.clipped_policy_loss

    def break_third(*args):
        calls.append(1)
        return real(*args) * (float("nan") if len(calls) > 6 else 1.0)

    monkeypatch.setattr(grpo, "clipped_policy_loss", break_third)
    with Trainer(make_plan(chosen)) as trainer:
        with pytest.raises(DivergedError, match=r"the loss is nan.*checkpoints/step-0000000[12]"):
            trainer.run()
        assert all(one.isfinite().all() for one in trainer.roles.weights("student")["transformer"].values())


def test_a_gradient_that_explodes_ends_the_run_before_the_update(config):
    chosen = config(optimizer={"learning_rate": 1e-3, "diverged_norm": 1e-9})
    with Trainer(make_plan(chosen)) as trainer:
        before = {name: one.clone() for name, one in trainer.roles.weights("student")["transformer"].items()}
        with pytest.raises(DivergedError, match="has norm .* allowed: up to 1e-09.*none: the card itself"):
            trainer.run()
        after = trainer.roles.weights("student")["transformer"]
        assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_reward_that_fails_ends_groups_and_in_the_end_the_run(config, monkeypatch):
    def fail(self, samples):
        if any("red" in sample.prompt for sample in samples):
            raise RuntimeError("no red")
        return [float(sample.frames_FYX3.mean()) for sample in samples]

    monkeypatch.setattr("fastvideo_wan.shapes.reward.CentreReward.score", fail)
    reports, _ = train(config(num_steps=2))
    assert any("no red" in reason for report in reports for reason in report.reasons)
    assert sum(report.numbers["items"] for report in reports) > 0

    monkeypatch.setattr(
        "fastvideo_wan.shapes.reward.CentreReward.score", lambda self, samples: [float("nan")] * len(samples)
    )
    monkeypatch.setattr("fastvideo_rl.train.trainer.MAX_EMPTY_STEPS", 2)
    with (
        Trainer(make_plan(config(output="none", num_steps=5))) as trainer,
        pytest.raises(NoGroupsError, match="2 steps"),
    ):
        trainer.run()


def test_training_is_refused_below_the_level_that_it_needs(config, monkeypatch):
    from fastvideo_wan.loops import denoise_record

    real = denoise_record.predict
    monkeypatch.setattr(denoise_record, "predict", lambda *args, **more: real(*args, **more) * 1.001)
    with Trainer(make_plan(config())) as trainer, pytest.raises(ParityError, match="training needs C2"):
        trainer.run()


def test_weights_go_through_a_transport_too(config):
    _, direct = train(config(num_steps=2))
    _, sent = train(config(num_steps=2, output="sent", transport="local"))
    assert all(torch.equal(direct[name], sent[name]) for name in direct)


def test_a_run_leaves_numbers_pictures_and_events(config):
    chosen = config(num_steps=2, sheet_every=1, num_sheet_samples=3)
    train(chosen)
    folder = Path(chosen.output)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    assert {"reward", "reward/shapes-centre", "kl", "grad_norm", "samples_per_s", "groups_ended"} <= set(lines[0])
    assert [path.name for path in sorted((folder / "sheets").glob("*.png"))] == [
        f"step-0000000{i}.png" for i in range(3)
    ]
    assert len((folder / "sheets" / "step-00000001.txt").read_text().splitlines()) == 3
    (events,) = (folder / "tensorboard").glob("events.out.tfevents.*")
    content = events.read_bytes()
    assert b"reward/shapes-centre" in content
    assert b"samples" in content
    assert len(list((folder / "checkpoints").iterdir())) == 1


def test_a_reward_of_another_shape_is_refused_before_any_sample_is_made(config, monkeypatch):
    monkeypatch.setattr("fastvideo_wan.shapes.reward.CentreReward.score", lambda self, samples: np.zeros((2, 1)))
    monkeypatch.setattr(Engine, "submit_prepared", None)
    with pytest.raises(ConfigError, match=r"rewards='shapes-centre': .*shape \(2, 1\)"):
        Trainer(make_plan(config()))


CONFIG = """\
card: x
output: out
method: {name: sft}
result: {model_id: a}
num_steps: 1
prompts: p.txt
optimizer:
  learning_rate: -1
"""


def test_a_config_file_says_where_it_is_wrong(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(CONFIG)
    with pytest.raises(ConfigError, match=r"optimizer.learning_rate=-1: .*run\.yaml, line 8"):
        read_config(path)
    path.write_text(CONFIG.replace("-1", "0.1").replace("num_steps", "num_step"))
    with pytest.raises(ConfigError, match=r"num_step=1: no such setting .*line 5.*nearest: num_steps"):
        read_config(path)
    path.write_text(CONFIG.replace("-1", "0.1"))
    assert read_config(path).prompts == str(tmp_path / "p.txt")


def test_rollouts_in_another_number_format_are_not_trained_on(config):
    with Trainer(make_plan(config(precision="bfloat16"))) as trainer:
        assert trainer.engine.instance.precision == "bfloat16"
        with pytest.raises(ParityError, match="training needs C2"):
            trainer.run()
