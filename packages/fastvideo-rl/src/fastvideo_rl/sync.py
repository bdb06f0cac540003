"""Weight sync: from a trained role to the engine that rolls out and serves.

A plan says which role goes where, from which sharding to which, through which adapter of names and which transport. It
is checked against both ends before anything moves: an engine that is asked for what it cannot take goes on as it was.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor

from fastvideo_core.errors import ConfigError
from fastvideo_core.extend.extensions import Extensions, resolve_plugin_ref
from fastvideo_core.runtime.engine import Engine
from fastvideo_core.transport import LocalTransport, Message, Transport
from fastvideo_rl.options import nearest_name

if TYPE_CHECKING:
    from fastvideo_core.runtime.engine_holds import UpdateMode

__all__ = ["DIRECT", "SyncReport", "WeightSyncPlan", "keep_names", "open_transport", "sync_weights"]

DIRECT = "direct"
"""The transport that is none: both ends are in one process and hand references over."""

_TIMEOUT_S = 600.0

Adapter = Callable[[str], str]
"""From a name in the role's weights to the one in the engine's module."""


def keep_names(name: str) -> str:
    """Return a name as it is: the adapter of ends that have one layout."""
    return name


@dataclass(frozen=True, slots=True)
class WeightSyncPlan:
    """What goes where.

    Attributes:
        role: The role whose weights go: the student, its average, the old copy.
        component_id: The engine's component that takes them.
        source_axes: Mesh that the role's weights are spread over, sizes by axis; empty for one device.
        target_axes: Mesh of the engine.
        adapter: Names of the one in the layout of the other.
        transport: Name of the transport.
        mode: What becomes of requests that are half-way.
    """

    role: str
    component_id: str
    source_axes: Mapping[str, int] = field(default_factory=dict)
    target_axes: Mapping[str, int] = field(default_factory=dict)
    adapter: Adapter = keep_names
    transport: str = DIRECT
    mode: UpdateMode = "drain"

    def validate(
        self,
        engine: Engine,
        shapes: Mapping[str, Mapping[str, tuple[int, ...]]],
        *,
        world_size: int = 1,
        transports: Mapping[str, Any] | None = None,
    ) -> None:
        """Check the plan against both ends; nothing moves.

        Args:
            engine: The engine.
            shapes: Shapes of the weights of each role, by role and name.
            world_size: Processes that train.
            transports: Transports that there are, besides `direct` and `local`.

        Raises:
            ConfigError: A role, component or transport is not there, a mesh does not fit, or weights do not.
        """
        if self.role not in shapes:
            raise ConfigError(
                "no such role", field="sync.role", value=self.role, allowed=", ".join(shapes),
                nearest=nearest_name(self.role, shapes),
            )  # fmt: skip
        if not engine.instance.has_component(self.component_id):
            known = ", ".join(engine.instance.weights_versions)
            raise ConfigError("no such component", field="sync.component_id", value=self.component_id, allowed=known)
        self._check_meshes(world_size)
        known_transports = [DIRECT, "local", *(transports or {})]
        if self.transport not in known_transports:
            raise ConfigError(
                "no such transport", field="sync.transport", value=self.transport, allowed=", ".join(known_transports),
                nearest=nearest_name(self.transport, known_transports),
            )  # fmt: skip
        if self.mode not in ("drain", "restart"):
            raise ConfigError("no such mode", field="sync.mode", value=self.mode, allowed="drain, restart")
        self._check_layout(engine, shapes[self.role])

    def _check_meshes(self, world_size: int) -> None:
        for name, axes, count in (("source", self.source_axes, world_size), ("target", self.target_axes, 1)):
            wrong = [axis for axis, size in axes.items() if size < 1]
            if wrong or math.prod(axes.values()) != count:
                raise ConfigError(
                    "does not multiply to the number of devices", field=f"sync.{name}_axes", value=dict(axes),
                    allowed=f"a product of {count}",
                )  # fmt: skip

    def _check_layout(self, engine: Engine, shapes: Mapping[str, tuple[int, ...]]) -> None:
        module = engine.instance.component(self.component_id)
        own = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
        given = {self.adapter(name): shape for name, shape in shapes.items()}
        if len(given) != len(shapes):
            raise ConfigError("two weights have one name", field="sync.adapter", value=self.component_id)
        missing, unknown = sorted(set(own) - set(given)), sorted(set(given) - set(own))
        if missing or unknown:
            raise ConfigError(
                "the layouts do not fit", field="sync.adapter", value=(missing or unknown)[0],
                allowed="a name for each weight of the component",
            )  # fmt: skip
        for name, shape in given.items():
            if shape != own[name]:
                raise ConfigError(
                    "another shape", field=f"sync.{name}", value=list(shape), allowed=str(list(own[name]))
                )


@dataclass(frozen=True, slots=True)
class SyncReport:
    """What a sync took.

    Attributes:
        version: What the engine's weights are called now.
        num_bytes: Bytes that went.
        transfer_s: Seconds of moving and checking them, while the engine went on.
        pause_s: Seconds in which it started no request.
    """

    version: str
    num_bytes: int
    transfer_s: float
    pause_s: float


def sync_weights(
    plan: WeightSyncPlan,
    engine: Engine,
    tensors: Mapping[str, Tensor],
    version: str,
    *,
    transport: Transport | None = None,
) -> SyncReport:
    """Carry a validated plan out: move, check, freeze, replace, publish, go on.

    Args:
        plan: What goes where.
        engine: The engine.
        tensors: The role's weights, gathered.
        version: What they are called.
        transport: The plan's transport; None for `direct`.

    Raises:
        CheckpointError: They hold NaN or infinity; the engine goes on with what it has.
        TransportError: They did not come through; the same.
    """
    started_at = time.perf_counter()
    named = {plan.adapter(name): tensor for name, tensor in tensors.items()}
    arrived = named if transport is None else _through(transport, named, version)
    staged = engine.stage_weights(plan.component_id, arrived, version=version)
    frozen_at = time.perf_counter()
    engine.update_weights(staged, mode=plan.mode)
    ended_at = time.perf_counter()
    num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in named.values())
    return SyncReport(version, num_bytes, frozen_at - started_at, ended_at - frozen_at)


def open_transport(name: str, extensions: Extensions) -> Transport | None:
    """Return the transport of a name; None for `direct`.

    Raises:
        ConfigError: There is none of that name, or it does not run here.
    """
    if name == DIRECT:
        return None
    if name == "local":
        return LocalTransport()
    spec = extensions.transports.get(name)
    if spec is None:
        known = [DIRECT, "local", *extensions.transports]
        raise ConfigError(
            "no such transport", field="transport", value=name, allowed=", ".join(known),
            nearest=nearest_name(name, known),
        )  # fmt: skip
    why = None if spec.available is None else resolve_plugin_ref(name, spec, "available")()
    if why is not None:
        raise ConfigError(f"does not run here: {why}", field="transport", value=name)
    made: Transport = resolve_plugin_ref(name, spec)()
    return made


def _through(transport: Transport, tensors: Mapping[str, Tensor], version: str) -> Mapping[str, Tensor]:
    """Send tensors from one end of a transport to the other, and return what came."""
    listener = transport.listen()
    failures: list[BaseException] = []

    def send() -> None:
        try:
            channel = transport.connect(listener.address, timeout_s=_TIMEOUT_S)
            channel.send(Message({"version": version}, tensors), timeout_s=_TIMEOUT_S)
            channel.close()
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits
            failures.append(error)

    sender = threading.Thread(target=send, name="fastvideo-sync")
    sender.start()
    try:
        channel = listener.accept(timeout_s=_TIMEOUT_S)
        message = channel.receive(timeout_s=_TIMEOUT_S)
        channel.close()
    finally:
        sender.join()
        listener.close()
    if failures:
        raise failures[0]
    return message.tensors
