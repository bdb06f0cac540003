"""Streams against a plain formulation: every chunk made by the reference's transformer over the whole video at once.

The formulation keeps no keys and values. For each noise level of each chunk it runs all clean chunks so far and the
noisy one through diffusers' transformer, with a mask that says what sees what and a prompt for each chunk.
"""

from __future__ import annotations

import copy
from fractions import Fraction

import numpy as np
import pytest
import torch

from fastvideo_core.cache.slab_pool import SlabPool
from fastvideo_core.errors import CacheFullError, InputError, ParameterError, PromptError
from fastvideo_core.loop.base import LoopContext, LoopRequest
from fastvideo_core.loop.chunks import PushImage, PushText, attach_slabs, fork_state
from fastvideo_core.loop.state import decode_state, encode_state
from fastvideo_core.loop.work import Done
from fastvideo_core.request.base import VideoPart
from fastvideo_core.request.build import build_request
from fastvideo_core.request.cancel import CancelScope
from fastvideo_core.request.media.images import resize_image
from fastvideo_core.runtime.prepare import prepare_request
from fastvideo_core.runtime.run import make_generator
from fastvideo_wan.loops.chunk_schedule import draw_noise
from fastvideo_wan.loops.chunk_state import (
    CACHE,
    ChunkCommitPayload,
    ChunkDenoisePayload,
    ChunkPrompts,
    ChunkPromptsPayload,
    ChunkRereadPayload,
)
from fastvideo_wan.models.vae import mean_latents
from fastvideo_wan.models.vae_cache import FeatureCache

SEED = 7
FIRST, SECOND = "a red circle moving right", "a blue square"
SWITCH = 4
"""Chunk at which the second prompt begins, in tests in which one does."""
BOUND = 2e-5


class Taps:
    """Keeps the latents that the steps show."""

    is_tapped = True
    blocks_runner = None

    def __init__(self):
        self.latents = []

    def tap(self, name, value):
        if name == "latents":
            self.latents.append(value)


class Stream:
    """Drives the loop by hand.

    Attributes:
        payloads: What the steps were given, in order.
        clean: The clean latents of each chunk so far.
        frames: The frames that came out, in pieces.
    """

    def __init__(
        self, model, *, exact=False, prompt=FIRST, num_frames=None, pool=None, is_session=True, task=None, **inputs
    ):
        self.model, self.card = model, model.card
        parameters = {"seed": SEED} | ({} if num_frames is None else {"num_frames": num_frames})
        given = {"image": inputs.pop("image", None), "inputs": inputs}
        request = build_request(
            self.card, prompt, task=task or "text_to_video", outputs=("video",), parameters=parameters, exact=exact,
            **given,
        )  # fmt: skip
        prepared = prepare_request(self.card, request)
        self.pool = pool or SlabPool(CACHE, 64, self.card.caches[CACHE].block_bytes)
        self.exact, self.payloads, self.pieces = exact, [], []
        edges = {"text": self._run(prepared, "text_encode", prepared.inputs)["embeds"]}
        if task is not None:
            edges["video_latents"] = self._run(prepared, "clip_encode", prepared.inputs)["latents"]
        self.loop, self.step = model.loop("chunk_rollout"), model.steps["chunk_rollout"]
        ctx = LoopContext(make_generator, {CACHE: self.pool})
        self.state = self.loop.init(self._request(prepared, edges, is_session=is_session), ctx)
        self.clean = {}

    def _request(self, prepared, inputs, *, is_session=False, loop="chunk_rollout"):
        scope = CancelScope("request", "r")
        parameters = prepared.parameters
        return LoopRequest("r", "n", loop, parameters, inputs, scope, is_exact=self.exact, is_session=is_session)

    def _run(self, prepared, name, inputs):
        loop, step = self.model.loop(name), self.model.steps[name]
        state = loop.init(self._request(prepared, inputs, loop=name), LoopContext(make_generator))
        while not isinstance(plan := loop.next(state), Done):
            (result,) = step(self.model, [plan], Taps())
            state = loop.advance(state, result)
        return loop.finalize(state).outputs

    def one(self):
        """Make a step; returns whether there was one."""
        plan = self.loop.next(self.state)
        if isinstance(plan, Done):
            return False
        self.payloads.append(plan.payload)
        (result,) = self.step(self.model, [plan], Taps())
        assert result.is_finite in (None, True)
        chunk = self.state.chunk
        self.state = self.loop.advance(self.state, result)
        if isinstance(plan.payload, ChunkDenoisePayload) and plan.payload.next_sigma == 0.0:
            self.clean[chunk] = self.state.latents_1CTHW
        self.pieces += [piece.data for piece in result.chunks]
        return True

    def until(self, chunk):
        """Make steps up to the beginning of a chunk."""
        while self.loop.boundary(self.state) != chunk:
            assert self.one()
        return self

    def push(self, text):
        self.state = self.loop.apply(self.state, PushText(text))
        return self

    @property
    def frames(self):
        return torch.cat(self.pieces)


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


