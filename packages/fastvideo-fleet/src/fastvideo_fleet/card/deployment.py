"""The DeploymentCard: what an engine tells a fleet about itself, as one validated, portable value.

Its cost model is the scheduler's own object: within the process nothing is copied, so what the scheduler learns the
fleet sees. Written to JSON, the card holds that object's calibrations, and reading them gives a model that predicts
the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, PlainSerializer, PlainValidator, ValidationError, model_validator

from fastvideo_core.card import CapabilityMatrix, Contract, Identifier, ModelCard, ObjectRef, ParallelPlanPattern
from fastvideo_core.card.caches import CacheClass
from fastvideo_core.cost import CostModel
from fastvideo_core.errors import FastVideoError
from fastvideo_core.loop.work import BatchKey, StepCost
from fastvideo_fleet.costs.model import ChunkCall, ModelChunkCost
from fastvideo_fleet.errors import FleetError
from fastvideo_fleet.fleet import WorkerClass

__all__ = [
    "CacheEventSpec",
    "ChunkCallSpec",
    "DeploymentCard",
    "HealthSchema",
    "RolePoolSpec",
    "SLOSchema",
    "TransferEndpoint",
    "deployment_card",
]

_MAX_BYTES = 64 << 20


def _cost_model(value: Any) -> CostModel:
    if isinstance(value, CostModel):
        return value
    if not isinstance(value, dict):
        raise ValueError(f"a cost model's calibrations are an object, not {type(value).__name__}")
    try:
        return CostModel.from_json(value)
    except FastVideoError as error:
        raise ValueError(str(error)) from error


def _calibrations(model: CostModel) -> dict[str, Any]:
    return model.to_json()


SharedCostModel = Annotated[CostModel, PlainValidator(_cost_model), PlainSerializer(_calibrations)]
"""A cost model that stays the object it is, and is written as its calibrations."""


class ChunkCallSpec(Contract):
    """A kind of call that a streamed chunk consists of; fields as of `ChunkCall`."""

    key: BatchKey
    cost: StepCost
    num_calls: int = Field(default=1, ge=1)

    def build(self) -> ChunkCall:
        """Return the call."""
        return ChunkCall(self.key, self.cost, self.num_calls)


class RolePoolSpec(Contract):
    """Workers of one role.

    Attributes:
        role: Name of the pool, such as `stream` or `decode`.
        model_card: Model that its workers hold.
        num_workers: Workers there are.
        max_workers: Workers that there may be.
        devices_per_worker: Devices of one worker.
        device: Kind of device.
        max_sessions: Most streaming sessions on one worker, K; 0 for a role without sessions.
        price_per_hour: Dollars for a worker-hour.
        start_s: Seconds from order to service.
        chunk: Calls of one chunk of a session; empty for a role without sessions.
    """

    role: Identifier
    model_card: str
    num_workers: int = Field(ge=0)
    max_workers: int = Field(ge=1)
    devices_per_worker: int = Field(default=1, ge=1)
    device: str = ""
    max_sessions: int = Field(default=0, ge=0, le=4096)
    price_per_hour: float = Field(default=0.0, ge=0)
    start_s: float = Field(default=0.0, ge=0)
    chunk: tuple[ChunkCallSpec, ...] = ()

    @model_validator(mode="after")
    def _is_consistent(self) -> RolePoolSpec:
        if self.num_workers > self.max_workers:
            raise ValueError(f"num_workers is {self.num_workers}, more than max_workers, {self.max_workers}")
        if bool(self.max_sessions) != bool(self.chunk):
            raise ValueError("a role with sessions has max_sessions and chunk, one without has neither")
        return self


class CacheEventSpec(Contract):
    """Events about a cache, for routing to where content is.

    Attributes:
        cache: Name of the cache in its model card.
        model_card: The card.
        cache_class: Kind of block.
        key_space: What the events' keys stand for.
        stream: Where the events come; "" if they are asked for.
    """

    cache: Identifier
    model_card: str
    cache_class: CacheClass
    key_space: Literal["prefix", "session", "checkpoint", "lora", "weights_version"] = "session"
    stream: str = ""


class TransferEndpoint(Contract):
    """Where states and tensors can be fetched from.

    Attributes:
        backend: Transport that it speaks, such as `nixl`.
        address: Where it is.
        bytes_per_s: Usual rate; 0 if it is not known.
    """

    backend: Identifier
    address: str = Field(min_length=1)
    bytes_per_s: float = Field(default=0.0, ge=0)


class HealthSchema(Contract):
    """How an engine says that it is well.

    Attributes:
        endpoint: Where it is asked.
        interval_s: How often it reports.
        timeout_s: After how long without a report it counts as dead.
    """

    endpoint: str = "status"
    interval_s: float = Field(default=1.0, gt=0)
    timeout_s: float = Field(default=5.0, gt=0)

    @model_validator(mode="after")
    def _waits_for_a_report(self) -> HealthSchema:
        if self.timeout_s < self.interval_s:
            raise ValueError(f"timeout_s is {self.timeout_s}, less than interval_s, {self.interval_s}")
        return self


class SLOSchema(Contract):
    """What is promised.

    Attributes:
        chunk_latency_s: For each class, most seconds that a chunk should take.
        default_class: The class of a session that names none.
        target_utilization: Share of a worker's sessions that planners should aim at.
    """

    chunk_latency_s: dict[Identifier, Annotated[float, Field(gt=0)]] = Field(default_factory=dict)
    default_class: Identifier | None = None
    target_utilization: float = Field(default=0.7, gt=0, le=1)

    @model_validator(mode="after")
    def _default_exists(self) -> SLOSchema:
        if self.default_class is not None and self.default_class not in self.chunk_latency_s:
            raise ValueError(f"default_class {self.default_class!r} is not among {sorted(self.chunk_latency_s)}")
        return self


class DeploymentCard(Contract):
    """What a fleet needs to know of an engine to route, place and scale.

    Attributes:
        schema_version: Version of this contract.
        engine_id: The engine.
        model_cards: Models that it serves, by id.
        capabilities: Tasks of all of them.
        role_pools: Its workers.
        supported_programs: Programs that it runs.
        supported_parallel_plans: Plans that its workers may use.
        cache_events: Caches that it tells of.
        transfer_endpoints: Where states can be fetched from.
        cost_model: The scheduler's cost model itself.
        health: How it says that it is well.
        slo: What is promised.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    schema_version: int = Field(default=1, ge=1, le=1)
    engine_id: Identifier
    model_cards: tuple[str, ...] = Field(min_length=1)
    capabilities: CapabilityMatrix
    role_pools: tuple[RolePoolSpec, ...] = Field(min_length=1)
    supported_programs: tuple[ObjectRef, ...] = ()
    supported_parallel_plans: tuple[ParallelPlanPattern, ...] = (ParallelPlanPattern(),)
    cache_events: tuple[CacheEventSpec, ...] = ()
    transfer_endpoints: tuple[TransferEndpoint, ...] = ()
    cost_model: SharedCostModel
    health: HealthSchema = HealthSchema()
    slo: SLOSchema = SLOSchema()

    @model_validator(mode="after")
    def _is_consistent(self) -> DeploymentCard:
        problems = list(self._problems())
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def _problems(self) -> Iterator[str]:
        roles = [pool.role for pool in self.role_pools]
        yield from (f"two role pools are named {role!r}" for role in sorted({r for r in roles if roles.count(r) > 1}))
        named = {pool.model_card for pool in self.role_pools} | {event.model_card for event in self.cache_events}
        yield from (f"model card {name!r} is not among model_cards" for name in sorted(named - set(self.model_cards)))
        programs = {task.program for task in self.capabilities.tasks.values()}
        missing = programs - set(self.supported_programs)
        yield from (f"program {name!r} of a task is not among supported_programs" for name in sorted(missing))

    def pool(self, role: str) -> RolePoolSpec:
        """Return the pool of a role.

        Raises:
            FleetError: With the roles there are.
        """
        found = next((pool for pool in self.role_pools if pool.role == role), None)
        if found is None:
            allowed = ", ".join(pool.role for pool in self.role_pools)
            raise FleetError(f"engine {self.engine_id} has no such pool", field="role", value=role, allowed=allowed)
        return found

    def chunk_cost(self, role: str) -> ModelChunkCost:
        """Return the chunk cost of a role's sessions, which asks the card's own cost model.

        Raises:
            FleetError: There is no such role, or it has no sessions.
        """
        pool = self.pool(role)
        if not pool.chunk:
            allowed = ", ".join(one.role for one in self.role_pools if one.chunk) or "none: no role has sessions"
            raise FleetError("a role without sessions", field="role", value=role, allowed=allowed)
        return ModelChunkCost(self.cost_model, [call.build() for call in pool.chunk])

    def worker_class(self, role: str) -> WorkerClass:
        """Return a role's workers as the controllers and the simulator take them."""
        pool = self.pool(role)
        return WorkerClass.of(
            pool.role,
            pool.model_card,
            self.chunk_cost(role),
            max_sessions=pool.max_sessions,
            max_gpus=pool.max_workers,
            price_per_hour=pool.price_per_hour,
            start_s=pool.start_s,
        )

    def to_json(self) -> str:
        """Return the card as JSON, calibrations included."""
        return self.model_dump_json()

    @classmethod
    def from_json(cls, text: str, *, origin: str) -> DeploymentCard:
        """Read a card.

        Args:
            text: What `to_json` gave.
            origin: Where it came from, for the error.

        Raises:
            FleetError: What is wrong, field by field, in one line.
        """
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            parts = [f"{'.'.join(map(str, one['loc'])) or 'card'}: {one['msg']}" for one in error.errors()[:8]]
            raise FleetError(f"{origin} is not a deployment card: {'; '.join(parts)}") from error

    @classmethod
    def load(cls, path: Path) -> DeploymentCard:
        """Read a card from a file.

        Raises:
            FleetError: It cannot be read, or is none.
        """
        try:
            if path.stat().st_size > _MAX_BYTES:
                raise FleetError(f"{path} is too large for a deployment card: more than {_MAX_BYTES >> 20} MiB")
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise FleetError(f"{path} cannot be read as text: {error}", allowed="a JSON file") from error
        return cls.from_json(text, origin=str(path))

    def save(self, path: Path) -> None:
        """Write the card to a file.

        Raises:
            FleetError: It cannot be written.
        """
        try:
            path.write_text(self.to_json(), encoding="utf-8")
        except OSError as error:
            raise FleetError(f"{path} cannot be written: {error}") from error


def deployment_card(
    engine_id: str, card: ModelCard, *, cost_model: CostModel, role_pools: Sequence[RolePoolSpec], **fields: Any
) -> DeploymentCard:
    """Export an engine: what its model card says, and its workers.

    Args:
        engine_id: Name of the engine.
        card: Model that it serves.
        cost_model: The scheduler's, such as `Engine.costs`.
        role_pools: Its workers.
        fields: Other fields of the card.
    """
    events = tuple(
        CacheEventSpec(cache=name, model_card=card.model_id, cache_class=cache.cache_class)
        for name, cache in card.caches.items()
    )
    programs = tuple(sorted({task.program for task in card.capabilities.tasks.values()}))
    return DeploymentCard(
        engine_id=engine_id,
        model_cards=(card.model_id,),
        capabilities=card.capabilities,
        role_pools=tuple(role_pools),
        supported_programs=programs,
        supported_parallel_plans=card.parallelism.patterns,
        **{"cache_events": events, **fields},
        cost_model=cost_model,
    )
