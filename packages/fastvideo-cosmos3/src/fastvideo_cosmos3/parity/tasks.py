"""Rung C1: whole requests with a fixed seed, for every task of the card, against diffusers and transformers.

Diffusers generates and does not think, transformers thinks and does not generate; an omni request is held against both:
its thoughts are those of transformers, and its video that which diffusers makes of the prompt with these thoughts.

Shape letters: C channels; T, H, W latent frames, rows, columns; S tokens; V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from fastvideo_core.parity import CheckContext, Comparison, Measurement, TapRecorder, compare_tensors
from fastvideo_core.request.base import VideoPart
from fastvideo_core.request.build import build_request
from fastvideo_core.runtime.engine import Engine
from fastvideo_core.runtime.prepare import PreparedRequest, prepare_request
from fastvideo_cosmos3.loops.texts import read_text, read_visual
from fastvideo_cosmos3.models.embodiments import ACTION_WIDTHS
from fastvideo_cosmos3.parity.reference import PROMPT, load_pipeline, load_reasoner, make_frames, run_pipeline

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastvideo_core.runtime.run import GenerationResult

__all__ = ["check_answers", "check_omni", "check_tasks"]

_SMALL: Mapping[str, Any] = {"num_inference_steps": 3, "guidance_scale": 3.0, "seed": 11, "resolution_tier": "256p"}
_NUM_TOKENS = 64
_NUM_THOUGHTS = 6
_MODES: tuple[tuple[Literal["exact", "default"], bool], ...] = (("exact", True), ("default", False))
_ARTIFACTS = ("latents", "video", "image", "audio", "actions")


def check_tasks(context: CheckContext) -> Sequence[Measurement]:
    """C1: latents, pixels, sound and actions of every task that diffusers has."""
    pipeline = load_pipeline(context.folder)
    thinking = [name for name, task in context.card.capabilities.tasks.items() if "text" in task.outputs]
    names = [name for name in context.card.capabilities.tasks if name not in thinking]
    return [one for name in names for one in _compare(context, pipeline, name)]


def check_omni(context: CheckContext) -> Sequence[Measurement]:
    """C1: thoughts as those of transformers, and what diffusers makes of prompt and thoughts."""
    pipeline, reasoner = load_pipeline(context.folder), load_reasoner(context.folder)
    names = [name for name, task in context.card.capabilities.tasks.items() if {"text", "video"} <= set(task.outputs)]
    measured = []
    for name in names:
        prompt, negative = _omni_texts(context, name)
        thought = _continue(context, reasoner, torch.tensor([prompt]), _NUM_THOUGHTS).sequences[0].tolist()
        with _reading(pipeline, _closed(context, thought), negative):
            measured += _compare(context, pipeline, name, thoughts=thought[len(prompt) :])
    return measured


def check_answers(context: CheckContext) -> Sequence[Measurement]:
    """C1: greedy tokens of an answer, and the logits that they are chosen from; with an image and a video too."""
    reasoner = load_reasoner(context.folder)
    inputs = context.card.task("reasoning_text").inputs
    shown: list[dict[str, Any]] = [{}]
    if "image" in inputs:
        shown += [
            {"image": make_frames(1, 40, 70)[0]},
            {"video": VideoPart(name="video", frames=make_frames(12, 40, 70), fps=6.0)},
        ]
    return [one for given in shown for one in _compare_answer(context, reasoner, given)]


def _compare_answer(context: CheckContext, reasoner: Any, given: Mapping[str, Any]) -> list[Measurement]:
    recorder = TapRecorder(lambda name: name == "logits")
    request = build_request(
        context.card, PROMPT, task="reasoning_text", inputs=given, parameters={"max_tokens": _NUM_TOKENS, "seed": 0}
    )
    with Engine(context.instance, tap=recorder.tap) as engine:
        tokens = engine.submit(request).result().artifacts["text"].token_ids  # type: ignore[attr-defined]
    ids, extra = _reasoner_inputs(context, prepare_request(context.card, request).inputs)
    made = _continue(context, reasoner, ids, _NUM_TOKENS, **extra)
    name = f"about {next(iter(given), 'text')}"
    expected = made.sequences[0, ids.shape[1] :]
    measured = [Measurement(f"{name}: tokens", "default", _compare_ids(tokens, expected))]
    if len(made.logits) > 1:
        # The first token's logits belong to the prefill, and are compared on rung C0.
        found, wanted = torch.cat([row.value for row in recorder.rows]), torch.cat(made.logits[1:])
        measured.append(Measurement(f"{name}: logits", "default", compare_tensors(found, wanted)))
    return measured


def _continue(context: CheckContext, reasoner: Any, ids: Tensor, count: int, **shown: Tensor) -> Any:
    """Return the likeliest text after `ids`, and its logits, of transformers."""
    with torch.no_grad():
        return reasoner.generate(
            ids, max_new_tokens=count, do_sample=False, eos_token_id=_tokenizer(context).eos_id,
            output_logits=True, return_dict_in_generate=True, **shown,
        )  # fmt: skip


def _compare_ids(ids: Sequence[int], expected: Tensor) -> Comparison:
    return compare_tensors(torch.tensor(ids, dtype=expected.dtype), expected)


def _reasoner_inputs(context: CheckContext, inputs: Mapping[str, Any]) -> tuple[Tensor, dict[str, Any]]:
    """Return the tokens of a conversation and what is shown in it, as transformers takes them."""
    spec, view = context.card.loops["ar_prefill"], context.instance.view
    ids = torch.tensor([read_text(view, spec, {}, {**inputs, "text": "chat", "answers": True}).ids])
    if not {"image", "video"} & set(inputs):
        return ids, {}
    visual = read_visual(context.instance.component("image_processor"), inputs)
    assert visual is not None, "something is shown"
    tokenizer = _tokenizer(context)
    kinds = torch.where(ids == tokenizer.image_id, 1, torch.where(ids == tokenizer.video_id, 2, 0))
    pixels, grid = ("pixel_values_videos", "video_grid_thw") if visual.seconds else ("pixel_values", "image_grid_thw")
    return ids, {pixels: visual.patches_PK, grid: torch.tensor([visual.grid]), "mm_token_type_ids": kinds}


def _compare(
    context: CheckContext, pipeline: Any, task: str, *, thoughts: Sequence[int] | None = None
) -> list[Measurement]:
    given = _inputs(context, task)
    expected = run_pipeline(pipeline, _reference_task(task), _prepared(context, task, given).parameters, given)
    measured = []
    for mode, is_exact in _MODES:
        result, made = _run(context, task, given, is_exact=is_exact)
        if thoughts is not None:
            tokens = result.artifacts["text"].token_ids  # type: ignore[attr-defined]
            measured.append(Measurement(f"{task}: thoughts", mode, _compare_ids(tokens, torch.tensor(thoughts))))
        for name, value in expected.items():
            measured.append(Measurement(f"{task}: {name}", mode, compare_tensors(made[name], value)))
    return measured


def _run(
    context: CheckContext, task: str, given: Mapping[str, Any], *, is_exact: bool
) -> tuple[GenerationResult, dict[str, Tensor]]:
    recorder = TapRecorder(lambda name: name == "pixels")
    with Engine(context.instance, tap=recorder.tap) as engine:
        result = engine.submit(_prepared(context, task, given, is_exact=is_exact).request).result()
    artifacts: Mapping[str, Any] = result.artifacts
    parts = {
        "latents": torch.from_numpy(artifacts["latents"].latents).unsqueeze(0),
        "pixels": torch.cat([row.value for row in recorder.rows], dim=2).clamp(-1, 1),
    }
    if "audio" in artifacts:
        parts["sound"] = torch.from_numpy(artifacts["audio"].samples)
    if "actions" in artifacts:
        parts["actions"] = torch.from_numpy(artifacts["actions"].tensor)
    return result, parts


def _prepared(context: CheckContext, task: str, given: Mapping[str, Any], *, is_exact: bool = False) -> PreparedRequest:
    spec = context.card.task(task)
    wanted = {**_SMALL, **_sizes(context, task), **context.parameters}
    inputs = {name: value for name, value in given.items() if name != "frames"}
    if "frames" in given:
        inputs["video"] = VideoPart(name="video", frames=given["frames"], fps=24.0)
    request = build_request(
        context.card, PROMPT, task=task, inputs=inputs, exact=is_exact,
        outputs=tuple(name for name in (*_ARTIFACTS, "text") if name in spec.outputs),
        parameters={name: value for name, value in wanted.items() if name in spec.parameters},
    )  # fmt: skip
    return prepare_request(context.card, request)


def _sizes(context: CheckContext, task: str) -> dict[str, Any]:
    """Return the sizes of small requests on the card's grid."""
    parameters = context.card.task(task).parameters
    if "chunk_size" in parameters:
        return {"chunk_size": parameters["chunk_size"].multiple_of, "fps": 5.0, "max_tokens": _NUM_THOUGHTS}
    grid = parameters["height"].multiple_of or 16
    length = parameters.get("num_frames")
    frames = {} if length is None else {"num_frames": 2 * int(length.multiple_of or 1) + 1}
    return {"height": 2 * grid, "width": 3 * grid, "max_tokens": _NUM_THOUGHTS, **frames}


