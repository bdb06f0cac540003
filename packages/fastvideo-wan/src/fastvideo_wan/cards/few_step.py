"""The card of a few-step student: the teacher's, with the loop and the tasks that distilled weights assume."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastvideo_core.card import ModelCard, TaskSpec
from fastvideo_core.errors import CardError

__all__ = ["few_step_card"]

_LOOP = "dmd_denoise"
_TEACHERS = "diffusion_denoise"
_GUIDANCE = ("guidance_scale", "guidance_scale_2", "negative_prompt", "expert_switch_step")


def few_step_card(teacher: ModelCard, *, steps: Sequence[int], flow_shift: float | None = None) -> ModelCard:
    """Return the card of weights that are to be distilled from a teacher's.

    Args:
        teacher: A card that makes videos from text in many steps.
        steps: Training steps at which the student predicts, falling, each from 1 to 1000.
        flow_shift: Shift of its noise levels; None keeps the teacher's.

    Raises:
        CardError: The teacher has no such loop or task, or the steps are none.
    """
    levels = list(steps)
    if not levels or levels != sorted(set(levels), reverse=True) or not 1 <= levels[-1] <= levels[0] <= 1000:
        raise CardError("not the steps of a student", field="steps", value=levels, allowed="falling, from 1000 to 1")
    if _TEACHERS not in teacher.loops or "text_to_video" not in teacher.capabilities.tasks:
        raise CardError(
            "no teacher for few steps", field="card", value=teacher.model_id,
            allowed=f"a card with the loop {_TEACHERS} and the task text_to_video",
        )  # fmt: skip
    task = teacher.task("text_to_video")
    shift = float(task.parameters["flow_shift"].default if flow_shift is None else flow_shift)  # type: ignore[arg-type]
    pinned = {"sampler": "lcm", "num_inference_steps": len(levels), "flow_shift": shift}
    loops = {name: loop for name, loop in teacher.loops.items() if name != _TEACHERS}
    loop = teacher.loops[_TEACHERS]
    options = {**loop.options, "guidance": "none", "sampler_options": {"lcm": {"steps": levels, "warp": False}}}
    loops[_LOOP] = loop.model_copy(update={"loop_id": _LOOP, "pinned": pinned, "options": options})
    text = loops["text_encode"]
    loops["text_encode"] = text.model_copy(update={"options": {**text.options, "guidance": "none"}})
    capabilities = teacher.capabilities.model_copy(
        update={"tasks": {"text_to_video": _task(task, pinned)}, "default_task": "text_to_video"}
    )
    tests = tuple(test for test in teacher.parity.tests if test.subject not in (_TEACHERS, *_samplers(task)))
    update: dict[str, Any] = {
        "model_id": f"{teacher.model_id}-{len(levels)}step",
        "loops": loops,
        "capabilities": capabilities,
        "recipe": teacher.recipe.model_copy(
            update={"method": "dmd2", "parents": (teacher.model_id,), "assumes_loop": _LOOP}
        ),
        "parity": teacher.parity.model_copy(update={"tests": tests}),
        "figures": {},
    }
    return ModelCard.from_json(teacher.model_copy(update=update).model_dump_json(), origin=teacher.model_id)


def _samplers(task: TaskSpec) -> tuple[str, ...]:
    return task.parameters["sampler"].choices or ()


def _task(task: TaskSpec, pinned: dict[str, Any]) -> TaskSpec:
    parameters = {name: spec for name, spec in task.parameters.items() if name not in _GUIDANCE}
    for name, value in pinned.items():
        update: dict[str, Any] = {"default": value}
        if name == "sampler":
            update["choices"] = ("lcm",)
        parameters[name] = parameters[name].model_copy(update=update)
    return task.model_copy(
        update={"program": "fastvideo_wan.programs:FEW_STEP_TEXT_TO_VIDEO", "parameters": parameters}
    )
