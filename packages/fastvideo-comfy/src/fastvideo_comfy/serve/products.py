"""Saved workflows as tasks: listed beside the card's own, and called like them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fastvideo_comfy.errors import UnsupportedWorkflowError
from fastvideo_comfy.product import WorkflowProduct, load_product
from fastvideo_comfy.program import OutputRequest, WorkflowProgram
from fastvideo_comfy.serve.compiling import ServedCompiler
from fastvideo_comfy.serve.files import FileRoom
from fastvideo_core.card import InputSpec, TaskSpec
from fastvideo_core.errors import ConfigError, InputError
from fastvideo_core.request.base import Request
from fastvideo_core.runtime.serving import OfferedTask, ServedCall, WeightStack

__all__ = ["offer_products"]

_IMAGE = InputSpec(modality="image", required=False, description="in place of the workflow's own image")


def offer_products(
    paths: tuple[Path, ...], compiler: ServedCompiler, room: Callable[[str], FileRoom]
) -> dict[str, OfferedTask]:
    """Return the products of files as tasks: each as NAME@VERSION, the last one of a name also as NAME.

    Args:
        paths: The files.
        compiler: Compiles for the card that is served.
        room: Gives an owner's files.

    Raises:
        ConfigError: A file is no product, or does not compile for the card.
    """
    offered: dict[str, OfferedTask] = {}
    for path in paths:
        try:
            product = load_product(path)
        except InputError as error:
            raise ConfigError(error.reason, field="comfy.products", value=str(path)) from None
        if product is None:
            raise ConfigError(
                "not a product", field="comfy.products", value=str(path),
                allowed="files that `fastvideo comfy compile -o` has saved",
            )  # fmt: skip
        name, task = _name(product, path), _Product(product, compiler, room).offered(path)
        versioned = f"{name}@{product.version}"
        if versioned in offered:
            raise ConfigError(f"two products are {versioned}", field="comfy.products", value=str(path))
        offered |= {name: task, versioned: task}
    return offered


def _name(product: WorkflowProduct, path: Path) -> str:
    if "@" in product.name or product.name != product.name.strip():
        raise ConfigError(
            "a product's name goes before @VERSION", field="comfy.products", value=str(path), allowed="a name without @"
        )
    return product.name


class _Product:
    """One product on the server's card."""

    def __init__(self, product: WorkflowProduct, compiler: ServedCompiler, room: Callable[[str], FileRoom]) -> None:
        self._product = product
        self._compiler = compiler
        self._room = room
        self._pictures = [
            name
            for name, one in product.parameters.items()
            if product.prompt[one.node].get("class_type") == "LoadImage" and one.input == "image"
        ]

    def offered(self, path: Path) -> OfferedTask:
        """Return it as a task."""
        try:
            program = self._compiler.call(self._product, {}).expect()
        except UnsupportedWorkflowError as error:
            raise ConfigError(str(error), field="comfy.products", value=str(path)) from None
        if len(program.requests) != 1:
            raise ConfigError(
                f"the workflow has {len(program.requests)} outputs", field="comfy.products", value=str(path),
                allowed="one: a call makes one video",
            )  # fmt: skip
        base = self._compiler.card.task(program.requests[0].task)
        spec = TaskSpec(
            program=base.program,
            inputs={"image": _IMAGE} if len(self._pictures) == 1 else {},
            outputs={name: kind for name, kind in base.outputs.items() if kind == "video"},
            parameters={name: one.spec for name, one in self._product.parameters.items()},
            description=f"ComfyUI workflow {self._product.name}, version {self._product.version}",
        )
        return OfferedTask(spec, self._request, self._weights, self._product.version)

    def _request(self, call: ServedCall) -> Request:
        program, output = self._compiled({**call.parameters, **self._pictured(call)})
        return self._compiler.request(program, output, self._room(call.owner).folder("input"))

    def _weights(self, call: ServedCall) -> WeightStack | None:
        return self._compiler.weights(*self._compiled(call.parameters))

    def _compiled(self, values: Mapping[str, Any]) -> tuple[WorkflowProgram, OutputRequest]:
        program = self._compiler.call(self._product, values).expect()
        return program, program.requests[0]

    def _pictured(self, call: ServedCall) -> dict[str, Any]:
        """Keep a call's image among the caller's files, under a name that its content gives."""
        if call.image is None:
            return {}
        stored = self._room(call.owner).store(
            call.image,
            f"{hashlib.sha256(call.image).hexdigest()[:32]}.png",
            kind="input",
            subfolder="calls",
            is_replacing=False,
            max_pixels=self._compiler.max_image_pixels,
        )
        return {self._pictures[0]: f"{stored.subfolder}/{stored.name}"}
