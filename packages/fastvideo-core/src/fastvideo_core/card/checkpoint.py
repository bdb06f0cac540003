"""Where a card's files are and which task needs which of them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from fastvideo_core.card.base import Contract, Identifier, ObjectRef

__all__ = ["CheckpointManifest", "CheckpointSource", "ComponentFiles"]


class CheckpointSource(Contract):
    """A place that holds a checkpoint.

    Attributes:
        kind: "hub" for a hub repository, "folder" for a local folder, "package" for data in a package.
        location: `org/name`, a path, or `package:relative/path`.
        revision: Commit of a hub repository; a card pins it.
        is_gated: Whether the hub asks for an accepted licence and a token.
        download_bytes: Size of the files that are needed, where known.
    """

    kind: Literal["hub", "folder", "package"]
    location: str = Field(min_length=1)
    revision: str | None = None
    is_gated: bool = False
    download_bytes: int | None = Field(default=None, ge=0)

    @model_validator(mode="after")
    def _hub_is_pinned(self) -> CheckpointSource:
        if self.kind == "hub" and self.revision is None:
            raise ValueError(f"hub repository {self.location!r} needs a pinned revision (a commit hash)")
        return self


class ComponentFiles(Contract):
    """The files of one component.

    Attributes:
        folder: Folder within the checkpoint; "" is its root.
        layout: How the tensors are named: "diffusers", "transformers", "original" or "comfyui".
        key_map: Function that renames a tensor of the file to the module's name; None keeps names.
        only: Function that tells whether a tensor of the files is this component's; None means that all are.
        source: Checkpoint that holds them, where it is another than the card's own: a distilled transformer, say,
            comes with the VAE of the model that it was distilled from.
        required_for: Tasks that need it; empty means all.
        optional_for: Tasks that use it when it is there.
    """

    folder: str
    layout: Literal["diffusers", "transformers", "original", "comfyui"] = "diffusers"
    key_map: ObjectRef | None = None
    only: ObjectRef | None = None
    source: CheckpointSource | None = None
    required_for: tuple[str, ...] = ()
    optional_for: tuple[str, ...] = ()


class CheckpointManifest(Contract):
    """Explicit files of a card; nothing is guessed from names.

    Attributes:
        source: Where the files are, but for components with a source of their own.
        components: Files by `ComponentSpec.load_id`.
    """

    source: CheckpointSource
    components: dict[Identifier, ComponentFiles]

    def source_of(self, load_id: str) -> CheckpointSource:
        """Return where a component's files are."""
        return self.components[load_id].source or self.source

    @property
    def download_bytes(self) -> int | None:
        """Bytes that are downloaded from the hub; None where there are none, or they are not known."""
        sizes = [source.download_bytes for source in self.sources if source.kind == "hub"]
        return None if not sizes or None in sizes else sum(size for size in sizes if size is not None)

    @property
    def sources(self) -> dict[CheckpointSource, tuple[str, ...]]:
        """All places with the load ids whose files they hold, the card's own place first."""
        held: dict[CheckpointSource, list[str]] = {self.source: []}
        for load_id in self.components:
            held.setdefault(self.source_of(load_id), []).append(load_id)
        return {source: tuple(load_ids) for source, load_ids in held.items()}
