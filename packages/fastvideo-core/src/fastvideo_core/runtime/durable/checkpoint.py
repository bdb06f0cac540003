"""Checkpoints of one job: a small manifest, and files of tensors that it shares with the checkpoints before it.

A state is a tree of plain values that refers to tensors. States move references and never change a tensor, so most of
them (encoded prompts, contexts, schedules) are the same objects step after step; these are written once. The manifest
is replaced last, and only then are files removed that it does not name: at every instant one whole checkpoint is there.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch

from fastvideo_core.card import ModelCard, resolve_ref
from fastvideo_core.errors import FastVideoError, StateError, describe_failure
from fastvideo_core.loop.state import decode_tree, encode_tree, place_tensor, state_schema, tensor_layout
from fastvideo_core.runtime.durable.base import FinishedNode, NodeState, RunningNode
from fastvideo_core.runtime.durable.disk import STALE_PREFIX, Disk
from fastvideo_core.runtime.durable.sealed import seal, unseal
from fastvideo_core.runtime.durable.tensors import TensorReader, write_tensors

__all__ = ["CHECKPOINT", "Snapshot", "TensorLedger", "capture", "load_checkpoint", "write_checkpoint"]

CHECKPOINT = "checkpoint.json"
"""The manifest's name in a job's folder."""

_FORMAT = "fastvideo-checkpoint/1"
_PACK = re.compile(r"tensors-(\d+)\.safetensors")
_MIN_LIVE_SHARE = 0.5
"""If fewer of all bytes are still of use, what is left in files with fewer is written anew."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where a tensor was written.

    Attributes:
        pack: Name of the file.
        sha256: Digest of its bytes.
        num_bytes: How many.
    """

    pack: str
    sha256: str
    num_bytes: int


@dataclass(frozen=True, slots=True)
class _Sighting:
    """A tensor object as it was when it was seen."""

    ref: weakref.ref[torch.Tensor]
    version: int
    name: str


@dataclass(slots=True)
class TensorLedger:
    """What is on the disk of one job.

    Attributes:
        stored: Tensors of the last checkpoint, by name.
        pack_bytes: Size of each file of tensors.
        num_packs: Files made so far; their names count up.
        num_names: Names given so far.
    """

    stored: dict[str, StoredTensor] = field(default_factory=dict)
    pack_bytes: dict[str, int] = field(default_factory=dict)
    num_packs: int = 0
    num_names: int = 0
    _seen: dict[int, _Sighting] = field(default_factory=dict)

    def name_of(self, tensor: torch.Tensor) -> str | None:
        """Return the name of a tensor that is on the disk as it is now; None if it is not."""
        seen = self._seen.get(id(tensor))
        if seen is None or seen.ref() is not tensor or seen.version != _version(tensor):
            return None
        return seen.name if seen.name in self.stored else None

    def new_name(self) -> str:
        """Return a name that no tensor has had."""
        self.num_names += 1
        return f"t{self.num_names}"

    def remember(self, tensors: Mapping[str, torch.Tensor], versions: Mapping[str, int | None]) -> None:
        """Note the tensor objects of the checkpoint that is on the disk now, without keeping them.

        If more of the disk is taken by what is of no use any more, tensors in files that are mostly that are left out,
        so that they move to the next file and theirs can go.
        """
        live = _sizes(self.stored)
        is_wasteful = sum(live.values()) < _MIN_LIVE_SHARE * sum(self.pack_bytes.values())
        sparse = {pack for pack, size in live.items() if is_wasteful and size < _MIN_LIVE_SHARE * self.pack_bytes[pack]}
        self._seen = {
            id(tensor): _Sighting(weakref.ref(tensor), version, name)
            for name, tensor in tensors.items()
            if (version := versions[name]) is not None and self.stored[name].pack not in sparse
        }


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The nodes of a job at one moment; later steps do not change it.

    Attributes:
        nodes: Their trees.
        tensors: What the trees refer to, by name: the states' own tensors.
        versions: How often each had been changed in place.
    """

    nodes: dict[str, dict[str, Any]]
    tensors: dict[str, torch.Tensor]
    versions: dict[str, int | None]