def _inputs(context: CheckContext, task: str) -> dict[str, Any]:
    """Return what a task is given besides the prompt; of other sizes than what is made."""
    spec, given = context.card.task(task), {}
    if "image" in spec.inputs:
        given["image"] = make_frames(1, 50, 70)[0]
    if "video" in spec.inputs:
        given["frames"] = make_frames(7, 40, 70)
    if "actions" in spec.inputs:
        width = ACTION_WIDTHS[str(spec.parameters["embodiment"].default)]
        given["actions"] = np.random.default_rng(1).standard_normal((3, width)).astype(np.float32)
    return given


def _reference_task(task: str) -> str:
    """Return the name of a task where the thinking is done: `omni` makes a video with sound, `omni_policy` a policy."""
    return {"omni": "text_to_video_sound", "omni_policy": "policy_sound"}.get(task, task)


def _omni_texts(context: CheckContext, task: str) -> tuple[list[int], list[int]]:
    """Return the tokens that are thought about, and those of the negative prompt, as the card's program reads them."""
    prepared = _prepared(context, task, _inputs(context, task))
    spec, view = context.card.loops["ar_prefill"], context.instance.view
    kinds = ("caption", "caption_negative") if "chunk_size" in prepared.parameters else ("prompt", "negative")
    reads = [
        list(read_text(view, spec, prepared.parameters, {**prepared.inputs, "text": kind, "answers": is_first}).ids)
        for kind, is_first in zip(kinds, (True, False), strict=True)
    ]
    return reads[0], reads[1]


def _closed(context: CheckContext, ids: list[int]) -> list[int]:
    """Return a text that has been written as diffusers' pipeline takes one: with its end and the start of a video."""
    tokenizer = _tokenizer(context)
    end = [] if ids[-1] == tokenizer.eos_id else [tokenizer.eos_id]
    return [*ids, *end, tokenizer.start_of_generation_id]


@contextmanager
def _reading(pipeline: Any, prompt: list[int], negative: list[int]) -> Iterator[None]:
    """Let the pipeline read these tokens in place of its own."""
    pipeline.tokenize_prompt = lambda *_, **__: (prompt, negative)
    try:
        yield
    finally:
        del pipeline.tokenize_prompt


def _tokenizer(context: CheckContext) -> Any:
    return context.instance.component("text_tokenizer")
