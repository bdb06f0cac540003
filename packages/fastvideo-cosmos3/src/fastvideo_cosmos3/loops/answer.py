"""`ar_decode`: an answer, a token a step, in one call with the answers of all other requests.

Shape letters: N layers; Z keys and values; B rows; S tokens; V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fastvideo_core.card import LoopSpec
from fastvideo_core.loop.base import LoopContext, LoopRequest, LoopResult, ModelView, StepContext
from fastvideo_core.loop.plans import make_plan
from fastvideo_core.loop.state import LoopState
from fastvideo_core.loop.work import Done, EmitSpec, Profile, StepResult, WorkKind, WorkPlan
from fastvideo_core.request.cancel import CancelScope
from fastvideo_cosmos3.loops.choosing import Choosing, choose_tokens, draw_uniforms
from fastvideo_cosmos3.loops.costs import text_cost, text_kv_bytes, text_peak_bytes
from fastvideo_cosmos3.loops.events import refuse_event
from fastvideo_cosmos3.loops.pages import CACHE, TextPages, append_tokens, num_pages, stack_pages
from fastvideo_cosmos3.loops.prefill import TextContext
from fastvideo_cosmos3.loops.writing import STREAM, GeneratedText, Writing, text_chunks, write_token
from fastvideo_cosmos3.models.transformer import Cosmos3Transformer

if TYPE_CHECKING:
    from fastvideo_core.runtime.instance import ModelInstance

__all__ = ["AnswerLoop", "AnswerOutputs", "AnswerPayload", "AnswerState", "AnswerValues", "run_step"]


@dataclass(slots=True)
class AnswerState(LoopState):
    """State of an answer.

    Attributes:
        pages: Keys and values of all tokens but the last.
        writing: The answer so far.
        choosing: How tokens are chosen.
        uniforms: What each token is drawn with.
        scope: What cancels it.
        profile: Serve, rollout or train.
        is_exact: Whether it has calls of its own.
    """

    pages: TextPages
    writing: Writing
    choosing: Choosing
    uniforms: Tensor
    scope: CancelScope
    profile: Profile
    is_exact: bool


@dataclass(frozen=True, slots=True)
class AnswerPayload:
    """A token to read and its successor to choose.

    Attributes:
        pages: What was read before it.
        writing: The answer so far; the token is its last.
        choosing: How the next one is chosen.
        uniforms: What each token of the answer is drawn with.
    """

    pages: TextPages
    writing: Writing
    choosing: Choosing
    uniforms: Tensor


@dataclass(frozen=True, slots=True)
class AnswerValues:
    """The text with the token that was read, and the answer with the one that was chosen."""

    pages: TextPages
    writing: Writing


@dataclass(frozen=True, slots=True)
class AnswerOutputs:
    """What the loop hands on."""

    text: GeneratedText
    context: TextContext


class AnswerLoop:
    """Writes an answer.

    Args:
        spec: The card's loop.
        model: The resident model.
    """

    def __init__(self, spec: LoopSpec, model: ModelView) -> None:
        self._spec = spec
        self._model = model

    def init(self, request: LoopRequest, ctx: LoopContext) -> AnswerState:
        """Take up the text that was read."""
        context: TextContext = request.inputs["context"]
        assert context.writing is not None, "the prefill has chosen the first token"
        generator = ctx.make_generator(int(request.parameters["seed"]))
        return AnswerState(
            pages=context.pages,
            writing=context.writing,
            choosing=Choosing.of(request.parameters),
            uniforms=draw_uniforms(generator, context.writing.max_tokens),
            scope=request.cancel_scope,
            profile=request.profile,
            is_exact=request.is_exact,
        )

    def next(self, state: AnswerState) -> WorkPlan[AnswerPayload] | Done:
        """Read the last token and choose the next, unless the answer has ended."""
        if state.writing.finish:
            return Done()
        config, past = self._model.config("transformer"), state.pages.num_tokens
        return make_plan(
            self._spec,
            self._model,
            state,
            AnswerPayload(state.pages, state.writing, state.choosing, state.uniforms),
            component="transformer",
            kind=WorkKind.AR_TOKEN,
            cost=text_cost(config, 1, past, num_logits=1),
            peak_bytes=text_peak_bytes(config, 1, past),
            resident_bytes=text_kv_bytes(config, 1),
            cache_blocks={CACHE: num_pages(past + 1) - num_pages(past)},
            step_index=len(state.writing.token_ids) - 1,
            num_steps=state.writing.max_tokens - 1,
            emits=(EmitSpec(STREAM, "text"),),
        )

    def advance(self, state: AnswerState, result: StepResult[AnswerValues]) -> AnswerState:
        """Keep the token."""
        state.pages = result.values.pages
        state.writing = result.values.writing
        return state

    def apply(self, state: AnswerState, event: Any) -> AnswerState:
        """Refuse: an answer takes no outside event."""
        raise refuse_event("an answer", event)

    def finalize(self, state: AnswerState) -> LoopResult:
        """Hand the answer on, and what was read for it."""
        context = TextContext(state.pages, state.writing)
        num_read = state.pages.num_tokens - (len(state.writing.token_ids) - 1)
        return LoopResult({"text": state.writing.result(num_read=num_read), "context": context})


def run_step(
    instance: ModelInstance, plans: Sequence[WorkPlan[AnswerPayload]], ctx: StepContext
) -> Sequence[StepResult[AnswerValues]]:
    """Read and choose a token of each answer, as rows of one call."""
    model: Cosmos3Transformer = instance.component("transformer")
    payloads = [plan.payload for plan in plans]
    ids_B1 = torch.tensor([[payload.writing.token_ids[-1]] for payload in payloads])
    positions_AB1 = torch.tensor([[payload.pages.next_position] for payload in payloads]).float().expand(3, -1, -1)
    hidden_B1C, own = model.understand(
        ids_B1.to(model.device),
        model.rotary(positions_AB1),
        past_NZBSHD=stack_pages([payload.pages for payload in payloads], room=1),
        mask=_mask([payload.pages.num_tokens for payload in payloads], model.device),
    )
    logits_BV = model.lm_head(hidden_B1C[:, 0]).float()
    ctx.tap("logits", logits_BV)
    finite = torch.isfinite(logits_BV).all(dim=-1).tolist()
    uniforms = [float(payload.uniforms[len(payload.writing.token_ids)]) for payload in payloads]
    tokens = choose_tokens(logits_BV, [payload.choosing for payload in payloads], uniforms)
    tokenizer = instance.component("text_tokenizer")
    results = []
    for row, (payload, token) in enumerate(zip(payloads, tokens, strict=True)):
        writing = write_token(tokenizer, payload.writing, token)
        pages = append_tokens(payload.pages, own[:, :, row], payload.pages.next_position + 1)
        chunks = text_chunks(payload.writing, writing)
        results.append(StepResult(AnswerValues(pages, writing), is_finite=finite[row], chunks=chunks))
    return results


def _mask(lengths: Sequence[int], device: torch.device) -> Tensor | None:
    """Return which keys each row's token sees; None if all rows have as many."""
    longest = max(lengths)
    if min(lengths) == longest:
        return None
    seen = torch.arange(longest + 1, device=device) < torch.tensor(lengths, device=device).unsqueeze(1)
    seen[:, longest] = True  # each token sees itself
    return seen.view(len(lengths), 1, 1, longest + 1)
