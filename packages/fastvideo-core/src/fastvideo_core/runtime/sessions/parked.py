"""The state of a stream between two chunks, taken apart: kept in host memory, written to disk, or sent elsewhere.

The tensors are those of the state, bytes of all cache blocks included, so that a stream goes on with the same bits.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from fastvideo_core.card import ModelCard, resolve_ref
from fastvideo_core.errors import StateError
from fastvideo_core.loop.state import decode_tree, encode_tree, host_tensor, place_tensor, state_schema, tensor_layout
from fastvideo_core.runtime.durable.base import RunningNode
from fastvideo_core.runtime.durable.disk import Disk
from fastvideo_core.runtime.durable.tensors import TensorReader, write_tensors
from fastvideo_core.runtime.sessions.marks import Place

__all__ = ["ParkedState", "digest_of", "pack", "read_parked", "remove_parked", "unpack", "write_parked"]

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


def pack(node_id: str, node: RunningNode, place: Place) -> ParkedState:
    """Take the state of a stream apart; tensors on a device are copied to the host, others are shared.

    Raises:
        StateError: The state holds what a state cannot hold.
    """
    tensors: dict[str, torch.Tensor] = {}
    names: dict[int, dict[str, Any]] = {}

    def put(tensor: torch.Tensor) -> dict[str, Any]:
        # What occurs twice is kept, and sent, once; it lives as long as the state, so that its id is its own.
        if id(tensor) not in names:
            names[id(tensor)] = {"tensor": str(len(tensors)), **tensor_layout(tensor)}
            tensors[str(len(tensors))] = host_tensor(tensor).contiguous()
        return names[id(tensor)]

    document = {
        "format": _FORMAT,
        "node_id": node_id,
        "loop_id": node.loop_id,
        "num_committed": node.num_committed,
        "place": asdict(place),
        "schema": state_schema(type(node.state)),
        "tree": encode_tree(node.state, put),
    }
    return ParkedState(document, tensors)


def unpack(parked: ParkedState, card: ModelCard, device: torch.device, *, is_shared: bool) -> RunningNode:
    """Put a state together again.

    Args:
        parked: What `pack` gave.
        card: The card whose loop it is of.
        device: Where tensors go that were on one.
        is_shared: Whether the state may share the tensors; else each gets memory of its own.

    Raises:
        StateError: It is no such state, or of another loop or version.
    """
    document = parked.document
    try:
        loop_id, schema = document["loop_id"], document["schema"]
        if document["format"] != _FORMAT:
            raise StateError(f"the state is of format {document['format']!r}; this version reads {_FORMAT!r}")
        spec = card.loops.get(loop_id)
        cls = None if spec is None else resolve_ref(spec.state_schema)
        if cls is None or state_schema(cls) != schema:
            raise StateError(f"the state is of {schema} in loop {loop_id}, which card {card.model_id} does not have")

        def get(node: Mapping[str, Any]) -> torch.Tensor:
            stored = parked.tensors[node["tensor"]]
            is_plain = is_shared and "stride" not in node and not node.get("is_on_device")
            return stored if is_plain else place_tensor(stored, node, device)

        return RunningNode(loop_id, decode_tree(document["tree"], cls, get), int(document["num_committed"]))
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
    digests = write_tensors(disk, tensors, parked.tensors)
    disk.sync_folder(path.parent)
    document = {"document": dict(parked.document), "file": tensors.name, "digests": digests}
    disk.replace(path, [json.dumps(document).encode()])
    if old is not None:
        disk.remove(old)


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
        stored = json.loads(path.read_bytes())
        reader = TensorReader(path.parent)
        tensors = {name: reader.read(stored["file"], name, sha256) for name, sha256 in stored["digests"].items()}
        return ParkedState(stored["document"], tensors)
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise StateError(f"{path} is missing, corrupt or cut short: {type(error).__name__}: {error}") from error


def _tensors_of(path: Path) -> Path | None:
    """Return the file of tensors that a document names, if there is one."""
    try:
        return path.with_name(Path(json.loads(path.read_bytes())["file"]).name)
    except (OSError, ValueError, LookupError, TypeError):
        return None
