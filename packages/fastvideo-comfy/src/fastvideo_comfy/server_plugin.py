"""The plugin: ComfyUI's HTTP interface and saved workflows on a server. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence

from fastvideo_core.extend import ConfigSection, ServerPartSpec, hookimpl

HOOK_VERSIONS = ">=1.0,<2"


@hookimpl
def server_parts() -> Sequence[ServerPartSpec]:
    """Return the part of a server that answers as ComfyUI does."""
    return [
        ServerPartSpec(
            "comfy", "fastvideo_comfy.serve.part:make_part", "ComfyUI's HTTP interface, and saved workflows as tasks",
            section="comfy",
        )
    ]  # fmt: skip


@hookimpl
def config_sections() -> Sequence[ConfigSection]:
    """Return the `comfy` section of the deploy config."""
    return [ConfigSection("comfy", "fastvideo_comfy.serve.config:ComfySection")]