def relative_error(value, expected):
    return ((value - expected).norm() / expected.norm()).item()


class Plain:
    """The algorithm as the releases describe it, without a cache.

    Args:
        checkpoint: The folder.
        rule: Lengths.
        steps: Before the shift.
        shift: Of the noise levels.
        boundary: Time from which on the first expert is used; None for one expert.
    """

    def __init__(self, checkpoint, rule, steps, shift, boundary=None):
        from diffusers import WanPipeline

        self.pipeline = WanPipeline.from_pretrained(str(checkpoint))
        self.texts = [self.text(prompt) for prompt in (FIRST, SECOND)]
        self.rule, self.shift, self.boundary = rule, shift, boundary
        sigmas = [Fraction(step, 1000) for step in steps]
        self.sigmas = [float(shift * s / (1 + (shift - 1) * s)) for s in sigmas]
        self.experts = [copy.deepcopy(self.pipeline.transformer)]
        if boundary is not None:
            self.experts.append(copy.deepcopy(self.pipeline.transformer_2))

    def text(self, prompt):
        return self.pipeline.encode_prompt(prompt, do_classifier_free_guidance=False, max_sequence_length=48)[0]

    def mask(self, chunk, switch, is_clean_new):
        """Return which of the chunks up to `chunk` sees which."""
        seen = torch.zeros(chunk + 1, chunk + 1, dtype=torch.bool)
        for row in range(chunk + 1):
            seen[row, [*window(self.rule, row), row]] = True
        if is_clean_new and chunk >= switch:
            anew, sink = reread(self.rule, switch)
            for row in anew:
                seen[row] = False
                seen[row, [*sink, *anew]] = True
        return seen

    def velocity(self, clean, noisy, chunk, time, prompts, switch, anew):
        """Return what the transformer predicts for the noisy chunk."""
        sizes = [sample.shape[2] for sample in (*clean, noisy)]
        frame_tokens = noisy.shape[3] // 2 * (noisy.shape[4] // 2)
        counts = torch.tensor(sizes) * frame_tokens
        mask = self.mask(chunk, switch, anew).repeat_interleave(counts, 0).repeat_interleave(counts, 1)
        times = torch.tensor([*[0.0] * chunk, time]).repeat_interleave(counts)[None]
        texts = self.texts
        which = [int(number >= switch) for number in range(chunk + 1)]
        if anew and chunk >= switch:
            for number in reread(self.rule, switch)[0]:
                which[number] = 1
        expert = self.experts[-1 if self.boundary is not None and time < self.boundary else 0]
        model = with_processors(expert, mask, [texts[prompts[w]] for w in which], counts.tolist())
        whole = torch.cat([*clean, noisy], dim=2)
        return model(whole, times, texts[0], return_dict=False)[0][:, :, -sizes[-1] :]

    def stream(self, num_chunks, shape, *, switch=10**6, anew=True):
        """Return the clean latents of the first chunks; the second prompt begins at chunk `switch`."""
        clean = []
        for chunk in range(num_chunks):
            frames = self.rule.num_frames(chunk)
            noises = draw_noise(SEED, chunk, len(self.sigmas), (1, shape[0], frames, *shape[1:]))
            sample = noises[0].double()
            for index, sigma in enumerate(self.sigmas):
                velocity = self.velocity(clean, sample.float(), chunk, 1000 * sigma, (0, 1), switch, anew)
                guess = sample - sigma * velocity.double()
                if index + 1 == len(self.sigmas):
                    break
                following = self.sigmas[index + 1]
                sample = (1 - following) * guess + following * noises[index + 1].double()
            clean.append(guess.float())
        return clean


def window(rule, chunk):
    """Return the chunks that a chunk sees, by counting frames as the releases' caches do."""
    kept = []
    for number in range(chunk):
        kept += [number] * rule.num_frames(number)
        over = len(kept) + 0 - rule.window_frames
        if over > 0:
            kept = kept[: rule.sink_frames] + kept[rule.sink_frames + over :]
    room = rule.window_frames - rule.num_frames(chunk)
    if len(kept) > room:
        kept = kept[: rule.sink_frames] + kept[rule.sink_frames + len(kept) - room :]
    return sorted(set(kept))


