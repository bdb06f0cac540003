"""`VideoGenerator`, under the names that people who come from FastVideo know: a thin front on the same engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from fastvideo_core.errors import InputError, ParameterError
from fastvideo_core.extend.extensions import NO_EXTENSIONS
from fastvideo_core.request.build import build_request
from fastvideo_core.request.media.output import VIDEO_FORMATS, OutputTarget, check_output, default_output
from fastvideo_core.runtime.engine import Engine, RequestHandle
from fastvideo_core.runtime.prepare import PreparedRequest, prepare_request

if TYPE_CHECKING:
    from fastvideo_core.deploy import Deployment, ResolvedConfig
    from fastvideo_core.request.media.pixels import Frames
    from fastvideo_core.request.parameters import ResolvedParameters

__all__ = ["GeneratedVideo", "VideoGenerator"]

_SECTIONS = {
    "inputs": ("image_path",),
    "output": ("output_path", "output_video_name", "save_video"),
}
"""Parts of a request mapping that are not parameters of the card."""


@dataclass(frozen=True, slots=True)
class GeneratedVideo:
    """One video.

    Attributes:
        prompt: What it was made from.
        frames: uint8 (T, H, W, 3).
        fps: Frames a second.
        seed: The seed that ran.
        generation_time: Seconds from acceptance to the last frame.
        parameters: What it ran with, with the source of each value.
        video_path: The file; None if it was not saved.
    """

    prompt: str
    frames: Frames
    fps: float
    seed: int | None
    generation_time: float
    parameters: ResolvedParameters
    video_path: str | None


class VideoGenerator:
    """Makes videos from prompts with one resident model.

    Make one with `from_pretrained`; close it with `shutdown`, or use it as a context manager.

    Args:
        engine: The engine; the generator closes it.
        deployment: The deploy config that the engine runs under; None if there is none.
    """

    def __init__(self, engine: Engine, deployment: Deployment | None = None) -> None:
        self.engine = engine
        self.deployment = deployment

    @classmethod
    def from_pretrained(
        cls,
        model_path: str | Path | None = None,
        *,
        num_gpus: int = 1,
        device: str = "auto",
        precision: str | None = None,
        revision: str | None = None,
        config: str | Path | ResolvedConfig | None = None,
        **unsupported: Any,
    ) -> Self:
        """Load a model.

        Args:
            model_path: Hub repository `org/name`, local folder, or id of an installed card; None takes the config's.
            num_gpus: One; other numbers are refused.
            device: "auto", "cpu", "cuda" or "cuda:<index>".
            precision: "float32", "bfloat16" or "float16"; None takes the card's default.
            revision: Commit, tag or branch of a hub repository; None takes the card's own.
            config: Deploy config: a file, or one that is resolved. Its plugins are on, its limits hold, and its
                parameters, device, precision and output folder stand in for what is not given here.
            **unsupported: Anything else is refused by name.

        Raises:
            InputError: An option that does not exist here, an unknown model, or a config that is wrong.
            PluginError: A plugin that the config switches on fails.
            CheckpointError: Weights are missing or broken.
            ResourceError: They do not fit.
        """
        known = "model_path, num_gpus, device, precision, revision, config"
        for name, value in unsupported.items():
            raise ParameterError("there is no such option here", field=name, value=value, allowed=known)
        if num_gpus != 1:
            raise ParameterError("one device runs a model", field="num_gpus", value=num_gpus, allowed="1", nearest=1)
        if model_path is None and (config is None or revision is not None):
            raise ParameterError("no model is named", field="model_path", value=None, allowed="a name, or a config")
        model = None if model_path is None else str(model_path) if revision is None else f"{model_path}@{revision}"
        if config is None:
            return cls(Engine.open(str(model), device=device, precision=precision))
        from fastvideo_core.deploy import ResolvedConfig, deploy, resolve_config

        deployment = deploy(config if isinstance(config, ResolvedConfig) else resolve_config(config))
        return cls(deployment.open(model, device=device, precision=precision), deployment)

    def generate(
        self,
        request: str | Sequence[str] | Mapping[str, Any],
        *,
        output_path: str | Path | None = None,
        output_video_name: str | None = None,
        save_video: bool = True,
        image_path: Any = None,
        exact: bool = False,
        plugins: Mapping[str, Mapping[str, Any]] | None = None,
        **parameters: Any,
    ) -> GeneratedVideo | list[GeneratedVideo]:
        """Make a video, or one a prompt.

        Args:
            request: A prompt; several prompts; or a mapping with `prompt`, `negative_prompt` and the sections `inputs`,
                `sampling` and `output`.
            output_path: A folder, in which the file is named after prompt and seed; or a file with an extension. None
                takes the config's folder, or `outputs`.
            output_video_name: Name of the file in that folder, without an extension it is an `.mp4`.
            save_video: Whether a file is written.
            image_path: For tasks that take an image: a path, a PIL image, or uint8 pixels (H, W, 3).
            exact: Whether to follow the reference's order of operations to the bit.
            plugins: Options of plugins that the config switches on, by plugin.
            **parameters: The card's own: `num_frames`, `height`, `width`, `num_inference_steps`, `guidance_scale`,
                `flow_shift`, `seed`, `fps`, `negative_prompt` and others.

        Returns:
            One video, or a list where several prompts were given.

        Raises:
            InputError: Something given is not allowed; nothing has been run.
            ExecutionError: A step failed.
        """
        if isinstance(request, Mapping):
            given = {
                "output_path": output_path,
                "output_video_name": output_video_name,
                "save_video": save_video,
                "image_path": image_path,
                "exact": exact,
                "plugins": plugins,
                **parameters,
            }
            return self.generate(**{**given, **_flatten(request)})
        prompts = [request] if isinstance(request, str) else _prompts(request)
        folder = self._folder if output_path is None else _path("output_path", output_path)
        name = None if output_video_name is None else _file_name(output_video_name)
        prepared = [self._prepare(prompt, image_path, parameters, plugins, exact=exact) for prompt in prompts]
        targets = [
            _target(one, prompt, folder, name, is_single=len(prompts) == 1) if save_video else None
            for one, prompt in zip(prepared, prompts, strict=True)
        ]
        videos = self._run(prompts, prepared, targets)
        return videos[0] if isinstance(request, str) else videos

    def generate_video(self, prompt: str, **options: Any) -> GeneratedVideo | list[GeneratedVideo]:
        """Make a video; `generate` under its older name."""
        return self.generate(prompt, **options)

    def shutdown(self) -> None:
        """Cancel what runs and free the model."""
        self.engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    def _run(
        self, prompts: Sequence[str], prepared: Sequence[PreparedRequest], targets: Sequence[OutputTarget | None]
    ) -> list[GeneratedVideo]:
        """Run requests together; where one fails, the others are cancelled."""
        handles = [self.engine.submit_prepared(one) for one in prepared]
        try:
            return [_collect(*parts) for parts in zip(prompts, handles, targets, strict=True)]
        except BaseException:
            for handle in handles:
                handle.cancel("another video of the same call failed")
            raise

    @property
    def _folder(self) -> Path:
        return Path("outputs") if self.deployment is None else self.deployment.resolved.config.output.folder

    def _prepare(
        self,
        prompt: str,
        image: Any,
        parameters: Mapping[str, Any],
        plugins: Mapping[str, Mapping[str, Any]] | None,
        *,
        exact: bool,
    ) -> PreparedRequest:
        card, deployment = self.engine.card, self.deployment
        request = build_request(card, prompt, image=image, exact=exact, parameters=parameters, plugins=plugins)
        if deployment is None:
            return prepare_request(card, request, extensions=NO_EXTENSIONS)
        return prepare_request(
            card,
            request,
            deploy=deployment.parameters(card, request.task),
            extensions=deployment.extensions_for(card),
        )


def _prompts(request: Any) -> list[str]:
    """Return several prompts as a list."""
    if not isinstance(request, Sequence) or isinstance(request, (bytes, bytearray)):
        raise InputError("not a prompt", field="prompt", value=request, allowed="text, or a list of texts")
    return list(request)


def _path(field: str, value: Any) -> Path:
    if not isinstance(value, (str, Path)):
        raise ParameterError("not a path", field=field, value=value, allowed="text, or a path")
    return Path(value)


def _file_name(value: Any) -> str:
    path = _path("output_video_name", value)
    if path.name != str(path):
        raise ParameterError(
            "a file's name has no folder in it", field="output_video_name", value=str(value), allowed="a name",
            nearest=path.name,
        )  # fmt: skip
    return path.name


def _flatten(request: Mapping[str, Any]) -> dict[str, Any]:
    """Turn a request mapping with sections into arguments of `generate`."""
    flat: dict[str, Any] = {}
    for name, value in request.items():
        if not isinstance(name, str):
            raise ParameterError("not a field's name", field="request", value=name, allowed="text")
        if name in ("sampling", *_SECTIONS) and not isinstance(value, Mapping):
            raise ParameterError("not a section", field=name, value=value, allowed="a mapping")
        if name == "sampling":
            _check_sampling(value)
            flat.update(value)
        elif name in _SECTIONS:
            for part, content in value.items():
                if part not in _SECTIONS[name]:
                    raise ParameterError(
                        "there is no such field here",
                        field=f"{name}.{part}",
                        value=content,
                        allowed=", ".join(_SECTIONS[name]),
                    )
                flat[part] = content
        else:
            flat[name] = value
    if "prompt" not in flat:
        raise InputError("the request has no prompt", field="prompt", value=None, allowed="text, or a list of texts")
    flat["request"] = flat.pop("prompt")
    return flat


def _check_sampling(section: Mapping[str, Any]) -> None:
    """Refuse what would be taken for something else than a parameter of the card."""
    elsewhere = {part: name for name, parts in _SECTIONS.items() for part in parts}
    for part, content in section.items():
        if part in ("prompt", "request") or part in elsewhere:
            place = elsewhere.get(part, "the request itself")
            raise ParameterError(
                "not a parameter", field=f"sampling.{part}", value=content, allowed=f"{part} in {place}"
            )  # fmt: skip


def _target(prepared: PreparedRequest, prompt: str, path: Path, name: str | None, *, is_single: bool) -> OutputTarget:
    """Check where a video goes, before it is made."""
    if path.suffix.lower() in VIDEO_FORMATS or name is not None:
        if not is_single:
            raise ParameterError(
                "several videos cannot have one name", field="output_path", value=str(path), allowed="a folder"
            )
        full = path if name is None else path / name
        return check_output(full if full.suffix else full.with_suffix(".mp4"), field="output_path")
    return default_output(prompt, prepared.parameters.get("seed", 0), folder=path)


def _collect(prompt: str, handle: RequestHandle, target: OutputTarget | None) -> GeneratedVideo:
    result = handle.result()
    video = result.video
    saved = None if target is None else video.save(target)
    return GeneratedVideo(
        prompt=prompt,
        frames=video.frames,
        fps=float(video.fps),
        seed=result.seed,
        generation_time=result.duration_s,
        parameters=result.parameters,
        video_path=None if saved is None else str(saved.path),
    )
