"""The nodes: a loader, a sampler and a save node, on an engine in ComfyUI's own process.

ComfyUI's modules are imported when a node runs: they are there only inside of ComfyUI.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from concurrent.futures import TimeoutError as FutureTimeout
from fractions import Fraction
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from fastvideo_comfy.files import name_problem
from fastvideo_core.errors import InputError, OutputError

__all__ = ["NODE_CLASS_MAPPINGS", "NODE_DISPLAY_NAME_MAPPINGS", "LoadedModel"]

_CATEGORY = "FastVideo"
_MODEL = "FASTVIDEO_MODEL"
_RESULT = "FASTVIDEO_RESULT"
_POLL_S = 0.1
_MAX_SIZE = 4096


class LoadedModel:
    """A resident model; its engine is closed once nothing refers to it any more.

    Args:
        engine: The engine.
    """

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.close = weakref.finalize(self, engine.close)


class FastVideoLoader:
    """Loads a card."""

    CATEGORY = _CATEGORY
    FUNCTION = "load"
    RETURN_TYPES = (_MODEL,)
    RETURN_NAMES = ("model",)
    DESCRIPTION = "Loads a FastVideo card: an installed one, a folder in diffusers layout, or a hub repository."

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:  # noqa: N802 - ComfyUI's name
        """Describe the inputs."""
        return {
            "required": {
                "card": ("STRING", {"default": "wan-shapes"}),
                "device": (["auto", "cpu", "cuda"], {"default": "auto"}),
                "precision": (["default", "float32", "bfloat16", "float16"], {"default": "default"}),
            }
        }

    def load(self, card: str, device: str, precision: str) -> tuple[LoadedModel]:
        """Load the card's weights."""
        from fastvideo_core import Engine

        chosen = None if precision == "default" else precision
        return (LoadedModel(Engine.open(card, device=device, precision=chosen)),)


class FastVideoSampler:
    """Makes a video."""

    CATEGORY = _CATEGORY
    FUNCTION = "sample"
    RETURN_TYPES = ("IMAGE", "VIDEO", _RESULT)
    RETURN_NAMES = ("images", "video", "result")
    DESCRIPTION = "Makes a video from a prompt, and from an image where one is connected. Can be interrupted."

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:  # noqa: N802 - ComfyUI's name
        """Describe the inputs."""
        size = {"min": 16, "max": _MAX_SIZE, "step": 16}
        return {
            "required": {
                "model": (_MODEL,),
                "prompt": ("STRING", {"multiline": True, "default": ""}),
                "negative": ("STRING", {"multiline": True, "default": ""}),
                "width": ("INT", {"default": 832, **size}),
                "height": ("INT", {"default": 480, **size}),
                "length": ("INT", {"default": 81, "min": 1, "max": _MAX_SIZE, "step": 4}),
                "steps": ("INT", {"default": 30, "min": 1, "max": 1000}),
                "cfg": ("FLOAT", {"default": 5.0, "min": 0.0, "max": 50.0, "step": 0.1}),
                "seed": ("INT", {"default": 0, "min": 0, "max": 2**63 - 1, "control_after_generate": True}),
            },
            "optional": {"start_image": ("IMAGE",)},
        }

    def sample(self, model: LoadedModel, prompt: str, start_image: Any = None, **values: Any) -> tuple[Any, Any, Any]:
        """Run a request; an interrupt cancels it at its next step."""
        engine = model.engine
        image = None if start_image is None else _first_pixels(start_image)
        parameters = _parameters(engine.card, values, has_image=image is not None)
        request = engine.make_request(prompt, image=image, parameters=parameters)
        bar = import_module("comfy.utils").ProgressBar(100)

        def note(event: Any) -> None:
            if event.type == "request.progress":
                bar.update_absolute(round(100 * event.fraction), 100)

        result = _wait(engine.submit(request, on_event=note))
        frames = _as_images(result.video.frames)
        return frames, _as_video(frames, result.video.fps), result