def reread(rule, switch):
    """Return the chunks that a new prompt reads anew, and the sink that stays, from frame numbers."""
    owners = [number for number in range(switch) for _ in range(rule.num_frames(number))]
    if len(owners) <= rule.window_frames:
        return sorted(set(owners)), []
    sink = sorted(set(owners[: rule.sink_frames]))
    return sorted(set(owners[len(owners) - rule.window_frames + rule.sink_frames :])), sink


def with_processors(model, mask, texts, counts):
    """Put the mask into the self-attentions, and a text for each chunk into the cross-attentions."""
    from diffusers.models.transformers.transformer_wan import WanAttnProcessor

    embedded = [model.condition_embedder.text_embedder(text) for text in texts]

    class Masked(WanAttnProcessor):
        def __call__(self, attention, hidden, text=None, attention_mask=None, rotary=None):
            return super().__call__(attention, hidden, text, mask, rotary)

    class Prompted(WanAttnProcessor):
        def __call__(self, attention, hidden, text=None, attention_mask=None, rotary=None):
            parts = zip(hidden.split(counts, dim=1), embedded, strict=True)
            return torch.cat(
                [super(Prompted, self).__call__(attention, part, own, None, None) for part, own in parts], 1
            )

    for block in model.blocks:
        block.attn1.set_processor(Masked())
        block.attn2.set_processor(Prompted())
    return model


NUM_CHUNKS = 6


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("name", ["sink", "plain"])
def test_a_stream_is_what_the_plain_formulation_gives(causal_instance, checkpoint, name, exact):
    model = causal_instance(name)
    rule = Stream(model).state.rule
    expected = Plain(checkpoint("t2v"), rule, (1000, 750, 500, 250), 5).stream(NUM_CHUNKS, (16, 4, 4))
    stream = Stream(model, exact=exact).until(NUM_CHUNKS)
    for chunk in range(NUM_CHUNKS):
        assert relative_error(stream.clean[chunk], expected[chunk]) < BOUND


@pytest.mark.parametrize("switch", [2, 5])
@pytest.mark.parametrize("name", ["sink", "plain"])
def test_a_new_prompt_reads_the_window_anew(causal_instance, checkpoint, name, switch):
    model = causal_instance(name)
    rule = Stream(model).state.rule
    plain = Plain(checkpoint("t2v"), rule, (1000, 750, 500, 250), 5)
    expected = plain.stream(switch + 3, (16, 4, 4), switch=switch)
    stream = Stream(model).until(switch).push(SECOND).until(switch + 3)
    for chunk in range(switch + 3):
        assert relative_error(stream.clean[chunk], expected[chunk]) < BOUND
    without = plain.stream(switch + 1, (16, 4, 4), switch=switch, anew=False)
    assert relative_error(stream.clean[switch], without[switch]) > 10 * BOUND
    kinds = [type(payload) for payload in stream.payloads]
    assert kinds.count(ChunkRereadPayload) == 1 and kinds.count(ChunkPromptsPayload) == 2


def test_two_experts_have_keys_and_values_of_their_own(causal_instance, checkpoint):
    model = causal_instance("experts")
    rule = Stream(model).state.rule
    plain = Plain(checkpoint("a14b-t2v"), rule, (1000, 850, 275), 12, boundary=875.0)
    expected = plain.stream(4, (16, 4, 4), switch=3)
    stream = Stream(model).until(3).push(SECOND).until(4)
    for chunk in range(4):
        assert relative_error(stream.clean[chunk], expected[chunk]) < BOUND
    used = [(type(payload).__name__, payload.component) for payload in stream.payloads if hasattr(payload, "component")]
    assert [c for kind, c in used if kind == "ChunkCommitPayload"] == ["transformer", "transformer_2"] * 4
    assert [c for kind, c in used if kind == "ChunkRereadPayload"] == ["transformer", "transformer_2"]
    keys = {(slab.key.expert, slab.key.branch) for slab in stream.state.table.slabs}
    assert keys == {("transformer", "cond"), ("transformer_2", "cond")}


