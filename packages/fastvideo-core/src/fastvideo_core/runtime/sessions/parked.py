"""The state of a stream between two chunks, taken apart: kept in host memory, written to disk, or sent elsewhere.

The tensors are those of the state, bytes of all cache blocks included, so that a stream goes on with the same bits.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from fastvideo_core.card import ModelCard, resolve_ref
from fastvideo_core.errors import StateError, describe_failure
from fastvideo_core.loop.chunks import move_state
from fastvideo_core.loop.state import (
    IS_ON_DEVICE,
    decode_tree,
    encode_tree,
    host_tensor,
    place_tensor,
    state_schema,
    tensor_layout,
)
from fastvideo_core.runtime.durable.base import RunningNode
from fastvideo_core.runtime.durable.disk import Disk
from fastvideo_core.runtime.durable.tensors import TensorReader, write_tensors
from fastvideo_core.runtime.sessions.marks import Place

__all__ = [
    "FiledState",
    "HeldState",
    "ParkedState",
    "describe_parked",
    "digest_of",
    "hold",
    "pack",
    "parse_parked",
    "read_parked",
    "remove_parked",
    "unpack",
    "write_parked",
]

_FORMAT = "fastvideo-session/1"
_WORDS = 1024


@dataclass(frozen=True, slots=True)
class ParkedState:
    """A stream between two chunks.

    Attributes:
        document: Plain data: the place in the stream, and the state's tree, which refers to the tensors.
        tensors: Tensors in host memory by name. Nobody writes to them.
    """

    document: Mapping[str, Any]
    tensors: Mapping[str, torch.Tensor]

    @property
    def place(self) -> Place:
        """Where in the stream it is."""
        return Place(**self.document["place"])

    @property
    def num_bytes(self) -> int:
        """Bytes of its tensors."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors.values())


@dataclass(frozen=True, slots=True)
class HeldState:
    """A stream between two chunks in host memory, whole: nothing of it is on a device or in a pool.

    Attributes:
        node: Its loop and state. Nobody writes to it: `placed` gives copies to run.
        place: Where in the stream it is.
        device_ids: The `id` of each tensor of the state that belongs on a device.
    """

    node: RunningNode
    place: Place
    device_ids: frozenset[int] = frozenset()

    @property
    def num_bytes(self) -> int:
        """Bytes of its tensors, each counted once."""
        found: dict[int, int] = {}

        def count(tensor: torch.Tensor) -> torch.Tensor:
            found[id(tensor)] = tensor.numel() * tensor.element_size()
            return tensor

        move_state(self.node.state, count)
        return sum(found.values())

    def placed(self, device: torch.device) -> RunningNode:
        """Return a copy that can run; it shares the tensors that stay on the host."""
        moved: dict[int, torch.Tensor] = {}

        def place(tensor: torch.Tensor) -> torch.Tensor:
            if id(tensor) not in self.device_ids:
                return tensor
            if id(tensor) not in moved:
                moved[id(tensor)] = tensor.to(device)
            return moved[id(tensor)]

        return replace(self.node, state=move_state(self.node.state, place))


@dataclass(frozen=True, slots=True)
class FiledState:
    """A stream between two chunks in a file.

    Attributes:
        path: What `write_parked` wrote.
        place: Where in the stream it is.
    """

    path: Path
    place: Place


def hold(node: RunningNode, place: Place) -> HeldState:
    """Take the state of a stream to host memory; only what is on a device is copied."""
    moved: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def take(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device.type == "cpu":
            return tensor
        if id(tensor) not in moved:
            moved[id(tensor)] = tensor, host_tensor(tensor)  # with the original, so that its id stays its own
        return moved[id(tensor)][1]

    held = replace(node, state=move_state(node.state, take))
    return HeldState(held, place, frozenset(id(copy) for _, copy in moved.values()))


def pack(node_id: str, held: HeldState) -> ParkedState:
    """Take the state of a stream apart; tensors that lie contiguous are shared.

    Raises:
        StateError: The state holds what a state cannot hold.
    """
    tensors: dict[str, torch.Tensor] = {}
    known: dict[int, tuple[torch.Tensor, dict[str, Any]]] = {}

    def put(tensor: torch.Tensor) -> dict[str, Any]:
        # What occurs twice is kept, and sent, once. The original is kept too, so that its id stays its own.
        if id(tensor) not in known:
            layout = tensor_layout(tensor) | ({IS_ON_DEVICE: True} if id(tensor) in held.device_ids else {})
            known[id(tensor)] = tensor, {"tensor": str(len(tensors)), **layout}
            tensors[str(len(tensors))] = host_tensor(tensor).contiguous()
        return known[id(tensor)][1]

    document = {
        "format": _FORMAT,
        "node_id": node_id,
        "loop_id": held.node.loop_id,
        "num_committed": held.node.num_committed,
        "place": asdict(held.place),
        "schema": state_schema(type(held.node.state)),
        "tree": encode_tree(held.node.state, put),
    }
    return ParkedState(document, tensors)


def unpack(parked: ParkedState, card: ModelCard) -> HeldState:
    """Put a state together again; it shares the tensors that lay contiguous.

    Args:
        parked: What `pack` gave.
        card: The card whose loop it is of.

    Raises:
        StateError: It is no such state, or of another loop or version.
    """
    document = parked.document
    device_ids: set[int] = set()
    made: dict[str, torch.Tensor] = {}
    try:
        loop_id, schema = document["loop_id"], document["schema"]
        if document["format"] != _FORMAT:
            raise StateError(f"the state is of format {document['format']!r}; this version reads {_FORMAT!r}")
        spec = card.loops.get(loop_id)
        cls = None if spec is None else resolve_ref(spec.state_schema)
        if cls is None or state_schema(cls) != schema:
            raise StateError(f"the state is of {schema} in loop {loop_id}, which card {card.model_id} does not have")

        def get(node: Mapping[str, Any]) -> torch.Tensor:
            name = node["tensor"]
            if name not in made:
                stored = parked.tensors[name]
                made[name] = place_tensor(stored, node, None) if "stride" in node else stored
                if node.get(IS_ON_DEVICE):
                    device_ids.add(id(made[name]))
            return made[name]

        node = RunningNode(loop_id, decode_tree(document["tree"], cls, get), int(document["num_committed"]))
        return HeldState(node, parked.place, frozenset(device_ids))
    except (LookupError, TypeError, ValueError) as error:
        raise StateError(f"the state of a session is no such state: {type(error).__name__}: {error}") from error


def digest_of(parked: ParkedState) -> str:
    """Return what tells a state from one that was changed on its way: by a fault, not by somebody who means to.

    All bytes enter, weighted by their place, at the speed of memory.
    """
    digest = hashlib.sha256(json.dumps(parked.document, sort_keys=True).encode())
    for name in sorted(parked.tensors):
        tensor = parked.tensors[name]
        digest.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)} {_checksum(tensor)}".encode())
    return digest.hexdigest()


