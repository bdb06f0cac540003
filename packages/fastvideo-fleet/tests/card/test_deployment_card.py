from __future__ import annotations

import json

import pytest

from fastvideo_core.card import CapabilityMatrix, TaskSpec
from fastvideo_core.cost import CostModel, DeviceIdentity
from fastvideo_core.loop.work import BatchKey, ShapeSignature, StepCost
from fastvideo_fleet.card import ChunkCallSpec, DeploymentCard, HealthSchema, RolePoolSpec, SLOSchema
from fastvideo_fleet.control.registry import make_policy
from fastvideo_fleet.errors import FleetError
from fastvideo_fleet.fleet import FleetSpec
from fastvideo_fleet.sim.simulator import simulate

KEY = BatchKey("engine", "transformer", "denoise", ShapeSignature.of(frames=5, rows=8), "bfloat16")
COST = StepCost(2e9, 1e6, 1e5)


@pytest.fixture
def costs():
    model = CostModel(DeviceIdentity("cuda", "a gpu"))
    for count in (1, 2, 4, 8):
        for _ in range(4):
            model.observe(KEY, COST, count, 0.08 + 0.04 * count)
    return model


@pytest.fixture
def fields(costs):
    task = TaskSpec(program="pkg.programs:Stream", inputs={}, outputs={"video": "video"})
    return {
        "engine_id": "engine-0",
        "model_cards": ("longlive",),
        "capabilities": CapabilityMatrix(tasks={"stream": task}, default_task="stream"),
        "role_pools": (
            RolePoolSpec(
                role="stream", model_card="longlive", num_workers=2, max_workers=8, max_sessions=8, price_per_hour=1.5,
                start_s=20.0, chunk=(ChunkCallSpec(key=KEY, cost=COST, num_calls=4),),
            ),
            RolePoolSpec(role="decode", model_card="longlive", num_workers=1, max_workers=1),
        ),
        "supported_programs": ("pkg.programs:Stream",),
        "cost_model": costs,
        "slo": SLOSchema(chunk_latency_s={"live": 1.0}, default_class="live"),
    }  # fmt: skip


def test_the_cost_model_is_the_schedulers_own(fields, costs):
    card = DeploymentCard(**fields)
    assert card.cost_model is costs
    before = card.chunk_cost("stream").chunk_seconds(1)
    for _ in range(60):
        costs.observe(KEY, COST, 1, 0.5)
    assert before == pytest.approx(4 * 0.12, rel=0.01)
    assert card.chunk_cost("stream").chunk_seconds(1) == pytest.approx(4 * 0.5, rel=0.05)


def test_a_card_survives_export_and_import(fields, tmp_path):
    card = DeploymentCard(**fields)
    card.save(tmp_path / "card.json")
    again = DeploymentCard.load(tmp_path / "card.json")
    assert again.to_json() == card.to_json()
    assert [again.chunk_cost("stream").chunk_seconds(n) for n in range(1, 9)] == [
        card.chunk_cost("stream").chunk_seconds(n) for n in range(1, 9)
    ]
    assert again.role_pools == card.role_pools
    assert again.role_pools[0].chunk[0].key == KEY


def test_a_card_describes_a_fleet_that_can_be_simulated(fields, short_trace):
    trace, _ = short_trace
    worker = DeploymentCard(**fields).worker_class("stream")
    assert (worker.max_gpus, worker.max_sessions, worker.start_s) == (8, 8, 20.0)
    assert worker.chunk_s[2] == pytest.approx(4 * 0.16, rel=0.02)
    assert simulate(trace, FleetSpec((worker,)), make_policy("fastvideo")).num_chunks > 1000


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"role_pools": ()}, "role_pools"),
        ({"model_cards": ("other",)}, "model card 'longlive' is not among model_cards"),
        ({"supported_programs": ()}, "program 'pkg.programs:Stream' of a task is not among"),
        ({"engine_id": "Engine 0"}, "engine_id"),
        ({"cost_model": 3}, "cost_model"),
        ({"gpus": 3}, "gpus: Extra"),
    ],
)
def test_what_contradicts_itself_is_refused(fields, change, message):
    document = json.loads(DeploymentCard(**fields).to_json())
    document |= {name: list(value) if isinstance(value, tuple) else value for name, value in change.items()}
    with pytest.raises(FleetError, match=message):
        DeploymentCard.from_json(json.dumps(document), origin="card.json")


def test_two_pools_of_one_role_are_refused(fields):
    pool = fields["role_pools"][1]
    with pytest.raises(ValueError, match="two role pools are named 'decode'"):
        DeploymentCard(**(fields | {"role_pools": (*fields["role_pools"], pool)}))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RolePoolSpec(role="x", model_card="m", num_workers=3, max_workers=2), "more than max_workers"),
        (lambda: RolePoolSpec(role="x", model_card="m", num_workers=1, max_workers=2, max_sessions=4), "neither"),
        (lambda: SLOSchema(default_class="gold"), "default_class 'gold'"),
        (lambda: HealthSchema(interval_s=10.0), "less than interval_s"),
    ],
)
def test_parts_check_themselves(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_unknown_roles_and_roles_without_sessions_are_named(fields):
    card = DeploymentCard(**fields)
    with pytest.raises(FleetError, match=r"role='encode'.*allowed: stream, decode"):
        card.pool("encode")
    with pytest.raises(FleetError, match=r"role='decode'.*allowed: stream"):
        card.worker_class("decode")


def test_broken_files_are_refused(tmp_path):
    with pytest.raises(FleetError, match="cannot be read"):
        DeploymentCard.load(tmp_path / "missing.json")
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(FleetError, match="engine_id: Field required"):
        DeploymentCard.load(tmp_path / "x.json")