class FastVideoSave:
    """Saves a result with everything that it was made from."""

    CATEGORY = _CATEGORY
    FUNCTION = "save"
    OUTPUT_NODE = True
    RETURN_TYPES: ClassVar[tuple[str, ...]] = ()
    DESCRIPTION = "Writes a FastVideo result into ComfyUI's output folder, with its parameters beside it."

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:  # noqa: N802 - ComfyUI's name
        """Describe the inputs."""
        return {
            "required": {
                "result": (_RESULT,),
                "filename_prefix": ("STRING", {"default": "video/FastVideo"}),
                "format": (["mp4", "webm", "gif"], {"default": "mp4"}),
            }
        }

    def save(self, result: Any, filename_prefix: str, format: str) -> dict[str, Any]:  # noqa: A002 - the input's name
        """Write the file under the next free name."""
        from fastvideo_core.request.media.output import OutputTarget

        if (problem := name_problem(filename_prefix)) is not None:
            raise OutputError(problem, field="filename_prefix", value=filename_prefix, allowed="a name below output")
        root = Path(import_module("folder_paths").get_output_directory())
        path = root / f"{filename_prefix}.{format}"
        saved = result.video.save(OutputTarget(path, on_conflict="next"))
        place = saved.path.relative_to(root)
        shown = {"filename": place.name, "subfolder": place.parent.as_posix().strip("."), "type": "output"}
        return {"ui": {"images": [shown], "animated": (True,)}}


def _parameters(card: Any, values: Mapping[str, Any], *, has_image: bool) -> dict[str, Any]:
    """Return a card's parameters by their own names; a scale is left out where the card takes none."""
    task = next((one for one in card.capabilities.tasks.values() if not has_image or "image" in one.inputs), None)
    if task is None:
        raise InputError(f"card {card.model_id} takes no image", field="start_image", allowed="nothing")
    names = {
        "width": "width", "height": "height", "length": "num_frames", "steps": "num_inference_steps",
        "cfg": "guidance_scale", "seed": "seed", "negative": "negative_prompt",
    }  # fmt: skip
    return {names[name]: value for name, value in values.items() if names[name] in task.parameters}


def _wait(handle: Any) -> Any:
    """Return a request's result; while waiting, look whether the person has interrupted."""
    management = import_module("comfy.model_management")
    while True:
        try:
            return handle.result(_POLL_S)
        except (TimeoutError, FutureTimeout):
            if management.processing_interrupted():
                handle.cancel("interrupted in ComfyUI")
                management.throw_exception_if_processing_interrupted()


def _first_pixels(images_BHWC: Any) -> Any:
    """Return the first of some images, floats in [0, 1], as uint8 pixels (H, W, 3)."""
    return (images_BHWC[0, ..., :3].clamp(0, 1) * 255).round().byte().cpu().numpy()


def _as_images(frames_THWC: Any) -> Any:
    """Return frames as ComfyUI's IMAGE: float32 (T, H, W, 3) in [0, 1]."""
    import torch

    return torch.from_numpy(frames_THWC).float() / 255


def _as_video(images_THWC: Any, fps: Any) -> Any:
    """Return ComfyUI's VIDEO."""
    inputs, util = import_module("comfy_api.input_impl"), import_module("comfy_api.util")
    return inputs.VideoFromComponents(util.VideoComponents(images=images_THWC, audio=None, frame_rate=Fraction(fps)))


NODE_CLASS_MAPPINGS = {
    "FastVideoLoader": FastVideoLoader,
    "FastVideoSampler": FastVideoSampler,
    "FastVideoSave": FastVideoSave,
}
NODE_DISPLAY_NAME_MAPPINGS = {
    "FastVideoLoader": "FastVideo Loader",
    "FastVideoSampler": "FastVideo Sampler",
    "FastVideoSave": "FastVideo Save",
}