def _checksum(tensor: torch.Tensor) -> tuple[int, ...]:
    data = tensor.reshape(-1).view(torch.uint8)
    whole = data.numel() // (8 * _WORDS) * (8 * _WORDS)
    tail = hashlib.sha256(data[whole:].numpy().data).digest()
    if not whole:
        return (int.from_bytes(tail, "big"),)
    rows = data[:whole].view(torch.int64).view(-1, _WORDS)
    by_column = (rows.sum(dim=0) * _odd(_WORDS)).sum()
    by_row = (rows.sum(dim=1) * _odd(len(rows))).sum()
    return (int(by_column), int(by_row), int.from_bytes(tail, "big"))


def _odd(count: int) -> torch.Tensor:
    """Return different odd numbers, so that no single changed word, nor two that changed places, add up to nothing."""
    return torch.arange(count) * 0x5851F42D4C957F2E + 0x14057B7EF767814F


def write_parked(parked: ParkedState, path: Path, *, disk: Disk | None = None) -> None:
    """Write a state as a JSON file and a file of tensors beside it; whole or not at all, durable when it returns.

    Args:
        parked: The state.
        path: The JSON file; its folder is made if it is missing.
        disk: How it is written.

    Raises:
        OSError: It cannot be written; what was there before under that name still is.
        StateError: It holds a number format that safetensors does not have.
    """
    disk = disk or Disk()
    path.parent.mkdir(parents=True, exist_ok=True)
    old = _tensors_of(path)
    # Never the name of what is there: until the document is replaced, that is the state.
    tensors = path.with_name(f"{path.stem}.{secrets.token_hex(8)}.safetensors")
    disk.replace(path, [describe_parked(parked, tensors, disk).encode()])
    if old is not None:
        disk.remove(old)


def describe_parked(parked: ParkedState, tensors: Path, disk: Disk) -> str:
    """Write the tensors of a state to a file, durable when this returns, and return all the rest of it as JSON.

    Raises:
        OSError: It cannot be written.
        StateError: The state holds a number format that safetensors does not have.
    """
    digests = write_tensors(disk, tensors, parked.tensors)
    disk.sync_folder(tensors.parent)
    return json.dumps({"document": dict(parked.document), "file": tensors.name, "digests": digests})


def remove_parked(path: Path, *, disk: Disk | None = None) -> None:
    """Remove what `write_parked` wrote, if it is there."""
    disk, tensors = disk or Disk(), _tensors_of(path)
    disk.remove(path)
    if tensors is not None:
        disk.remove(tensors)


def read_parked(path: Path) -> ParkedState:
    """Read what `write_parked` wrote.

    Raises:
        StateError: A file is missing, corrupt or cut short.
    """
    try:
        text = path.read_bytes()
    except OSError as error:
        raise StateError(f"{path} is missing: {describe_failure(error)}") from error
    return parse_parked(text, path.parent)


def parse_parked(text: bytes, folder: Path) -> ParkedState:
    """Return a state of what `describe_parked` gave, and of the file in a folder that it names.

    Raises:
        StateError: Something is missing, corrupt or cut short.
    """
    try:
        stored = json.loads(text)
        reader = TensorReader(folder)
        tensors = {name: reader.read(stored["file"], name, sha256) for name, sha256 in stored["digests"].items()}
        return ParkedState(stored["document"], tensors)
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise StateError(
            f"the state of a session in {folder} is missing, corrupt or cut short: {describe_failure(error)}"
        ) from error


def _tensors_of(path: Path) -> Path | None:
    """Return the file of tensors that a document names, if there is one."""
    try:
        return path.with_name(Path(json.loads(path.read_bytes())["file"]).name)
    except (OSError, ValueError, LookupError, TypeError):
        return None
