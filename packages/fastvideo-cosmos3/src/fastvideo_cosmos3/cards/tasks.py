"""The tasks of a Cosmos3 card: what each takes, what it makes, and its parameters."""

from __future__ import annotations

from typing import Any

from fastvideo_core.card import InputSpec, ParameterSpec, TaskSpec
from fastvideo_cosmos3.cards.facts import Cosmos3Facts
from fastvideo_cosmos3.models.embodiments import CANVASES, VIEW_POINTS

__all__ = ["make_tasks"]

_MAX_SEED = 2**63 - 1
_PROMPT = InputSpec(modality="text", description="What to show.")
_SHOWN = {
    "image": InputSpec(modality="image", description="First frame; it covers the video's size."),
    "video": InputSpec(
        modality="video", description="Its beginning or its end is kept; stretched to the video's size."
    ),
}
_ABOUT = {
    "": "A video from a prompt.",
    "image": "A video from a prompt and its first frame.",
    "video": "A video from a prompt that goes on from another.",
}
_NAMES = {"": "text_to_video", "image": "image_to_video", "video": "video_to_video"}


def make_tasks(facts: Cosmos3Facts) -> dict[str, TaskSpec]:
    """Return the tasks by name; those that need what the checkpoint lacks are not there."""
    tasks = {"text_to_video": _video(facts, "")}
    tasks["text_to_image"] = _task(
        "TEXT_TO_IMAGE",
        {"prompt": _PROMPT},
        {"image": "image", "latents": "latents"},
        {**_size(facts), **_denoising(facts)},
        "An image from a prompt.",
    )
    tasks |= {_NAMES[shown]: _video(facts, shown) for shown in ("image", "video")}
    if facts.has_sound:
        tasks |= {f"{name}_sound": _video(facts, shown, has_sound=True) for shown, name in _NAMES.items()}
    tasks["reasoning_text"] = _reasoning(facts)
    if facts.embodiments:
        tasks |= _actions(facts)
    if facts.has_sound:
        tasks |= _omni(facts)
    return tasks


def _task(
    program: str,
    inputs: dict[str, InputSpec],
    outputs: dict[str, Any],
    parameters: dict[str, ParameterSpec],
    description: str,
) -> TaskSpec:
    return TaskSpec(
        program=f"fastvideo_cosmos3.programs:{program}",
        inputs=inputs,
        outputs=outputs,
        parameters=parameters,
        description=description,
    )


def _video(facts: Cosmos3Facts, shown: str, *, has_sound: bool = False) -> TaskSpec:
    inputs = {"prompt": _PROMPT, **({shown: _SHOWN[shown]} if shown else {})}
    sound = {"audio": "audio"} if has_sound else {}
    parameters = {**_length(facts), **_size(facts), **_denoising(facts), **(_kept() if shown == "video" else {})}
    name = f"{_NAMES[shown]}{'_sound' if has_sound else ''}".upper()
    about = f"{_ABOUT[shown][:-1]}, with sound." if has_sound else _ABOUT[shown]
    return _task(name, inputs, {"video": "video", **sound, "latents": "latents"}, parameters, about)


def _reasoning(facts: Cosmos3Facts) -> TaskSpec:
    inputs = {
        "prompt": InputSpec(modality="text", description="What to answer."),
        "history": InputSpec(
            modality="text", required=False, description="The turns before it: JSON list of role and content."
        ),
    }
    if facts.has_vision:
        inputs["image"] = InputSpec(modality="image", required=False, description="What the question is about.")
        inputs["video"] = InputSpec(modality="video", required=False, description="The same, as a video.")
    about = "An answer to a question about text, an image or a video."
    return _task("REASONING", inputs, {"text": "text"}, {**_writing(256), "seed": _SEED}, about)


def _actions(facts: Cosmos3Facts) -> dict[str, TaskSpec]:
    image = {"image": InputSpec(modality="image", description="What the agent sees first.")}
    given = {"actions": InputSpec(modality="action", description="Actions (steps, width of the embodiment).")}
    video = {"video": InputSpec(modality="video", description="What the agent saw.")}
    done = {"video": "video", "actions": "action", "latents": "latents"}
    seen = {"video": "video", "latents": "latents"}
    parameters = {**_acting(facts), **_denoising(facts)}
    doing = {"prompt": InputSpec(modality="text", description="What is to be done.")}
    tasks = {
        "policy": _task("POLICY", doing | image, done, parameters, "Actions and their video, from a view."),
        "forward_dynamics": _task(
            "FORWARD_DYNAMICS", doing | image | given, seen, parameters, "A video of given actions, from a view."
        ),
        "inverse_dynamics": _task(
            "INVERSE_DYNAMICS", doing | video, done, parameters, "The actions between the frames of a video."
        ),
    }
    if facts.has_sound:
        outputs = {"video": "video", "actions": "action", "audio": "audio", "latents": "latents"}
        about = "Actions and their video with sound, from a view."
        tasks["policy_sound"] = _task("POLICY_SOUND", doing | image, outputs, parameters, about)
    return tasks