def test_guidance_keeps_a_past_for_each_branch(causal_instance, checkpoint):
    model = causal_instance("guided")
    stream = Stream(model).until(3)
    assert {slab.key.branch for slab in stream.state.table.slabs} == {"cond", "uncond"}
    # The unconditional past alone is that of a stream with the empty prompt; combine both by hand for one step.
    payload = next(p for p in stream.payloads if isinstance(p, ChunkDenoisePayload) and p.chunk == 2)
    assert set(payload.windows) == {"cond", "uncond"} and payload.guidance_scale == 3.0
    step, rows = model.steps["chunk_rollout"], {}
    for branch in ("cond", "uncond"):
        rows[branch] = branch_velocity(model, payload, branch)
    sample = draw_noise(SEED, 2, 2, payload.shape_1CTHW)[0]
    guided = rows["uncond"] + 3.0 * (rows["cond"] - rows["uncond"])
    expected = sample - payload.sigma * guided
    plan = next_plan(model, payload)
    (result,) = step(model, [plan], Taps())
    fresh = draw_noise(SEED, 2, 2, payload.shape_1CTHW)[1]
    following = payload.next_sigma
    assert relative_error(result.values.latents_1CTHW, (1 - following) * expected + following * fresh) < BOUND


def branch_velocity(model, payload, branch):
    from fastvideo_wan.loops.chunk_step import WindowAttention

    transformer, sample = model.component("transformer"), draw_noise(SEED, payload.chunk, 1, payload.shape_1CTHW)[0]
    return transformer.forward_chunk(
        sample,
        torch.tensor([payload.time]),
        payload.contexts[branch],
        WindowAttention([payload.windows[branch]]),
        turns=transformer.chunk_turns(sample, [payload.first_frame]),
    )


def next_plan(model, payload):
    """Return some plan with another payload."""
    stream = Stream(model)
    while not isinstance(stream.loop.next(stream.state).payload, ChunkDenoisePayload):
        stream.one()
    plan = stream.loop.next(stream.state)
    plan.payload = payload
    return plan


def test_a_card_may_follow_the_velocity_and_keep_the_past_as_it_is(causal_instance):
    model = causal_instance("euler")
    stream = Stream(model).until(2).push(SECOND).until(3)
    assert not any(isinstance(payload, ChunkRereadPayload) for payload in stream.payloads)
    assert stream.state.clean == {}
    first, second = (p for p in stream.payloads if isinstance(p, ChunkDenoisePayload) and p.chunk == 0)
    noise = draw_noise(SEED, 0, 1, first.shape_1CTHW)[0]
    velocity = (noise - second.latents_1CTHW) / (first.sigma - first.next_sigma)
    assert relative_error(branch_velocity(model, first, "cond"), velocity) < 1e-4
    assert first.num_noises == 1


