"""Self-forcing on a small causal model: its numbers against their formula, and runs from teacher to card."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

from fastvideo_core.errors import ConfigError, FastVideoError
from fastvideo_core.loop.behavior import StepBehavior
from fastvideo_core.loop.samplers import Schedule
from fastvideo_core.runtime.catalog import Catalog
from fastvideo_core.runtime.engine import Engine
from fastvideo_rl.evaluation import ship_run
from fastvideo_rl.methods.base import MethodContext
from fastvideo_rl.methods.dmd2 import DMD2Options
from fastvideo_rl.methods.self_forcing import SelfForcing, exit_level
from fastvideo_rl.rollout.records import BehaviorRecord, Group
from fastvideo_rl.train.assemble import make_plan
from fastvideo_rl.train.config import TrainConfig
from fastvideo_rl.train.trainer import Trainer

SIZE = {"num_frames": 33, "height": 32, "width": 32}
"""Three chunks, of which the last one no longer sees the first."""

SIGMAS = (1.0, 0.8, 0.0)


@pytest.fixture(scope="module")
def causal_folder(folder, tmp_path_factory):
    """Return a folder with the small model's weights that says that it makes streams, three latent frames a chunk."""
    made = tmp_path_factory.mktemp("rl-causal") / "causal"
    shutil.copytree(folder, made)
    for file, fields in {
        "transformer/config.json": {
            "_class_name": "CausalWanTransformer3DModel", "num_frames_per_block": 3, "local_attn_size": 6,
        },
        "model_index.json": {
            "_class_name": "WanCausalDMDPipeline", "transformer": ["diffusers", "CausalWanTransformer3DModel"],
        },
    }.items():  # fmt: skip
        content = json.loads((made / file).read_text())
        (made / file).write_text(json.dumps({**content, **fields}))
    return made


@pytest.fixture
def config(causal_folder, folder, tmp_path):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("a red circle\na blue square moving left\n")
    slab = Catalog.installed().read_folder(causal_folder).caches["chunk_kv"].block_bytes

    def make(output="run", **more):
        base = {
            "card": str(causal_folder),
            "teacher": str(folder),
            "output": str(tmp_path / output),
            "method": {"name": "self_forcing", "options": {"student_every": 2, "guidance_scale": 2.0}},
            "prompts": str(prompts),
            "rollout": {"group_size": 1, "num_groups": 2, "parameters": SIZE},
            "optimizer": {"learning_rate": 1e-3, "micro_batch": 1},
            "caches": {"chunk_kv": 16 * slab},
            "result": {"model_id": "small-forced"},
            "num_steps": 2,
            "device": "cpu",
        }
        return TrainConfig.model_validate({**base, **more})

    return make


class ByChunk:
    """Roles whose prediction is a linear function of the sample, and of the chunk's number."""

    def __init__(self):
        self.weight = torch.tensor([0.3, 0.2], dtype=torch.float64, requires_grad=True)
        self.asked = []

    def predict(self, role, queries, *, has_gradient=False):
        self.asked += [(role, query.chunk, query.timestep, query.guidance_scale, query.past) for query in queries]
        a, b = {"student": self.weight, "critic": (0.1, 0.0), "teacher": (0.2, 0.0)}[role]
        found = torch.cat([a * query.sample_1CTHW + b * query.chunk for query in queries])
        return found if has_gradient else found.detach()


def record(generator):
    """Return a record of two chunks of one and two frames, each of two levels."""
    steps = []
    for chunk, frames in enumerate((1, 2)):
        for level in range(2):
            sample = torch.randn(1, 2, frames, 3, 3, generator=generator, dtype=torch.float64)
            prediction = 0.3 * sample + 0.2 * chunk
            past = {"cond": (("k", "v"),) * chunk}
            steps.append(
                StepBehavior(level, "t", ("cond",), 1.0, sample, prediction, sample, None, "v", chunk, past)
            )  # fmt: skip
    times = (1000.0, 800.0)
    schedule = Schedule("", torch.tensor(SIGMAS), torch.tensor(times), SIGMAS, times, 1000, 1.0, 1, 0, ())
    last = [step for step in steps if step.step_index == 1]
    latents = torch.cat([step.sample_1CTHW - 0.8 * step.prediction_1CTHW for step in last], dim=2)
    return BehaviorRecord("p", 0, {}, "own", schedule, tuple(steps), latents, "v", None)


