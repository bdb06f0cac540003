"""From a prompt, or a call of a product, to requests of the card that is served."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from fastvideo_comfy.adapters import adapter_patch, stack_key
from fastvideo_comfy.compiler import Compiled, examine
from fastvideo_comfy.files import parse_assignments
from fastvideo_comfy.fold.brought import check_nodes
from fastvideo_comfy.folders import ModelFolders, read_extra_paths
from fastvideo_comfy.graph.base import Problem
from fastvideo_comfy.graph.document import Document
from fastvideo_comfy.images import find_image
from fastvideo_comfy.names import sampler_name
from fastvideo_comfy.product import WorkflowProduct, call_product
from fastvideo_comfy.program import OutputRequest, WorkflowProgram
from fastvideo_comfy.requests import to_request
from fastvideo_comfy.serve.config import ComfySection
from fastvideo_core.card import ModelCard
from fastvideo_core.errors import CheckpointError, FastVideoError, InputError, PluginError
from fastvideo_core.request.base import Request
from fastvideo_core.request.media.images import load_image
from fastvideo_core.runtime.catalog import Catalog
from fastvideo_core.runtime.instance import ModelInstance
from fastvideo_core.runtime.patches import WeightPatch
from fastvideo_core.runtime.serving import ServerHost, Wanted, WeightStack

__all__ = ["ServedCompiler"]

_Found = tuple[Problem, tuple[str, ...]]
"""A problem, and the outputs that depend on its node."""


class ServedCompiler:
    """Compiles for the one card that a server has.

    Args:
        host: The server.
        section: What the deploy config says.

    Raises:
        PluginError: ComfyUI's samplers are not on.
        InputError: Something in the section is not there, or of another form.
    """

    def __init__(self, host: ServerHost, section: ComfySection) -> None:
        if sampler_name("euler", "simple") not in host.extensions.samplers:
            raise PluginError("server.comfy needs ComfyUI's samplers: name sampler.comfy in the config's plugins too")
        self.card: ModelCard = host.card
        self.files = parse_assignments(list(section.models))
        self.nodes = check_nodes(host.extensions.workflow_nodes)
        self.folders = ModelFolders() if section.folders is None else ModelFolders.below(section.folders)
        for path in section.extra_model_paths:
            self.folders = self.folders.joined(read_extra_paths(path))
        self.max_image_pixels = host.max_image_pixels
        self._is_served = lru_cache(maxsize=256)(self._names_the_card)

    def find_card(self, name: str) -> ModelCard | None:
        """Return the card that is served, if the name is its own."""
        return self.card if self._is_served(name) else None

    def examine(self, document: Document) -> Compiled:
        """Compile a document; a model that is not served is a problem like others."""
        return examine(document, find_card=self.find_card, files=self.files, nodes=self.nodes)

    def call(self, product: WorkflowProduct, values: Mapping[str, Any]) -> Compiled:
        """Compile a product with values of public parameters.

        Raises:
            ParameterError: There is no such parameter, or a value is not allowed.
        """
        return call_product(
            product, values, find_card=self.find_card, models=tuple(self._said_models), nodes=self.nodes
        )

    def with_files(self, compiled: Compiled, images: Path) -> Compiled:
        """Return what was compiled with those files as problems that are not there, or are not what they should be.

        Args:
            compiled: What became of a workflow.
            images: Folder of its images.
        """
        if compiled.program is None:
            return compiled
        found = [*self._image_problems(compiled.program, images), *self._adapter_problems(compiled)]
        if not found:
            return compiled
        dependents: dict[str, tuple[str, ...]] = {}
        for problem, outputs in found:
            dependents[problem.node] = tuple(dict.fromkeys((*dependents.get(problem.node, ()), *outputs)))
        problems = tuple(problem for problem, _ in found)
        report = replace(compiled.report, problems=problems, dependents=dependents)
        return Compiled(report, None, compiled.graph)

    def wanted(
        self, program: WorkflowProgram, output: OutputRequest, images: Path, *, has_previews: bool, is_first: bool
    ) -> Wanted:
        """Return the request of one output with what it runs under.

        Args:
            program: The program.
            output: Its output.
            images: Folder of the workflow's images.
            has_previews: Whether pictures are wanted while it runs.
            is_first: Whether it goes before what waits.

        Raises:
            MediaError: An image is not there, or is none.
            CheckpointError: An adapter is not there.
        """
        request = self.request(program, output, images)
        changes: dict[str, Any] = {"outputs": request.outputs.model_copy(update={"previews": has_previews})}
        if is_first:
            changes["latency_class"] = "interactive"
        return Wanted(request.model_copy(update=changes), self.weights(program, output))

    def request(self, program: WorkflowProgram, output: OutputRequest, images: Path) -> Request:
        """Return the request of one output.

        Raises:
            MediaError: An image is not there, or is none.
        """
        return to_request(program, output, self.card, images=images)

    def weights(self, program: WorkflowProgram, output: OutputRequest) -> WeightStack | None:
        """Return the adapters of an output as changes of weights; None if it has none.

        Raises:
            CheckpointError: A file is not there.
        """
        uses = {
            component: tuple((self.folders.find("loras", one.file), one.strength) for one in stack)
            for component, stack in program.adapters(output).items()
        }
        if not uses:
            return None
        family = self.card.family
        key = "; ".join(f"{component}: {stack_key(stack)}" for component, stack in sorted(uses.items()))

        def make(instance: ModelInstance) -> dict[str, WeightPatch]:
            return {name: adapter_patch(instance.component(name), stack, family=family) for name, stack in uses.items()}

        return WeightStack(key, make)

    def _image_problems(self, program: WorkflowProgram, images: Path) -> list[_Found]:
        found = []
        for node in program.nodes:
            if node.kind != "image":
                continue
            outputs = tuple(one.output for one in program.requests if node.node_id in one.images.values())
            try:
                load_image(find_image(images, node.file, "image"), max_pixels=self.max_image_pixels)
            except InputError as error:
                message = f"Invalid image file: {error.reason}"
                problem = Problem(node.origin[0], "custom_validation_failed", message, "image", got=node.file)
                found.append((problem, outputs))
        return found

    def _adapter_problems(self, compiled: Compiled) -> list[_Found]:
        assert compiled.program is not None
        outputs: dict[str, list[str]] = {}
        for one in compiled.program.requests:
            for stack in compiled.program.adapters(one).values():
                for use in stack:
                    outputs.setdefault(use.file, []).append(one.output)
        found = []
        for name, dependent in outputs.items():
            try:
                self.folders.find("loras", name)
            except FastVideoError as error:
                reason = error.reason if isinstance(error, InputError) else str(error)
                found += [
                    (Problem(node.node_id, "value_not_in_list", reason, "lora_name", got=name), tuple(dependent))
                    for node in compiled.graph.nodes.values()
                    if node.inputs.get("lora_name") == name
                ]
        return found

    def adapters(self) -> list[str]:
        """Return the names of the adapter files that there are."""
        return self._names("loras")

    def _names(self, kind: str) -> list[str]:
        places: Sequence[Path] = self.folders.paths.get(kind, ())
        found = {
            path.relative_to(place).as_posix()
            for place in places
            if place.is_dir()
            for path in place.rglob("*.safetensors")
        }
        return sorted(found)

    @cached_property
    def _catalog(self) -> Catalog:
        return Catalog.installed()

    @property
    def _said_models(self) -> list[str]:
        return [
            f"{file}={owner.card}:{owner.component}" for file, owners in self.files.said.items() for owner in owners
        ]

    def _names_the_card(self, name: str) -> bool:
        if name == self.card.model_id:
            return True
        try:
            found = self._catalog.find(name)
        except (InputError, CheckpointError, PluginError):
            return False
        return (found.model_id, found.checkpoint.source.location) == (
            self.card.model_id,
            self.card.checkpoint.source.location,
        )
