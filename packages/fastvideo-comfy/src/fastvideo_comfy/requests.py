"""From a program's requests to requests of the runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastvideo_comfy.images import read_fitted
from fastvideo_comfy.program import OutputRequest, WorkflowProgram
from fastvideo_core.card import ModelCard
from fastvideo_core.extend.extensions import Extensions
from fastvideo_core.request.base import ImagePart, OutputSpec, Request, TextPart
from fastvideo_core.runtime.samplers import with_samplers

__all__ = ["comfy_card", "load_extensions", "to_request"]


def load_extensions() -> Extensions:
    """Return the installed models, and this package's samplers.

    Raises:
        PluginError: The samplers' plugin is not installed.
    """
    return Extensions.load({"sampler.comfy": {}}, strict=True)


def comfy_card(card: ModelCard, extensions: Extensions) -> ModelCard:
    """Return a card whose requests may name ComfyUI's samplers."""
    return with_samplers(card, extensions)


def to_request(program: WorkflowProgram, output: OutputRequest, card: ModelCard, *, images: Path) -> Request:
    """Return the request of one output, its images read and fitted.

    Args:
        program: The program.
        output: One of its requests.
        card: The card.
        images: ComfyUI's input folder.

    Raises:
        MediaError: An image is not there, or is none.
    """
    size = {name: int(output.parameters[name]) for name in ("width", "height")}  # type: ignore[arg-type]
    parts: list[Any] = [TextPart(name=name, text=text) for name, text in output.texts.items()]
    for name, node_id in output.images.items():
        node = program.node(node_id)
        field = f"node {'/'.join(node.origin)}.image"
        parts.append(ImagePart(name=name, pixels=read_fitted(images, node.file, **size, field=field)))
    task = card.task(output.task)
    video = next(name for name, kind in task.outputs.items() if kind == "video")
    return Request(
        task=output.task,
        inputs=tuple(parts),
        parameters=dict(output.parameters),
        outputs=OutputSpec(artifacts=(video,)),
    )