def _omni(facts: Cosmos3Facts) -> dict[str, TaskSpec]:
    outputs = {"video": "video", "text": "text", "audio": "audio", "latents": "latents"}
    parameters = {**_length(facts), **_size(facts), **_denoising(facts), **_writing(64)}
    about = "Thoughts about a prompt, and from them a video with sound."
    tasks = {"omni": _task("OMNI", {"prompt": _PROMPT}, outputs, parameters, about)}
    if facts.embodiments:
        view = {"prompt": _PROMPT, "image": InputSpec(modality="image", description="What the agent sees first.")}
        acting = {**_acting(facts), **_denoising(facts), **_writing(64)}
        about = "Thoughts about a task, and from them actions and their video with sound."
        tasks["omni_policy"] = _task("OMNI_POLICY", view, {**outputs, "actions": "action"}, acting, about)
    return tasks


_SEED = ParameterSpec(
    type="integer",
    default=None,
    minimum=0,
    maximum=_MAX_SEED,
    is_nullable=True,
    description="Seed of all that is drawn; null draws one, which is reported.",
)


def _size(facts: Cosmos3Facts) -> dict[str, ParameterSpec]:
    return {
        name: ParameterSpec(
            type="integer",
            default=default,
            minimum=facts.spatial_grid,
            maximum=4096,
            multiple_of=facts.spatial_grid,
            unit="pixels",
            description=f"{name.capitalize()} of what is made.",
        )
        for name, default in (("height", facts.height), ("width", facts.width))
    }


_FPS = ParameterSpec(
    type="number",
    default=24.0,
    minimum=1,
    maximum=240,
    unit="frames a second",
    description="Frame rate; the model is told, and the file has it.",
)


def _length(facts: Cosmos3Facts) -> dict[str, ParameterSpec]:
    factor = facts.temporal_factor
    default = (facts.num_frames - 1) // factor * factor + 1
    return {
        "num_frames": ParameterSpec(
            type="integer",
            default=default,
            minimum=factor + 1,
            maximum=1000 * factor + 1,
            multiple_of=factor,
            offset=1,
            unit="frames",
            description="Length of the video.",
        ),
        "fps": _FPS,
    }


def _denoising(facts: Cosmos3Facts) -> dict[str, ParameterSpec]:
    samplers = tuple(dict.fromkeys((facts.sampler, "unipc", "flow_euler", "dpmpp_2m")))
    return {
        "num_inference_steps": ParameterSpec(
            type="integer", default=35, minimum=1, maximum=1000, description="Sampler steps."
        ),
        "guidance_scale": ParameterSpec(
            type="number",
            default=6.0,
            minimum=0,
            maximum=50,
            description="Weight of the prompt; 1 switches guidance off.",
        ),
        "negative_prompt": ParameterSpec(
            type="string", default="", is_nullable=True, description="What to steer away from."
        ),
        "flow_shift": ParameterSpec(
            type="number",
            default=facts.flow_shift,
            minimum=0.01,
            maximum=100,
            description="How much of the schedule is spent at high noise.",
        ),
        "sampler": ParameterSpec(
            type="string", default=facts.sampler, choices=samplers, description="How a step is made."
        ),
        "seed": _SEED,
    }


def _kept() -> dict[str, ParameterSpec]:
    return {
        "condition_frames": ParameterSpec(
            type="integers", default=[0, 1], minimum=0, description="Latent frames that are kept of the video."
        ),
        "condition_keep": ParameterSpec(
            type="string", default="first", choices=("first", "last"), description="Which end of the video they are of."
        ),
    }


def _acting(facts: Cosmos3Facts) -> dict[str, ParameterSpec]:
    factor = facts.temporal_factor
    return {
        "embodiment": ParameterSpec(
            type="string",
            default=facts.embodiments[0],
            choices=facts.embodiments,
            description="Whose actions they are.",
        ),
        "chunk_size": ParameterSpec(
            type="integer",
            default=4 * factor,
            minimum=factor,
            maximum=256 * factor,
            multiple_of=factor,
            unit="actions",
            description="Actions; there is one frame more.",
        ),
        "resolution_tier": ParameterSpec(
            type="string", default="480p", choices=tuple(CANVASES), description="Canvas that the view is laid on."
        ),
        "view_point": ParameterSpec(
            type="string", default="ego_view", choices=tuple(VIEW_POINTS), description="Where the camera is."
        ),
        "fps": _FPS,
    }


def _writing(max_tokens: int) -> dict[str, ParameterSpec]:
    return {
        "max_tokens": ParameterSpec(
            type="integer",
            default=max_tokens,
            minimum=1,
            maximum=16384,
            unit="tokens",
            description="Most tokens that are written.",
        ),
        "temperature": ParameterSpec(
            type="number",
            default=0.0,
            minimum=0,
            maximum=5,
            description="Spread of what is drawn; 0 takes the likeliest.",
        ),
        "top_p": ParameterSpec(
            type="number", default=1.0, minimum=0.001, maximum=1, description="Probability of what is drawn from."
        ),
        "top_k": ParameterSpec(
            type="integer", default=0, minimum=0, maximum=100000, description="Tokens that are drawn from; 0 is all."
        ),
        "stop": ParameterSpec(type="strings", default=[], description="Texts at which writing ends."),
    }
