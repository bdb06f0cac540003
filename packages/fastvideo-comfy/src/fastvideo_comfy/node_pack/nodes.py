"""The nodes: a loader, a server, a sampler, a streaming session and a save node.

ComfyUI's modules are imported when a node runs: they are there only inside of ComfyUI.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from fractions import Fraction
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from fastvideo_comfy.files import name_problem
from fastvideo_comfy.node_pack.made import Made
from fastvideo_comfy.node_pack.models import Model, parameters_for
from fastvideo_core.errors import FastVideoError, InputError, OutputError

__all__ = ["NODE_CLASS_MAPPINGS", "NODE_DISPLAY_NAME_MAPPINGS", "parse_steering"]

_CATEGORY = "FastVideo"
_MODEL = "FASTVIDEO_MODEL"
_RESULT = "FASTVIDEO_RESULT"
_KEY_VARIABLE = "FASTVIDEO_API_KEY"
_POLL_S = 0.1
_MAX_SIZE = 4096
_PROMPT: tuple[str, dict[str, Any]] = ("STRING", {"multiline": True, "default": ""})
_START = {"start_image": ("IMAGE",)}


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

    def load(self, card: str, device: str, precision: str) -> tuple[Model]:
        """Load the card's weights."""
        from fastvideo_comfy.node_pack.local import LocalModel
        from fastvideo_core import Engine

        chosen = None if precision == "default" else precision
        return (LocalModel(Engine.open(card, device=device, precision=chosen)),)


class FastVideoServer:
    """Connects to a server."""

    CATEGORY = _CATEGORY
    FUNCTION = "connect"
    RETURN_TYPES = (_MODEL,)
    RETURN_NAMES = ("model",)
    DESCRIPTION = (
        "Takes the card of a FastVideo server (`fastvideo serve`) in place of one that is loaded here. An API key "
        "comes from the variable FASTVIDEO_API_KEY: what stands in a workflow is saved with it."
    )

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:  # noqa: N802 - ComfyUI's name
        """Describe the inputs."""
        return {"required": {"url": ("STRING", {"default": "http://127.0.0.1:8000"})}}

    def connect(self, url: str) -> tuple[Model]:
        """Ask the server what it has."""
        from fastvideo_comfy.node_pack.remote import RemoteModel

        return (RemoteModel(url, os.environ.get(_KEY_VARIABLE)),)


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
        return {"required": {"model": (_MODEL,), "prompt": _PROMPT, **_sampling()}, "optional": _START}

    def sample(self, model: Model, prompt: str, start_image: Any = None, **values: Any) -> tuple[Any, Any, Any]:
        """Run a request; an interrupt cancels it at its next step."""
        image = None if start_image is None else _first_pixels(start_image)
        task = model.task_for(has_image=image is not None)
        work = model.begin(prompt, task.name, image, parameters_for(task, values))
        bar = import_module("comfy.utils").ProgressBar(100)
        with _interruptible(work.cancel) as check:
            while (made := work.wait(_POLL_S)) is None:
                bar.update_absolute(round(100 * work.fraction), 100)
                check()
        bar.update_absolute(100, 100)
        return _shown(made)


