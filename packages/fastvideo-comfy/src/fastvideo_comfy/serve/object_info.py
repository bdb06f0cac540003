"""`/object_info` and what is near it: node types, model files, and the system, as ComfyUI describes them."""

from __future__ import annotations

import platform
import string
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from importlib_metadata import version

from fastvideo_comfy.files import FOLDERS, KNOWN_FILES
from fastvideo_comfy.names import SAMPLERS
from fastvideo_comfy.serve.compiling import ServedCompiler
from fastvideo_comfy.serve.definitions import DEFINITIONS, Definition, InputDefinition
from fastvideo_comfy.serve.files import FileRoom
from fastvideo_comfy.sigmas import SCHEDULERS

__all__ = ["ObjectInfo"]

_WORDS: Mapping[str, tuple[str, ...]] = {
    "samplers": tuple(SAMPLERS),
    "schedulers": tuple(SCHEDULERS),
    "clip_types": ("wan",),
    "crops": ("center", "none"),
    "switches": ("enable", "disable"),
    "formats": ("auto", "mp4"),
    "codecs": ("auto", "h264"),
    "default": ("default",),
}
_FORMATS: Mapping[str, tuple[str, ...]] = {
    "transformer": ("_fp16", "_bf16", "_fp8_scaled", "_fp8_e4m3fn", "_fp8_e4m3fn_scaled"),
    "transformer_2": ("_fp16", "_bf16", "_fp8_scaled", "_fp8_e4m3fn", "_fp8_e4m3fn_scaled"),
    "text_encoder": ("_fp16", "_bf16", "_fp8_e4m3fn_scaled"),
}
"""Number formats in which a component's files are published; others have one, which their names do not say."""

_NUMBERS = {
    "template": {
        "input": {"required": {"value": ["FLOAT,INT", {}]}},
        "names": list(string.ascii_lowercase),
        "min": 1,
    }
}
_MATCHED = {"template": {"template_id": "switch", "allowed_types": "*"}}


class ObjectInfo:
    """Describes what a server takes.

    Args:
        compiler: Compiles for it.
    """

    def __init__(self, compiler: ServedCompiler) -> None:
        self._compiler = compiler

    def describe(self, room: FileRoom) -> dict[str, Any]:
        """Return all node types that compile, with the files that there are.

        Args:
            room: The caller's files.
        """
        choices = {**_WORDS, **self._component_files(), "images": room.images(), "loras": self._compiler.adapters()}
        found = {name: _described(name, one, choices) for name, one in DEFINITIONS.items()}
        for name, node in self._compiler.nodes.items():
            inputs = {key: [kind, {}] for key, kind in node.spec.inputs}
            found[name] = _document(name, {"required": inputs}, node.spec.outputs, "FastVideo", name, is_output=False)
        return found

    def model_files(self) -> dict[str, Sequence[str]]:
        """Return the names of model files by ComfyUI's folder."""
        found: dict[str, list[str]] = {}
        for component, names in self._component_files().items():
            found.setdefault(FOLDERS[component], []).extend(names)
        unique: dict[str, Sequence[str]] = {kind: list(dict.fromkeys(names)) for kind, names in found.items()}
        return {**unique, "loras": self._compiler.adapters()}

    def system(self) -> dict[str, Any]:
        """Return the system and its devices."""
        devices = [
            {"name": torch.cuda.get_device_name(index), "type": "cuda", "index": index}
            for index in range(torch.cuda.device_count())
        ] or [{"name": "cpu", "type": "cpu", "index": None}]
        system = {
            "os": sys.platform,
            "python_version": platform.python_version(),
            "embedded_python": False,
            "comfyui_version": f"fastvideo-comfy {version('fastvideo-comfy')}",
            "pytorch_version": torch.__version__,
            "argv": [],
        }
        return {"system": system, "devices": devices}

    def _component_files(self) -> dict[str, list[str]]:
        """Return the names under which workflows know the served card's files, by component."""
        found: dict[str, list[str]] = {component: [] for component in FOLDERS}
        said = [(file, owner) for file, owners in self._compiler.files.said.items() for owner in owners]
        known = [
            (f"{stem}{form}.safetensors", owner)
            for stem, owner in KNOWN_FILES
            for form in _FORMATS.get(owner.component, ("",))
        ]
        for file, owner in [*said, *known]:
            if owner.component not in self._compiler.card.components:
                continue
            if not owner.card or self._compiler.find_card(owner.card) is not None:
                found[owner.component].append(file)
        found["transformer"] += found.pop("transformer_2")
        return found


def _described(name: str, definition: Definition, choices: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    inputs: dict[str, dict[str, Any]] = {"required": {}, "optional": {}}
    for one in definition.inputs:
        inputs["required" if one.is_required else "optional"][one.name] = _typed(one, choices)
    shown = {kind: found for kind, found in inputs.items() if found or kind == "required"}
    title = definition.display_name or name
    return _document(name, shown, definition.outputs, definition.category, title, is_output=definition.is_output)


def _typed(one: InputDefinition, choices: Mapping[str, Sequence[str]]) -> list[Any]:
    if one.type == "COMFY_AUTOGROW_V3":
        return [one.type, _NUMBERS]
    if one.type == "COMFY_MATCHTYPE_V3":
        return [one.type, _MATCHED]
    if one.type != "COMBO":
        return [one.type, dict(one.options)]
    options = dict(one.options)
    if one.choices == "images":
        options["image_upload"] = True
    return [list(choices[one.choices]), options]


def _document(
    name: str, inputs: Mapping[str, Mapping[str, Any]], outputs: Sequence[str], category: str, title: str,
    *, is_output: bool,
) -> dict[str, Any]:  # fmt: skip
    return {
        "input": inputs,
        "input_order": {kind: list(found) for kind, found in inputs.items()},
        "is_input_list": False,
        "output": list(outputs),
        "output_is_list": [False] * len(outputs),
        "output_name": list(outputs),
        "output_tooltips": [""] * len(outputs),
        "name": name,
        "display_name": title,
        "description": "",
        "python_module": "fastvideo_comfy",
        "category": category,
        "output_node": is_output,
        "deprecated": False,
        "experimental": False,
        "api_node": False,
    }
