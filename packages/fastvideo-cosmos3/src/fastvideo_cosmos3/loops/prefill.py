"""`ar_prefill`: a text through the understanding pathway, once a request. The reasoner and the denoiser go on from it.

It reads a new text, or the end of one that another loop has written. Where an answer follows, the last token's logits
choose the first token of the answer, so that it is there as soon as the text is read.

Shape letters: N layers; Z keys and values; B rows; S tokens; H heads; D width of a head; C width; A axes; V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fastvideo_core.card import LoopSpec
from fastvideo_core.errors import InputError
from fastvideo_core.loop.base import LoopContext, LoopRequest, LoopResult, ModelView, StepContext
from fastvideo_core.loop.plans import make_plan
from fastvideo_core.loop.state import LoopState
from fastvideo_core.loop.work import Done, EmitSpec, Profile, StepResult, WorkKind, WorkPlan
from fastvideo_core.request.cancel import CancelScope
from fastvideo_core.request.parameters import ResolvedParameters
from fastvideo_cosmos3.loops.choosing import Choosing, choose_tokens, draw_uniforms
from fastvideo_cosmos3.loops.costs import text_cost, text_kv_bytes, text_peak_bytes
from fastvideo_cosmos3.loops.events import refuse_event
from fastvideo_cosmos3.loops.pages import CACHE, TextPages, append_tokens, num_pages, stack_pages
from fastvideo_cosmos3.loops.texts import TextToRead, check_context, read_text
from fastvideo_cosmos3.loops.writing import STREAM, Writing, text_chunks, write_token
from fastvideo_cosmos3.models.transformer import Cosmos3Transformer, VisualTokens
from fastvideo_cosmos3.models.vision import text_positions

if TYPE_CHECKING:
    from fastvideo_core.runtime.instance import ModelInstance

__all__ = [
    "PrefillLoop",
    "PrefillOutputs",
    "PrefillPayload",
    "PrefillState",
    "PrefillValues",
    "SeenVisual",
    "TextContext",
    "can_share_call",
    "check_text",
    "run_step",
]

CHUNK_TOKENS = 2048
"""Tokens that a step reads at most, so that a long text keeps nobody waiting for long."""


@dataclass(frozen=True, slots=True)
class SeenVisual:
    """What the vision encoder made of an image or a video.

    Attributes:
        embeds_SC: What stands in the text.
        deep_SC: What is added after each of the first layers.
    """

    embeds_SC: Tensor
    deep_SC: tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class TextContext:
    """A text that has been read, and what has been written after it.

    Attributes:
        pages: Keys and values of what has been read.
        writing: The answer so far; its last token has not been read. None where no answer follows.
    """

    pages: TextPages
    writing: Writing | None


@dataclass(slots=True)
class PrefillState(LoopState):
    """State of reading a text.

    Attributes:
        ids: Tokens to read.
        positions_AS: Their positions.
        end_position: The position after them.
        visual_ids: Tokens that stand for what is shown.
        visual: What is shown.
        writing: The answer before its first token; None where none follows.
        choosing: How its first token is chosen.
        uniform: What it is drawn with.
        pages: What has been read.
        num_read: Tokens of `ids` in it.
        num_planned: Steps committed.
        scope: What cancels it.
        profile: Serve, rollout or train.
        is_exact: Whether the reference's order of operations is kept.
    """

    ids: tuple[int, ...]
    positions_AS: Tensor
    end_position: int
    visual_ids: tuple[int, ...]
    visual: SeenVisual | None
    writing: Writing | None
    choosing: Choosing
    uniform: float
    pages: TextPages
    num_read: int
    num_planned: int
    scope: CancelScope
    profile: Profile
    is_exact: bool


@dataclass(frozen=True, slots=True)
class PrefillPayload:
    """Tokens to read.

    Attributes:
        ids: The tokens.
        positions_AS: Their positions.
        end_position: The position after them; None where the text goes on, so that it is the one after the furthest.
        pages: What has been read before.
        places_S: Where among them something is shown.
        visual: What is shown there.
        writing: The answer whose first token is chosen after them; None if none is.
        choosing: How.
        uniform: What it is drawn with.
    """

    ids: tuple[int, ...]
    positions_AS: Tensor
    end_position: int | None
    pages: TextPages
    places_S: tuple[int, ...]
    visual: SeenVisual | None
    writing: Writing | None
    choosing: Choosing
    uniform: float


@dataclass(frozen=True, slots=True)
class PrefillValues:
    """The text with what a step has read, and the answer with its first token if it was chosen."""

    pages: TextPages
    writing: Writing | None


@dataclass(frozen=True, slots=True)
class PrefillOutputs:
    """What the loop hands on; None where there was nothing to read."""

    context: TextContext | None


class PrefillLoop:
    """Reads a text.

    Args:
        spec: The card's loop. Options: `max_context`, most tokens of a text with its answer; `system_prompt`.
        model: The resident model.
    """

    def __init__(self, spec: LoopSpec, model: ModelView) -> None:
        self._spec = spec
        self._model = model

    def init(self, request: LoopRequest, ctx: LoopContext) -> PrefillState:
        """Tokenize the text, or find the end of the one that goes on."""
        parameters, inputs = request.parameters, request.inputs
        before: TextContext | None = inputs.get("context")
        if before is not None:
            read, pages, start = self._end_of(before), before.pages, before.pages.next_position
        elif _is_skipped(parameters, inputs):
            read, pages, start = TextToRead(()), TextPages(), 0
        else:
            read, pages, start = read_text(self._model, self._spec, parameters, inputs), TextPages(), 0
        tokenizer = self._model.component("text_tokenizer")
        visual_ids = (tokenizer.image_id, tokenizer.video_id)
        positions = text_positions(read.ids, visual_ids, read.grids) + start if read.ids else torch.zeros(3, 0)
        answers = bool(inputs.get("answers"))
        return PrefillState(
            ids=read.ids,
            positions_AS=positions,
            end_position=int(positions.max()) + 1 if read.ids else start,
            visual_ids=visual_ids,
            visual=inputs.get("seen"),
            writing=_new_writing(parameters) if answers else None,
            choosing=Choosing.of(parameters) if answers else Choosing(),
            uniform=_first_uniform(parameters, ctx) if answers else 0.0,
            pages=pages,
            num_read=0,
            num_planned=0,
            scope=request.cancel_scope,
            profile=request.profile,
            is_exact=request.is_exact,
        )

    def next(self, state: PrefillState) -> WorkPlan[PrefillPayload] | Done:
        """Read the next tokens."""
        if state.num_read == len(state.ids):
            return Done()
        config = self._model.config("transformer")
        count = len(state.ids) if state.is_exact else CHUNK_TOKENS
        stop = min(state.num_read + count, len(state.ids))
        num_new, past = stop - state.num_read, state.pages.num_tokens
        is_last = stop == len(state.ids)
        left = -(-(len(state.ids) - stop) // CHUNK_TOKENS)
        return make_plan(
            self._spec,
            self._model,
            state,
            self._payload(state, stop),
            component="transformer",
            kind=WorkKind.AR_PREFILL,
            cost=text_cost(config, num_new, past, num_logits=int(is_last and state.writing is not None)),
            peak_bytes=text_peak_bytes(config, num_new, past),
            resident_bytes=text_kv_bytes(config, num_new),
            cache_blocks={CACHE: num_pages(past + num_new) - num_pages(past)},
            step_index=state.num_planned,
            num_steps=state.num_planned + 1 + left,
            emits=(EmitSpec(STREAM, "text"),) if is_last and state.writing is not None else (),
        )

    def advance(self, state: PrefillState, result: StepResult[PrefillValues]) -> PrefillState:
        """Keep what was read."""
        added = result.values.pages.num_tokens - state.pages.num_tokens
        state.num_read += added
        state.num_planned += 1
        state.pages = result.values.pages
        if result.values.writing is not None:
            state.writing = result.values.writing
        return state

    def apply(self, state: PrefillState, event: Any) -> PrefillState:
        """Refuse: reading takes no outside event."""
        raise refuse_event("reading a text", event)

    def finalize(self, state: PrefillState) -> LoopResult:
        """Hand the text on."""
        return LoopResult({"context": TextContext(state.pages, state.writing) if state.pages.num_tokens else None})

    def _end_of(self, context: TextContext) -> TextToRead:
        """Return what a written text still lacks: its last token, its end, and the start of what is generated."""
        assert context.writing is not None, "a text that goes on was written"
        tokenizer = self._model.component("text_tokenizer")
        last = context.writing.token_ids[-1:]
        end = () if last == (tokenizer.eos_id,) else (tokenizer.eos_id,)
        return TextToRead((*last, *end, tokenizer.start_of_generation_id))

    def _payload(self, state: PrefillState, stop: int) -> PrefillPayload:
        start, is_last = state.num_read, stop == len(state.ids)
        ids = state.ids[start:stop]
        places = tuple(index for index, token in enumerate(ids) if token in state.visual_ids)
        shown = sum(token in state.visual_ids for token in state.ids[:start])
        visual = None if state.visual is None or not places else _part(state.visual, shown, shown + len(places))
        return PrefillPayload(
            ids=ids,
            positions_AS=state.positions_AS[:, start:stop],
            end_position=state.end_position if is_last else None,
            pages=state.pages,
            places_S=places,
            visual=visual,
            writing=state.writing if is_last else None,
            choosing=state.choosing,
            uniform=state.uniform,
        )


def _part(visual: SeenVisual, start: int, stop: int) -> SeenVisual:
    return SeenVisual(visual.embeds_SC[start:stop], tuple(deep[start:stop] for deep in visual.deep_SC))


def _is_skipped(parameters: Mapping[str, Any], inputs: Mapping[str, Any]) -> bool:
    """Tell whether a negative prompt is not looked at."""
    return "negative" in str(inputs["text"]) and float(parameters["guidance_scale"]) == 1.0


def _first_uniform(parameters: Mapping[str, Any], ctx: LoopContext) -> float:
    """Return the first of the numbers that `ar_decode` draws anew."""
    generator = ctx.make_generator(int(parameters["seed"]))
    return float(draw_uniforms(generator, int(parameters["max_tokens"]))[0])


def _new_writing(parameters: Mapping[str, Any]) -> Writing:
    return Writing((), int(parameters["max_tokens"]), tuple(parameters["stop"]))


def check_text(
    spec: LoopSpec, model: ModelView, parameters: ResolvedParameters, inputs: Mapping[str, Any]
) -> Sequence[str]:
    """Refuse a text that is longer than the context, what it shows included; the loop's check before weights are there.

    Raises:
        PromptError: It is too long.
        InputError: A stop string is empty.
    """
    if inputs["text"] == "close" or _is_skipped(parameters, inputs):
        return ()
    if inputs.get("answers") and "" in parameters["stop"]:
        raise InputError(
            "a stop string is empty", field="stop", value=parameters["stop"], allowed="texts of a character or more"
        )
    check_context(spec, parameters, inputs, len(read_text(model, spec, parameters, inputs).ids))
    return ()


def can_share_call(one: WorkPlan[PrefillPayload], other: WorkPlan[PrefillPayload]) -> bool:
    """Tell whether two texts share a call: padded to the longer one, none grows to more than twice its length."""
    first, second = one.payload, other.payload
    if first.visual is not None or second.visual is not None:
        return False
    sizes = [len(payload.ids) + payload.pages.num_tokens for payload in (first, second)]
    return max(sizes) <= 2 * min(sizes)


def run_step(
    instance: ModelInstance, plans: Sequence[WorkPlan[PrefillPayload]], ctx: StepContext
) -> Sequence[StepResult[PrefillValues]]:
    """Read the tokens of a batch of texts, as rows of one call."""
    model: Cosmos3Transformer = instance.component("transformer")
    payloads = [plan.payload for plan in plans]
    longest = max(len(payload.ids) for payload in payloads)
    ids_BS = torch.zeros(len(payloads), longest, dtype=torch.long)
    positions_ABS = torch.zeros(3, len(payloads), longest)
    for row, payload in enumerate(payloads):
        ids_BS[row, : len(payload.ids)] = torch.tensor(payload.ids)
        positions_ABS[:, row, : len(payload.ids)] = payload.positions_AS
    hidden_BSC, own = model.understand(
        ids_BS.to(model.device),
        model.rotary(positions_ABS),
        past_NZBSHD=stack_pages([payload.pages for payload in payloads], room=longest),
        mask=_mask(payloads, longest, model.device),
        visual=_visual(model, payloads[0]),
    )
    ctx.tap("text", hidden_BSC)
    finite = torch.isfinite(hidden_BSC).all(dim=-1)
    writings = _first_tokens(instance, model, payloads, hidden_BSC)
    return [
        _result(payload, own[:, :, row, : len(payload.ids)], writing, bool(finite[row, : len(payload.ids)].all()))
        for row, (payload, writing) in enumerate(zip(payloads, writings, strict=True))
    ]


def _mask(payloads: Sequence[PrefillPayload], longest: int, device: torch.device) -> Tensor | None:
    """Return which keys each new token sees; None where all texts are new, so that being causal says it.

    A text that is shorter than others ends in padding: only padding sees that, and nobody looks at it.
    """
    past = max(payload.pages.num_tokens for payload in payloads)
    if past == 0:
        return None
    causal = torch.ones(longest, longest, dtype=torch.bool, device=device).tril()
    before = torch.tensor([payload.pages.num_tokens for payload in payloads], device=device)
    seen = torch.arange(past, device=device) < before.unsqueeze(1)
    rows = seen.view(len(payloads), 1, 1, past).expand(-1, -1, longest, -1)
    return torch.cat([rows, causal.expand(len(payloads), 1, -1, -1)], dim=3)


def _visual(model: Cosmos3Transformer, payload: PrefillPayload) -> VisualTokens | None:
    if payload.visual is None:
        return None
    places = torch.tensor(payload.places_S, device=model.device)
    embeds = payload.visual.embeds_SC.to(model.device, model.dtype)
    return VisualTokens(places, embeds, [deep.to(model.device, model.dtype) for deep in payload.visual.deep_SC])


def _first_tokens(
    instance: ModelInstance, model: Cosmos3Transformer, payloads: Sequence[PrefillPayload], hidden_BSC: Tensor
) -> list[Writing | None]:
    rows = [row for row, payload in enumerate(payloads) if payload.writing is not None]
    if not rows:
        return [None] * len(payloads)
    lasts = [len(payloads[row].ids) - 1 for row in rows]
    logits_BV = model.lm_head(hidden_BSC[rows, lasts]).float()
    chosen = choose_tokens(logits_BV, [payloads[row].choosing for row in rows], [payloads[row].uniform for row in rows])
    tokens = dict(zip(rows, chosen, strict=True))
    tokenizer = instance.component("text_tokenizer")
    return [
        None if payload.writing is None else write_token(tokenizer, payload.writing, tokens[row])
        for row, payload in enumerate(payloads)
    ]


def _result(
    payload: PrefillPayload, own_NZSHD: Tensor, writing: Writing | None, is_finite: bool
) -> StepResult[PrefillValues]:
    end = int(payload.positions_AS.max()) + 1 if payload.end_position is None else payload.end_position
    pages = append_tokens(payload.pages, own_NZSHD, end)
    chunks = () if writing is None or payload.writing is None else text_chunks(payload.writing, writing)
    return StepResult(PrefillValues(pages, writing), is_finite=is_finite, chunks=chunks)