class FastVideoStream:
    """Makes a stream, steered while it runs."""

    CATEGORY = _CATEGORY
    FUNCTION = "stream"
    RETURN_TYPES = ("IMAGE", "VIDEO", _RESULT)
    RETURN_NAMES = ("images", "video", "result")
    DESCRIPTION = (
        "Makes a streaming session of a causal card, chunk by chunk. Each line of `steering` is CHUNK: PROMPT, a new "
        "prompt that is given once that chunk is there. Can be interrupted."
    )

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:  # noqa: N802 - ComfyUI's name
        """Describe the inputs."""
        own = {
            "steering": ("STRING", {"multiline": True, "default": ""}),
            "chunks": ("INT", {"default": 8, "min": 1, "max": 10_000}),
        }
        kept = {name: one for name, one in _sampling().items() if name in ("width", "height", "seed")}
        return {"required": {"model": (_MODEL,), "prompt": _PROMPT, **own, **kept}, "optional": _START}

    def stream(
        self, model: Model, prompt: str, steering: str, chunks: int, start_image: Any = None, **values: Any
    ) -> tuple[Any, Any, Any]:
        """Run a session; an interrupt ends it at its next step."""
        turns = parse_steering(steering, num_chunks=chunks)
        image = None if start_image is None else _first_pixels(start_image)
        task = model.stream_for(has_image=image is not None)
        stream = model.begin_stream(
            prompt, task.name, image, parameters_for(task, values), num_chunks=chunks, is_steered=bool(turns)
        )
        bar = import_module("comfy.utils").ProgressBar(chunks)
        with _interruptible(stream.close) as check:
            while (index := stream.wait(_POLL_S)) != -1:
                if index is not None:
                    bar.update_absolute(index + 1, chunks)
                    if index in turns:
                        stream.push_text(turns[index])
                check()
            made = stream.made()
        stream.close()
        return _shown(made)


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

    def save(self, result: Made, filename_prefix: str, format: str) -> dict[str, Any]:  # noqa: A002 - the input's name
        """Write the file under the next free name."""
        if (problem := name_problem(filename_prefix)) is not None:
            raise OutputError(problem, field="filename_prefix", value=filename_prefix, allowed="a name below output")
        root = Path(import_module("folder_paths").get_output_directory())
        place = result.save(root / f"{filename_prefix}.{format}").relative_to(root)
        shown = {"filename": place.name, "subfolder": place.parent.as_posix().strip("."), "type": "output"}
        return {"ui": {"images": [shown], "animated": (True,)}}


def parse_steering(text: str, *, num_chunks: int) -> dict[int, str]:
    """Return the prompts of a text's lines, by the chunk after which each is given.

    Raises:
        InputError: A line is no `CHUNK: PROMPT`, or its chunk is the last one or later, or has two.
    """
    found: dict[int, str] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        number, colon, prompt = line.partition(":")
        allowed = f"CHUNK: PROMPT, chunks 0 to {num_chunks - 2}, each once"
        if not colon or not number.strip().isdecimal() or len(number) > 9 or not prompt.strip():
            raise InputError("not a turn of the stream", field="steering", value=line, allowed=allowed)
        if int(number) > num_chunks - 2 or int(number) in found:
            raise InputError("no such chunk to turn after", field="steering", value=line, allowed=allowed)
        found[int(number)] = prompt.strip()
    return found


def _sampling() -> dict[str, Any]:
    size = {"min": 16, "max": _MAX_SIZE, "step": 16}
    return {
        "negative": ("STRING", {"multiline": True, "default": ""}),
        "width": ("INT", {"default": 832, **size}),
        "height": ("INT", {"default": 480, **size}),
        "length": ("INT", {"default": 81, "min": 1, "max": _MAX_SIZE, "step": 4}),
        "steps": ("INT", {"default": 30, "min": 1, "max": 1000}),
        "cfg": ("FLOAT", {"default": 5.0, "min": 0.0, "max": 50.0, "step": 0.1}),
        "seed": ("INT", {"default": 0, "min": 0, "max": 2**63 - 1, "control_after_generate": True}),
    }


@contextmanager
def _interruptible(cancel: Callable[[], None]) -> Iterator[Callable[[], None]]:
    """Give a function that raises when the person has interrupted; whatever ends the context early cancels the work."""
    management = import_module("comfy.model_management")
    try:
        yield management.throw_exception_if_processing_interrupted
    except BaseException:
        with suppress(FastVideoError):  # it has ended, or its server is gone: what is told is the first error
            cancel()
        raise


def _shown(made: Made) -> tuple[Any, Any, Made]:
    """Return what the nodes that make something give."""
    frames = _as_images(made.video.frames)
    return frames, _as_video(frames, made.fps), made


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
    "FastVideoServer": FastVideoServer,
    "FastVideoSampler": FastVideoSampler,
    "FastVideoStream": FastVideoStream,
    "FastVideoSave": FastVideoSave,
}
NODE_DISPLAY_NAME_MAPPINGS = {
    "FastVideoLoader": "FastVideo Loader",
    "FastVideoServer": "FastVideo Server",
    "FastVideoSampler": "FastVideo Sampler",
    "FastVideoStream": "FastVideo Streaming Session",
    "FastVideoSave": "FastVideo Save",
}