def capture(
    nodes: Mapping[str, NodeState], card: ModelCard, ledger: TensorLedger, *, is_incremental: bool = True
) -> Snapshot:
    """Take down the nodes of a job as they are; copies no tensor.

    A finished node of a loop that does not say how to store its results is left out, and will be run again.

    Args:
        nodes: The nodes.
        card: Their card.
        ledger: What is on the disk.
        is_incremental: Whether what is on the disk counts; if not, all tensors are going to be written.

    Raises:
        StateError: A state holds something that cannot be stored.
    """
    tensors: dict[str, torch.Tensor] = {}
    names: dict[int, str] = {}

    def put(tensor: torch.Tensor) -> dict[str, Any]:
        known = ledger.name_of(tensor) if is_incremental else None
        name = names.get(id(tensor)) or known or ledger.new_name()
        names[id(tensor)] = name
        tensors[name] = tensor  # kept, so that no other object can take its identity
        return {"tensor": name, **tensor_layout(tensor)}

    trees = {}
    for node_id, node in nodes.items():
        value, facts = _value_of(node, card)
        if facts is not None:
            schema = None if value is None else state_schema(type(value))
            trees[node_id] = {**facts, "schema": schema, "tree": None if value is None else encode_tree(value, put)}
    return Snapshot(trees, tensors, {name: _version(tensor) for name, tensor in tensors.items()})


def write_checkpoint(disk: Disk, folder: Path, job_id: str, snapshot: Snapshot, ledger: TensorLedger) -> None:
    """Write a snapshot as the job's checkpoint, in place of the one before.

    Raises:
        StateError: A tensor was changed in place meanwhile; the checkpoint before is still there.
        OSError: It cannot be written; the same.
    """
    new = {name: tensor for name, tensor in snapshot.tensors.items() if name not in ledger.stored}
    pack = folder / f"tensors-{ledger.num_packs}.safetensors"
    ledger.num_packs += 1
    stored = {name: one for name, one in ledger.stored.items() if name in snapshot.tensors}
    try:
        stored |= _write_pack(disk, pack, new, snapshot.versions)
        table = {name: {"pack": one.pack, "sha256": one.sha256} for name, one in stored.items()}
        content = {"job_id": job_id, "nodes": snapshot.nodes, "tensors": table}
        staged, _ = disk.stage(folder / CHECKPOINT, [seal(_FORMAT, content)])
    except (OSError, StateError):
        disk.sweep(pack)
        raise
    disk.rename(staged, folder / CHECKPOINT)
    ledger.pack_bytes |= {pack.name: sum(_num_bytes(tensor) for tensor in new.values())} if new else {}
    ledger.stored = stored
    _forget_unused(disk, folder, ledger)
    ledger.remember(snapshot.tensors, snapshot.versions)


def load_checkpoint(
    disk: Disk, folder: Path, job_id: str, card: ModelCard, device: torch.device | None
) -> tuple[dict[str, NodeState], TensorLedger]:
    """Read the checkpoint of a job, if it has one, and remove what a crash has left beside it.

    Args:
        disk: Where.
        folder: The job's folder.
        job_id: The job.
        card: Its card, which names the classes of its states.
        device: Where tensors go that were on a device.

    Raises:
        StateError: A file of it is missing, corrupt, another job's, or of another version.
    """
    content = _read_manifest(folder, job_id)
    ledger = TensorLedger(num_packs=_next_pack(folder))
    if content is None:
        _forget_unused(disk, folder, ledger)
        return {}, ledger
    reader = TensorReader(folder)
    tensors: dict[str, torch.Tensor] = {}

    def get(node: Mapping[str, Any]) -> torch.Tensor:
        name = node["tensor"]
        if name not in tensors:
            entry = content["tensors"][name]
            values = reader.read(entry["pack"], name, entry["sha256"])
            tensors[name] = place_tensor(values, node, device)
            ledger.stored[name] = StoredTensor(entry["pack"], entry["sha256"], _num_bytes(values))
        return tensors[name]

    try:
        nodes = {node_id: _decode_node(node, card, get) for node_id, node in content["nodes"].items()}
        ledger.num_names = max((int(name.removeprefix("t")) for name in content["tensors"]), default=0)
    except FastVideoError as error:
        raise StateError(f"{folder / CHECKPOINT}: {error}") from error
    except (LookupError, AttributeError, TypeError, ValueError) as error:
        raise StateError(f"{folder / CHECKPOINT} does not fit: {describe_failure(error)}") from error
    ledger.pack_bytes = {pack: (folder / pack).stat().st_size for pack in _sizes(ledger.stored)}
    _forget_unused(disk, folder, ledger)
    ledger.remember(tensors, {name: _version(tensor) for name, tensor in tensors.items()})
    return nodes, ledger