def test_the_students_gradient_is_that_of_whole_samples():
    generator = torch.Generator().manual_seed(1)
    records = [record(generator) for _ in range(2)]
    roles = ByChunk()
    method = SelfForcing(DMD2Options(guidance_scale=3.0, student_every=1))
    ctx = MethodContext(roles, 0, 1, 0, torch.Generator().manual_seed(5), teacher_inputs={"p": "teachers"})
    items = method.items([Group("p", records)], ctx)
    noises = torch.Generator().manual_seed(5)
    torch.rand(2, generator=noises)  # the levels
    (found,) = torch.autograd.grad(method.loss(items, ctx).value, roles.weight)
    want = torch.zeros(2, dtype=torch.float64)
    for one, item in zip(records, items, strict=True):
        x0 = one.latents_1CTHW
        noise = torch.randn(x0.shape, generator=noises)
        noisy = (1 - item.level) * x0 + item.level * noise
        fake, real = noisy - item.level * 0.1 * noisy, noisy - item.level * 0.2 * noisy
        direction = (fake - real) / (x0 - real).abs().mean()
        last = [step for step in one.steps if step.step_index == 1]
        slopes = [
            torch.cat([-0.8 * step.sample_1CTHW for step in last], dim=2),
            torch.cat([torch.full_like(step.sample_1CTHW, -0.8 * step.chunk) for step in last], dim=2),
        ]
        want += torch.stack([(direction * slope).mean() for slope in slopes]) / 2
    torch.testing.assert_close(found, want, rtol=1e-6, atol=1e-9)
    students = [asked for asked in roles.asked if asked[0] == "student"]
    assert [(chunk, time) for _, chunk, time, _, _ in students] == [(0, 800.0)] * 2 + [(1, 800.0)] * 2
    assert all(len(past["cond"]) == chunk for _, chunk, _, _, past in students)


def test_every_level_is_the_last_as_often_as_the_others():
    for seed in range(3):
        levels = [exit_level(step, seed, 4) for step in range(40)]
        assert all(sorted(levels[turn : turn + 4]) == [0, 1, 2, 3] for turn in range(0, 40, 4))
    assert len({tuple(exit_level(step, 0, 4) for step in range(turn, turn + 4)) for turn in range(0, 400, 4)}) > 10


def test_a_run_matches_a_teacher_of_another_loop_and_ships_a_card_of_streams(config, folder):
    with Trainer(make_plan(config())) as trainer:
        before = {
            role: [one.detach().clone() for one in trainer.roles.roles[role].modules["transformer"].parameters()]
            for role in ("student", "critic", "teacher")
        }
        reports = []
        trainer.run(reports.append)
        changed = {
            role: any(
                not torch.equal(one, other)
                for one, other in zip(
                    tensors, trainer.roles.roles[role].modules["transformer"].parameters(), strict=True
                )
            )
            for role, tensors in before.items()
        }
        assert changed == {"student": True, "critic": True, "teacher": False}
        assert "critic_loss" in reports[0].numbers and "student_loss" in reports[1].numbers
        assert trainer.gate.level.value == "C2" and trainer.gate.num_steps > 0
        made = ship_run(trainer)
    card = Catalog.installed().find(str(made))
    assert card.recipe.method == "self_forcing"
    assert card.recipe.assumes_loop == "chunk_rollout"
    assert card.recipe.parents == ("causal", folder.name)
    with Engine.open(card) as engine:
        assert engine.generate("a red circle", seed=1, **SIZE).video.frames.shape == (33, 32, 32, 3)


def test_a_resumed_run_is_to_the_bit_the_one_that_was_not_stopped(config):
    def weights_after(trainer):
        trainer.run()
        return {name: one.clone() for name, one in trainer.roles.weights("student")["transformer"].items()}

    with Trainer(make_plan(config("whole", num_steps=2))) as trainer:
        whole = weights_after(trainer)
    with Trainer(make_plan(config("parts", num_steps=1))) as trainer:
        trainer.run()
    with Trainer(make_plan(config("parts", num_steps=2))) as trainer:
        trainer.resume()
        resumed = weights_after(trainer)
    assert all(torch.equal(tensor, resumed[name]) for name, tensor in whole.items())


def test_teachers_that_cannot_be_are_refused_before_any_compute(config, causal_folder, folder, monkeypatch):
    monkeypatch.setattr(Engine, "submit_prepared", None)
    with pytest.raises(ConfigError, match="chunk by chunk; a teacher looks at whole ones"):
        make_plan(config(teacher=str(causal_folder)))
    with pytest.raises(ConfigError, match="or name a teacher"):
        make_plan(config(teacher=None))
    with pytest.raises(ConfigError, match="sft asks no teacher"):
        make_plan(config(method={"name": "sft"}))
    with pytest.raises(FastVideoError, match=r"num_frames=32: .*nearest: 33"):
        make_plan(config(rollout={"parameters": {**SIZE, "num_frames": 32}}))