@pytest.mark.parametrize("name", ["sink", "experts"])
def test_frames_that_leave_chunk_by_chunk_have_no_seam(causal_instance, name):
    model = causal_instance(name)
    stream = Stream(model).until(4)
    vae = model.component("vae")
    latents = torch.cat([stream.clean[chunk] for chunk in range(4)], dim=2)
    whole = vae.decode(vae.denormalize(latents))
    frames = ((whole[0].clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8).permute(1, 2, 3, 0)
    assert len(stream.frames) == 4 * (latents.shape[2] - 1) + 1
    assert (stream.frames.int() - frames.int()).abs().max() <= 1
    exact = Stream(model, exact=True).until(4)
    latents = torch.cat([exact.clean[chunk] for chunk in range(4)], dim=2)
    at_once, _ = vae.decode_frames(vae.denormalize(latents), FeatureCache(), is_exact=True)
    frames = ((at_once[0].clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8).permute(1, 2, 3, 0)
    assert (exact.frames.int() - frames.int()).abs().max() <= 1


def test_a_stream_goes_on_from_storage_with_the_same_bits_after_every_step(causal_instance):
    model = causal_instance("sink")
    straight = Stream(model).until(2).push(SECOND).until(5)
    stored = Stream(model)
    while stored.loop.boundary(stored.state) != 5:
        if (
            stored.loop.boundary(stored.state) == 2
            and stored.state.pending_ids is None
            and stored.state.versions["cond"] == 0
        ):
            stored.push(SECOND)
        stored.one()
        stored.state = decode_state(encode_state(stored.state), type(stored.state))
        attach_slabs(stored.state, {CACHE: stored.pool})
    assert torch.equal(stored.frames, straight.frames)


def test_a_fork_shares_the_past_and_goes_its_own_way(causal_instance):
    model = causal_instance("sink")
    straight = Stream(model).until(5)
    other = Stream(model).until(3)
    fork = copy.copy(other)
    fork.state, fork.pieces, fork.clean = fork_state(other.state), list(other.pieces), dict(other.clean)
    used = other.pool.num_used
    fork.push(SECOND).until(5)
    other.until(5)
    assert torch.equal(other.frames, straight.frames)
    assert not torch.equal(fork.frames, other.frames)
    assert torch.equal(fork.frames[: len(fork.frames) // 3], other.frames[: len(other.frames) // 3])
    assert other.pool.num_used > used
    fork.state.table.clear()
    del fork


def test_a_chunk_that_is_cut_short_leaves_nothing_valid(causal_instance):
    model = causal_instance("sink")
    stream = Stream(model).until(2)
    begun = fork_state(stream.state)
    while not isinstance(stream.loop.next(stream.state).payload, ChunkCommitPayload):
        stream.one()
    assert len(stream.state.table.slabs) == 3 and len(stream.state.table.valid("transformer", "cond")) == 2
    pieces = list(stream.pieces)
    stream.state = begun
    stream.pieces = []
    stream.until(3)
    assert torch.equal(stream.pieces[0], pieces[-len(stream.pieces)])
    assert len(stream.state.table.valid("transformer", "cond")) == 2


def test_the_state_does_not_grow(causal_instance):
    model = causal_instance("plain")
    stream = Stream(model).until(6)
    size, used = len(encode_state(stream.state)), stream.pool.num_used
    stream.until(12)
    assert abs(len(encode_state(stream.state)) - size) < 64
    assert stream.pool.num_used == used == 2


def test_a_stream_takes_no_more_slabs_than_its_card_says(causal_instance):
    model = causal_instance("sink")
    stream = Stream(model)
    most = stream.state.rule.slabs_per_stream(has_reread=True)
    begun = None
    for chunk in range(6):
        stream.until(chunk)
        begun = fork_state(stream.state)  # as a session holds the beginning of the chunk in progress
        stream.push(SECOND if chunk % 2 else FIRST)
        while stream.loop.boundary(stream.state) != chunk + 1:
            stream.one()
            assert stream.pool.num_used <= most
    assert begun is not None


def test_training_keeps_every_slab(causal_instance):
    model = causal_instance("sink")
    stream = Stream(model)
    stream.state.table.is_training = True
    stream.until(6)
    assert len(stream.state.table.retained) + len(stream.state.table.slabs) == 6
    assert stream.pool.num_used == 6
    stream.state.table.clear()
    assert stream.pool.num_used == 0


def test_a_full_pool_is_said(causal_instance):
    model = causal_instance("sink")
    stream = Stream(model, pool=SlabPool(CACHE, 1, model.card.caches[CACHE].block_bytes))
    stream.until(1)
    with pytest.raises(CacheFullError, match="0 of 1 are free"):
        stream.until(2)


def test_other_events_and_long_prompts_are_refused(causal_instance):
    stream = Stream(causal_instance("sink")).until(1)
    with pytest.raises(InputError, match="PushImage"):
        stream.loop.apply(stream.state, PushImage(torch.zeros(2, 2, 3, dtype=torch.uint8)))
    with pytest.raises(PromptError, match="48"):
        stream.push("word " * 40)
    assert stream.state.pending_ids is None


def test_a_request_has_an_end_and_a_whole_number_of_chunks(causal_instance):
    model = causal_instance("sink")
    stream = Stream(model, num_frames=13, is_session=False)
    while stream.one():
        pass
    outputs = stream.loop.finalize(stream.state).outputs
    assert sum(len(piece) for piece in outputs["frames"]) == 13
    with pytest.raises(ParameterError, match="num_frames"):
        Stream(model, num_frames=9)
    session = Stream(model).until(4)
    assert session.state.num_chunks is None and session.state.frames_FYXP == ()


@pytest.mark.parametrize("name", ["sink", "guided", "experts"])
def test_streams_in_one_call_are_those_alone(causal_instance, name):
    """Three streams at different places, one with a new prompt: what shares calls agrees within the card's bound."""
    model = causal_instance(name)
    streams = [Stream(model, prompt=p) for p in (FIRST, "x", "a green triangle that stands still")]
    alone = [Stream(model, prompt=p) for p in (FIRST, "x", "a green triangle that stands still")]
    for number, one in enumerate(alone):
        one.until(number).push(SECOND).until(number + 3)
    for number, one in enumerate(streams):
        one.until(number).push(SECOND)
    shared = 0
    while any(one.loop.boundary(one.state) != number + 3 for number, one in enumerate(streams)):
        waiting = [one for number, one in enumerate(streams) if one.loop.boundary(one.state) != number + 3]
        plans = [one.loop.next(one.state) for one in waiting]
        for key in dict.fromkeys(plan.batch_key for plan in plans):
            together = [(one, plan) for one, plan in zip(waiting, plans, strict=True) if plan.batch_key == key]
            results = one.step(model, [plan for _, plan in together], Taps())
            assert all(result.is_finite is not False for result in results)
            assert all(result.is_finite for result in results if isinstance(result.values, ChunkPrompts))
            shared += len(together) > 1
            for (one_of, plan), result in zip(together, results, strict=True):
                chunk = one_of.state.chunk
                one_of.state = one_of.loop.advance(one_of.state, result)
                if isinstance(plan.payload, ChunkDenoisePayload) and plan.payload.next_sigma == 0.0:
                    one_of.clean[chunk] = one_of.state.latents_1CTHW
    assert shared > 10
    for one, other in zip(streams, alone, strict=True):
        for chunk, latents in other.clean.items():
            assert relative_error(one.clean[chunk], latents) < 1e-4


def test_an_image_stands_still_for_the_first_chunk(causal_instance):
    model = causal_instance("sink")
    image = np.random.default_rng(0).integers(0, 255, (40, 48, 3), np.uint8)
    stream = Stream(model, task="image_to_video", image=image).until(3)
    vae = model.component("vae")
    still = torch.from_numpy(resize_image(image, height=32, width=32)).permute(2, 0, 1).float() / 127.5 - 1
    clip = still[None, :, None].expand(1, 3, 5, 32, 32)
    latents = vae.normalize(mean_latents(vae.encode(clip)))
    kinds = [type(payload).__name__ for payload in stream.payloads[:3]]
    assert kinds == ["ChunkPromptsPayload", "ChunkDecodePayload", "ChunkCommitPayload"]
    read = stream.payloads[2]
    assert torch.allclose(read.latents_1CTHW, latents, atol=1e-5) and read.time == 0.0
    assert stream.state.given_1CTHW is None and 0 not in stream.clean
    # The second chunk is what the plain formulation gives after that one.
    later = next(p for p in stream.payloads if isinstance(p, ChunkDenoisePayload) and p.chunk == 1)
    assert [content.key_Z1LNK.shape[2] for content in later.windows["cond"]] == [8]


def test_a_video_is_gone_on_from_at_its_end_block_by_block(causal_instance, checkpoint):
    model = causal_instance("sink")
    frames = np.random.default_rng(1).integers(0, 255, (18, 32, 32, 3), np.uint8)
    stream = Stream(model, task="video_to_video", video=VideoPart(name="video", frames=frames, fps=16.0)).until(3)
    vae = model.component("vae")
    clip = torch.from_numpy(frames[-13:]).permute(3, 0, 1, 2)[None].float() / 127.5 - 1
    latents = vae.normalize(mean_latents(vae.encode(clip)))
    commits = [p for p in stream.payloads if isinstance(p, ChunkCommitPayload)]
    assert torch.allclose(commits[0].latents_1CTHW, latents[:, :, :2], atol=1e-5)
    assert torch.allclose(commits[1].latents_1CTHW, latents[:, :, 2:], atol=1e-5)
    plain = Plain(checkpoint("t2v"), stream.state.rule, (1000, 750, 500, 250), 5)
    clean = [p.latents_1CTHW for p in commits[:2]]
    noises = draw_noise(SEED, 2, 4, (1, 16, 2, 4, 4))
    velocity = plain.velocity(clean, noises[0], 2, 1000.0, (0, 1), 99, anew=False)
    following = next(p for p in stream.payloads if isinstance(p, ChunkDenoisePayload) and p.step_index == 1)
    guess = (following.latents_1CTHW - plain.sigmas[1] * noises[1]) / (1 - plain.sigmas[1])
    assert relative_error(guess, noises[0] - velocity) < 1e-4


def test_clips_that_are_too_short_are_refused(causal_instance):
    model = causal_instance("sink")
    frames = np.zeros((4, 32, 32, 3), np.uint8)
    video = VideoPart(name="video", frames=frames, fps=16.0)
    with pytest.raises(InputError, match="shorter than a chunk"):
        Stream(model, task="video_to_video", video=video)
    with pytest.raises(ParameterError, match="not longer") as caught:
        Stream(model, task="image_to_video", image=frames[0], num_frames=5, is_session=False)
    assert caught.value.nearest == 13
