"""Text encoding as a loop: one step a branch (the prompt; with guidance also the negative prompt).

Shape letters: B rows; L tokens; E encoder width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from fastvideo_core.card import LoopSpec
from fastvideo_core.errors import InputError, PromptError
from fastvideo_core.loop.base import LoopContext, LoopRequest, LoopResult, ModelView, StepContext
from fastvideo_core.loop.plans import make_plan
from fastvideo_core.loop.policies.cfg import COND, UNCOND
from fastvideo_core.loop.state import LoopState
from fastvideo_core.loop.work import Done, Profile, ShapeSignature, StepResult, WorkKind, WorkPlan
from fastvideo_core.request.cancel import CancelScope
from fastvideo_core.request.parameters import ResolvedParameters
from fastvideo_wan.loops.costs import text_cost, text_peak_bytes
from fastvideo_wan.loops.guidance import guidance_of

if TYPE_CHECKING:
    from fastvideo_core.runtime.instance import ModelInstance

__all__ = [
    "EncodedText",
    "TextEncodeLoop",
    "TextOutputs",
    "TextPayload",
    "TextRow",
    "TextState",
    "TextValues",
    "can_share_call",
    "check_prompts",
    "run_step",
    "text_bucket",
    "tokenize",
    "tokenize_all",
]

SHORT_TOKENS = 16
"""Prompts of no more tokens share a call whatever their lengths: a call costs more than their padding."""


TOKEN_GROUP = 8
"""Texts are filled up to a multiple of so many tokens."""


@dataclass(frozen=True, slots=True)
class TextRow:
    """One encoded prompt.

    Attributes:
        embeds_1LE: Encoder output of the prompt's own tokens, float32 or the encoder's format.
        length: Tokens that the transformer is given; those behind the prompt's own are zeros.
    """

    embeds_1LE: torch.Tensor
    length: int


@dataclass(frozen=True, slots=True)
class EncodedText:
    """The encoded prompts of a request, by branch."""

    rows: dict[str, TextRow]


@dataclass(slots=True)
class TextState(LoopState):
    """State of text encoding.

    Attributes:
        branches: Names of the branches, in order.
        token_ids: Token ids of each, with the end token, without padding.
        length: Tokens that the transformer is given.
        is_exact: Whether the encoder sees the padding, as the reference's does.
        scope: What cancels it.
        profile: Serve, rollout or train.
        rows: What has been encoded.
    """

    branches: tuple[str, ...]
    token_ids: tuple[tuple[int, ...], ...]
    length: int
    is_exact: bool
    scope: CancelScope
    profile: Profile
    rows: dict[str, TextRow] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TextPayload:
    """One prompt to encode.

    Attributes:
        token_ids: Its tokens.
        length: Tokens that the transformer is given.
        pad_to: Tokens that the encoder is given; at least `len(token_ids)`.
        is_exact: Whether it has a call of its own.
    """

    token_ids: tuple[int, ...]
    length: int
    pad_to: int
    is_exact: bool


@dataclass(frozen=True, slots=True)
class TextValues:
    """An encoded prompt."""

    row: TextRow


@dataclass(frozen=True, slots=True)
class TextOutputs:
    """What the loop hands on."""

    embeds: EncodedText


class TextEncodeLoop:
    """Encodes the prompts of a request.

    Args:
        spec: The card's loop. Options: `text_length`, tokens that the transformer is given; `guidance`, see
            `guidance_of`.
        model: The resident model, with `tokenizer` and `text_encoder`.
    """

    def __init__(self, spec: LoopSpec, model: ModelView) -> None:
        self._spec = spec
        self._model = model

    def init(self, request: LoopRequest, ctx: LoopContext) -> TextState:
        """Tokenize the prompts.

        Raises:
            PromptError: A prompt has more tokens than the transformer takes.
        """
        ids = tokenize_all(self._spec, self._model, request.parameters, request.inputs)
        length = int(self._spec.options["text_length"])
        return TextState(
            tuple(ids), tuple(ids.values()), length, request.is_exact, request.cancel_scope, request.profile
        )

    def next(self, state: TextState) -> WorkPlan[TextPayload] | Done:
        """Encode the next branch."""
        index = len(state.rows)
        if index == len(state.branches):
            return Done()
        ids = state.token_ids[index]
        # In the exact mode the encoder sees the padding: masked tokens change no value but the shape of every product.
        pad_to = state.length if state.is_exact else text_bucket(len(ids), state.length)
        return make_plan(
            self._spec,
            self._model,
            state,
            TextPayload(ids, state.length, pad_to, state.is_exact),
            component="text_encoder",
            kind=WorkKind.ENCODER_CHUNK,
            shape=ShapeSignature.of(tokens=pad_to),
            cost=text_cost(self._model.config("text_encoder"), pad_to),
            peak_bytes=text_peak_bytes(self._model.config("text_encoder"), pad_to),
            step_index=index,
            num_steps=len(state.branches),
            shared_inputs={"token_ids": ids, "length": state.length},
        )

    def advance(self, state: TextState, result: StepResult[TextValues]) -> TextState:
        """Keep an encoded branch."""
        state.rows[state.branches[len(state.rows)]] = result.values.row
        return state

    def apply(self, state: TextState, event: Any) -> TextState:
        """Refuse: text encoding takes no outside event."""
        raise InputError("text encoding takes no events", field="event", value=type(event).__name__, allowed="none")

    def finalize(self, state: TextState) -> LoopResult:
        """Hand the encoded branches on."""
        return LoopResult({"embeds": EncodedText(dict(state.rows))})


def text_bucket(num_tokens: int, length: int) -> int:
    """Return to how many tokens a text is filled up, so that texts of about one length share a call.

    Args:
        num_tokens: Tokens of the text.
        length: Most tokens that the transformer is given.
    """
    return min(length, -(-num_tokens // TOKEN_GROUP) * TOKEN_GROUP)


def check_prompts(
    spec: LoopSpec, model: ModelView, parameters: ResolvedParameters, inputs: Mapping[str, Any]
) -> Sequence[str]:
    """Refuse a prompt with more tokens than the transformer takes, and warn of words that the tokenizer does not know.

    This is the loop's check before weights are there.

    Raises:
        PromptError: With the number of tokens, and how many are allowed.
    """
    tokenize_all(spec, model, parameters, inputs)
    tokenizer = model.component("tokenizer")
    texts = _texts(spec, parameters, inputs).values()
    found = [(name, ", ".join(tokenizer.unknown_words(text))) for name, text in texts]
    return [f"{name}: the model does not know these words: {words}" for name, words in found if words]


def can_share_call(one: WorkPlan[TextPayload], other: WorkPlan[TextPayload]) -> bool:
    """Tell whether two prompts share a call: padded to the longer one, neither grows to more than twice its length."""
    first, second = one.payload.pad_to, other.payload.pad_to
    return max(first, second) <= max(2 * min(first, second), SHORT_TOKENS)


def run_step(
    instance: ModelInstance, plans: Sequence[WorkPlan[TextPayload]], ctx: StepContext
) -> Sequence[StepResult[TextValues]]:
    """Encode the prompts of a batch: rows of one call, padded and masked; exact ones have a call each."""
    payloads = [plan.payload for plan in plans]
    groups = [[payload] for payload in payloads] if payloads[0].is_exact else [payloads]
    return [result for group in groups for result in _encode(instance, group, ctx)]


def _encode(instance: ModelInstance, payloads: Sequence[TextPayload], ctx: StepContext) -> list[StepResult[TextValues]]:
    encoder = instance.component("text_encoder")
    longest = max(payload.pad_to for payload in payloads)
    ids_BL = torch.zeros(len(payloads), longest, dtype=torch.long)
    mask_BL = torch.zeros(len(payloads), longest, dtype=torch.long)
    for row, payload in enumerate(payloads):
        ids_BL[row, : len(payload.token_ids)] = torch.tensor(payload.token_ids)
        mask_BL[row, : len(payload.token_ids)] = 1
    embeds_BLE = encoder(ids_BL.to(instance.device), mask_BL.to(instance.device)).last_hidden_state
    ctx.tap("text_encoder", embeds_BLE)
    is_finite = torch.isfinite(embeds_BLE).flatten(1).all(dim=1).tolist()
    rows = [embeds_BLE[i : i + 1, : len(payload.token_ids)].clone() for i, payload in enumerate(payloads)]
    return [
        StepResult(TextValues(TextRow(row, payload.length)), is_finite=finite)
        for row, payload, finite in zip(rows, payloads, is_finite, strict=True)
    ]


def tokenize_all(
    spec: LoopSpec, model: ModelView, parameters: ResolvedParameters, inputs: Mapping[str, Any]
) -> dict[str, tuple[int, ...]]:
    """Return the token ids of every branch."""
    length = int(spec.options["text_length"])
    tokenizer = model.component("tokenizer")
    texts = _texts(spec, parameters, inputs)
    return {branch: tokenize(tokenizer, name, text, length) for branch, (name, text) in texts.items()}


def _texts(spec: LoopSpec, parameters: ResolvedParameters, inputs: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Return the name and the text of every branch: of the prompt, and with guidance of the negative prompt."""
    texts = {COND: ("prompt", str(inputs["prompt"]))}
    if guidance_of(spec.options, parameters).is_guided:
        texts[UNCOND] = ("negative_prompt", parameters.get("negative_prompt") or "")
    return texts


def tokenize(tokenizer: Any, name: str, text: str, length: int) -> tuple[int, ...]:
    """Return the token ids of a text.

    Raises:
        PromptError: It has more than `length` tokens; `name` says which field it is.
    """
    ids = tuple(tokenizer.encode(text))
    if len(ids) > length:
        raise PromptError(
            f"the text has {len(ids)} tokens",
            field=name,
            value=text if len(text) <= 60 else text[:57] + "...",
            allowed=f"at most {length} tokens",
        )
    return ids