def _value_of(node: NodeState, card: ModelCard) -> tuple[Any, dict[str, Any] | None]:
    """Return what is encoded of a node, and the plain facts; no facts if it cannot be stored."""
    if isinstance(node, RunningNode):
        return node.state, {"kind": "running", "loop": node.loop_id, "num_committed": node.num_committed}
    facts = {"kind": "finished", "loop": node.loop_id}
    if node.outputs is None:
        return None, facts
    schema = card.loops[node.loop_id].outputs_schema
    if schema is None:
        return None, None
    try:
        return resolve_ref(schema)(**node.outputs), facts
    except TypeError as error:
        raise StateError(f"the results of loop {node.loop_id} do not fit {schema!r}: {error}") from error


def _decode_node(node: Mapping[str, Any], card: ModelCard, get: Any) -> NodeState:
    loop_id = node["loop"]
    if loop_id not in card.loops:
        raise StateError(f"runs loop {loop_id!r}, which card {card.model_id} does not have")
    spec = card.loops[loop_id]
    if node["kind"] == "running":
        state = _decode_value(node, resolve_ref(spec.state_schema), get)
        return RunningNode(loop_id, state, int(node["num_committed"]))
    if node["tree"] is None:
        return FinishedNode(loop_id, None)
    if spec.outputs_schema is None:
        raise StateError(f"holds results of loop {loop_id!r}, which does not store any")
    outputs = _decode_value(node, resolve_ref(spec.outputs_schema), get)
    return FinishedNode(loop_id, {one.name: getattr(outputs, one.name) for one in fields(outputs)})


def _decode_value(node: Mapping[str, Any], cls: type[Any], get: Any) -> Any:
    if node["schema"] != state_schema(cls):
        raise StateError(f"holds a {node['schema']!r}; this version reads {state_schema(cls)!r}")
    return decode_tree(node["tree"], cls, get)


def _read_manifest(folder: Path, job_id: str) -> dict[str, Any] | None:
    path = folder / CHECKPOINT
    try:
        content = unseal(_FORMAT, path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StateError(f"{path} cannot be read: {error.strerror or error}") from error
    except StateError as error:
        raise StateError(f"{path} {error}") from error
    if content.get("job_id") != job_id:
        raise StateError(f"{path} is of another job, {content.get('job_id')!r}")
    return content


def _write_pack(
    disk: Disk, pack: Path, tensors: Mapping[str, torch.Tensor], versions: Mapping[str, int | None]
) -> dict[str, StoredTensor]:
    if not tensors:
        return {}
    digests = write_tensors(disk, pack, tensors)
    disk.sync_folder(pack.parent)
    if changed := sum(_version(tensor) != versions[name] for name, tensor in tensors.items()):
        raise StateError(f"{changed} tensors of a state were changed in place; a step has to make new ones")
    return {name: StoredTensor(pack.name, digests[name], _num_bytes(tensor)) for name, tensor in tensors.items()}


def _forget_unused(disk: Disk, folder: Path, ledger: TensorLedger) -> None:
    used = {one.pack for one in ledger.stored.values()}
    for path in sorted(folder.iterdir()):
        is_pack = _PACK.fullmatch(path.name) is not None
        if path.name.startswith(STALE_PREFIX) or (is_pack and path.name not in used):
            disk.sweep(path)
            ledger.pack_bytes.pop(path.name, None)


def _next_pack(folder: Path) -> int:
    numbers = [int(found[1]) for path in folder.iterdir() if (found := _PACK.fullmatch(path.name))]
    return max(numbers, default=-1) + 1


def _sizes(stored: Mapping[str, StoredTensor]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for one in stored.values():
        sizes[one.pack] = sizes.get(one.pack, 0) + one.num_bytes
    return sizes


def _num_bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _version(tensor: torch.Tensor) -> int | None:
    """Return how often a tensor was changed in place; None if torch does not count that."""
    return None if tensor.is_inference() else tensor._version  # noqa: SLF001 - torch documents it in its notes on autograd
