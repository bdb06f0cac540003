"""Text encoding as a loop: one step a prompt (with guidance, the negative prompt is a second one).

Shape letters: B rows; L tokens; E text width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from fastvideo_core.card import LoopSpec
from fastvideo_core.errors import InputError, PromptError
from fastvideo_core.loop.base import LoopContext, LoopRequest, LoopResult, ModelView, StepContext
from fastvideo_core.loop.state import LoopState
from fastvideo_core.loop.work import Done, ShapeSignature, StepResult, WorkKind, WorkPlan
from fastvideo_core.request.cancel import CancelScope
from fastvideo_core.request.parameters import ResolvedParameters
from fastvideo_testing.tiny.plans import make_plan

if TYPE_CHECKING:
    from fastvideo_core.runtime.instance import ModelInstance

__all__ = ["TextLoop", "TextOutputs", "TextPayload", "TextState", "TextValues", "check_prompts", "run_step"]

MAX_TOKENS = 128


@dataclass(slots=True)
class TextState(LoopState):
    """State of text encoding.

    Attributes:
        token_ids: Tokens of each prompt.
        scope: What cancels it.
        embeds_1E: What has been encoded, in the same order.
    """

    token_ids: tuple[tuple[int, ...], ...]
    scope: CancelScope
    embeds_1E: tuple[torch.Tensor, ...] = ()


@dataclass(frozen=True, slots=True)
class TextPayload:
    """One prompt."""

    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TextValues:
    """One encoded prompt."""

    embeds_1E: torch.Tensor


@dataclass(frozen=True, slots=True)
class TextOutputs:
    """What the loop hands on: encoded prompts."""

    embeds: tuple[torch.Tensor, ...]


class TextLoop:
    """Encodes the prompt of a request, and with guidance its negative prompt."""

    def __init__(self, spec: LoopSpec, model: ModelView) -> None:
        self._spec = spec
        self._model = model

    def init(self, request: LoopRequest, ctx: LoopContext) -> TextState:
        """Tokenize the prompts.

        Raises:
            PromptError: A prompt has too many tokens.
        """
        return TextState(_tokenize_all(self._model, request.parameters, request.inputs), request.cancel_scope)

    def next(self, state: TextState) -> WorkPlan[TextPayload] | Done:
        """Encode the next prompt."""
        index = len(state.embeds_1E)
        if index == len(state.token_ids):
            return Done()
        return make_plan(
            self._spec,
            self._model,
            TextPayload(state.token_ids[index]),
            component="text_encoder",
            kind=WorkKind.ENCODER_CHUNK,
            shape=ShapeSignature.of(),
            flops=float(MAX_TOKENS * self._model.config("text_encoder").text_dim),
            scope=state.scope,
            step_index=index,
            num_steps=len(state.token_ids),
            shared_inputs={"token_ids": state.token_ids[index]},
        )

    def advance(self, state: TextState, result: StepResult[TextValues]) -> TextState:
        """Keep an encoded prompt."""
        state.embeds_1E = (*state.embeds_1E, result.values.embeds_1E)
        return state

    def apply(self, state: TextState, event: Any) -> TextState:
        """Refuse: text encoding takes no outside event."""
        raise InputError("text encoding takes no events", field="event", value=type(event).__name__, allowed="none")

    def finalize(self, state: TextState) -> LoopResult:
        """Hand the encoded prompts on."""
        return LoopResult({"embeds": state.embeds_1E})


def check_prompts(
    spec: LoopSpec,  # noqa: ARG001 - the contract's signature
    model: ModelView,
    parameters: ResolvedParameters,
    inputs: Mapping[str, Any],
) -> Sequence[str]:
    """Refuse a prompt with too many tokens, before weights are there; there is nothing to warn of.

    Raises:
        PromptError: It has too many.
    """
    _tokenize_all(model, parameters, inputs)
    return ()


def run_step(
    instance: ModelInstance, plans: Sequence[WorkPlan[TextPayload]], ctx: StepContext
) -> Sequence[StepResult[TextValues]]:
    """Encode the prompts of a batch, one after the other: rows of unequal length would need padding."""
    return [StepResult(TextValues(_encode(instance, plan.payload, ctx))) for plan in plans]


def _encode(instance: ModelInstance, payload: TextPayload, ctx: StepContext) -> torch.Tensor:
    ids_1L = torch.tensor([payload.token_ids], dtype=torch.long, device=instance.device)
    embeds_1E: torch.Tensor = instance.component("text_encoder")(ids_1L, torch.ones_like(ids_1L))
    ctx.tap("embeds", embeds_1E)
    return embeds_1E.float()


def _tokenize_all(
    model: ModelView, parameters: ResolvedParameters, inputs: Mapping[str, Any]
) -> tuple[tuple[int, ...], ...]:
    texts = {"prompt": str(inputs["prompt"])}
    if parameters["guidance_scale"] > 1:
        texts["negative_prompt"] = str(parameters["negative_prompt"])
    tokenizer = model.component("tokenizer")
    return tuple(_tokenize(tokenizer, name, text) for name, text in texts.items())


def _tokenize(tokenizer: Any, name: str, text: str) -> tuple[int, ...]:
    ids: tuple[int, ...] = tokenizer.encode(text)
    if len(ids) > MAX_TOKENS:
        raise PromptError(
            f"the text has {len(ids)} tokens", field=name, value=text[:40], allowed=f"at most {MAX_TOKENS} tokens"
        )
    return ids
