"""The autoencoder against diffusers' on checkpoints that diffusers saved."""

from __future__ import annotations

import pytest
import torch

from fastvideo_core.errors import ParameterError, StateError
from fastvideo_wan.models.vae import mean_latents, patchify, sample_latents, unpatchify
from fastvideo_wan.models.vae_cache import FeatureCache

VARIANTS = ("2.1", "2.1-wide", "2.2", "2.2-shapes", "2.2-steep")
FAST_BOUND = 1e-5


def relative_error(value, expected):
    return ((value - expected).norm() / expected.norm()).item()


def decode_in(vae, latents, sizes, **options):
    """Decode given numbers of latent frames, one after the other; returns the pixels and the last cache."""
    cache, pixels = FeatureCache(), []
    for size in sizes:
        start = cache.frames_done
        part, cache = vae.decode_frames(latents, cache, span=(start, start + size), **options)
        pixels.append(part)
    return torch.cat(pixels, dim=2), cache


def encode_in(vae, pixels, sizes, **options):
    """Encode given numbers of frames, one after the other; returns the moments and the last cache."""
    cache, features = FeatureCache(), []
    for chunk in pixels.split(sizes, dim=2):
        part, cache = vae.encode_features(chunk, cache, **options)
        features.append(part)
    return vae.project_moments(torch.cat(features, dim=2), **options), cache


@pytest.fixture
def no_gradients():
    with torch.no_grad():
        yield


@pytest.mark.parametrize("variant", VARIANTS)
def test_names_and_shapes_are_the_references(vae_pair, variant):
    pair = vae_pair(variant)
    ours = {name: tensor.shape for name, tensor in pair.model.state_dict().items()}
    assert ours == {name: tensor.shape for name, tensor in pair.reference.state_dict().items()}


@pytest.mark.usefixtures("no_gradients")
@pytest.mark.parametrize("num_rows", [1, 2])
@pytest.mark.parametrize("variant", VARIANTS)
def test_exact_mode_has_the_references_bits(vae_pair, variant, num_rows):
    pair = vae_pair(variant)
    latents, pixels = pair.draw_latents(num_rows=num_rows), pair.draw_pixels(num_rows=num_rows)
    decoded, _ = decode_in(pair.model, latents, [1, 1, 1], is_exact=True)
    encoded, _ = encode_in(pair.model, pixels, [1, 4, 4], is_exact=True)
    assert torch.equal(decoded.clamp(-1.0, 1.0), pair.expected_pixels(latents))
    assert torch.equal(encoded, pair.expected_moments(pixels))


@pytest.mark.usefixtures("no_gradients")
@pytest.mark.parametrize("variant", ["2.1-wide", "2.2-shapes"])
def test_exact_mode_has_the_references_bits_however_the_frames_are_given(vae_pair, variant):
    pair = vae_pair(variant)
    latents, pixels = pair.draw_latents(5), pair.draw_pixels(17)
    decoded, _ = decode_in(pair.model, latents, [2, 3], is_exact=True)
    encoded, _ = encode_in(pair.model, pixels, [9, 8], is_exact=True)
    assert torch.equal(decoded.clamp(-1.0, 1.0), pair.expected_pixels(latents))
    assert torch.equal(encoded, pair.expected_moments(pixels))


@pytest.mark.usefixtures("no_gradients")
@pytest.mark.parametrize("num_rows", [1, 3])
@pytest.mark.parametrize("variant", VARIANTS)
def test_fast_mode_is_within_the_bound(vae_pair, variant, num_rows):
    pair = vae_pair(variant)
    latents, pixels = pair.draw_latents(num_rows=num_rows), pair.draw_pixels(num_rows=num_rows)
    assert relative_error(pair.model.decode(latents).clamp(-1, 1), pair.expected_pixels(latents)) < FAST_BOUND
    assert relative_error(pair.model.encode(pixels), pair.expected_moments(pixels)) < FAST_BOUND


@pytest.mark.usefixtures("no_gradients")
@pytest.mark.parametrize("sizes", [[1, 1, 1, 1, 1], [2, 3], [1, 4], [4, 1]])
@pytest.mark.parametrize("variant", ["2.1-wide", "2.2-shapes"])
def test_chunks_give_what_the_whole_clip_gives(vae_pair, variant, sizes):
    pair = vae_pair(variant)
    latents, pixels = pair.draw_latents(5), pair.draw_pixels(17)
    decoded, decode_cache = decode_in(pair.model, latents, sizes)
    frames = [4 * sizes[0] - 3, *(4 * size for size in sizes[1:])]
    encoded, encode_cache = encode_in(pair.model, pixels, frames)
    assert relative_error(decoded, pair.model.decode(latents)) < FAST_BOUND
    assert relative_error(encoded, pair.model.encode(pixels)) < FAST_BOUND
    assert decode_cache.frames_done == 5
    assert encode_cache.frames_done == 17


@pytest.mark.usefixtures("no_gradients")
@pytest.mark.parametrize("variant", ["2.1-wide", "2.2-shapes"])
def test_large_chunks_are_filtered_in_time_within_the_bound(vae_pair, variant, monkeypatch):
    # The tiny models are far below the sizes from which filtering pays.
    monkeypatch.setattr("fastvideo_wan.models.vae_time_filter.SMALLEST_DIM", 1)
    monkeypatch.setattr("fastvideo_wan.models.vae_time_filter.SMALLEST_NUM_PIXELS", 1)
    pair = vae_pair(variant)
    latents, pixels = pair.draw_latents(), pair.draw_pixels()
    decoded, _ = decode_in(pair.model, latents, [1, 2])
    assert relative_error(pair.model.decode(latents).clamp(-1, 1), pair.expected_pixels(latents)) < FAST_BOUND
    assert relative_error(decoded.clamp(-1, 1), pair.expected_pixels(latents)) < FAST_BOUND
    assert relative_error(pair.model.encode(pixels), pair.expected_moments(pixels)) < FAST_BOUND


@pytest.mark.usefixtures("no_gradients")
@pytest.mark.parametrize("grid", [(1, 1), (5, 3), (1, 4)])
@pytest.mark.parametrize("num_frames", [1, 2])
@pytest.mark.parametrize("variant", ["2.1", "2.2-shapes"])
def test_odd_sizes_and_single_frames(vae_pair, variant, num_frames, grid):
    pair = vae_pair(variant)
    latents, pixels = pair.draw_latents(num_frames, grid=grid), pair.draw_pixels(4 * num_frames - 3, grid=grid)
    expected_pixels, expected_moments = pair.expected_pixels(latents), pair.expected_moments(pixels)
    exact, _ = pair.model.decode_frames(latents, FeatureCache(), is_exact=True)
    moments, _ = pair.model.encode_frames(pixels, FeatureCache(), is_exact=True)
    assert torch.equal(exact.clamp(-1.0, 1.0), expected_pixels)
    assert torch.equal(moments, expected_moments)
    assert relative_error(pair.model.decode(latents).clamp(-1, 1), expected_pixels) < FAST_BOUND
    assert relative_error(pair.model.encode(pixels), expected_moments) < FAST_BOUND
    assert pair.model.decode(latents).shape == pixels.shape


@pytest.mark.usefixtures("no_gradients")
@pytest.mark.parametrize("is_exact", [False, True])
def test_parts_give_what_the_chunks_of_a_stream_give(vae_pair, is_exact):
    pair = vae_pair("2.1-wide")
    latents, pixels, caches = pair.draw_latents(3), pair.draw_pixels(9), [FeatureCache(), FeatureCache()]
    for index in range(3):
        expected, _ = pair.model.decode_frames(latents, caches[0], is_exact=is_exact, span=(index, index + 1))
        frame, caches[0] = pair.model.decode_frames(latents[:, :, index : index + 1], caches[0], is_exact=is_exact)
        assert relative_error(frame, expected) < FAST_BOUND
    expected = pair.model.encode(pixels)
    for start, stop in ((0, 1), (1, 9)):
        moments, caches[1] = pair.model.encode_frames(pixels[:, :, start:stop], caches[1], is_exact=is_exact)
        assert relative_error(moments, expected[:, :, (start + 3) // 4 : (stop + 3) // 4]) < FAST_BOUND


@pytest.mark.usefixtures("no_gradients")
@pytest.mark.parametrize("is_exact", [False, True])
def test_a_chunk_can_be_run_again_from_the_old_cache(vae_pair, is_exact):
    vae, latents = vae_pair("2.2-shapes").model, vae_pair("2.2-shapes").draw_latents(4)
    _, old = vae.decode_frames(latents[:, :, :2], FeatureCache(), is_exact=is_exact)
    copies = [slot.clone() for slot in old.slots]
    first, new = vae.decode_frames(latents[:, :, 2:], old, is_exact=is_exact)
    again, _ = vae.decode_frames(latents[:, :, 2:], old, is_exact=is_exact)
    assert torch.equal(first, again)
    assert all(torch.equal(slot, copy) for slot, copy in zip(old.slots, copies, strict=True))
    assert old.frames_done == 2
    owners = {slot.untyped_storage().data_ptr() for slot in (*old.slots, *new.slots)}
    assert len(owners) == len(old.slots) + len(new.slots)
    assert all(slot.untyped_storage().nbytes() == slot.nbytes for slot in new.slots)


@pytest.mark.usefixtures("no_gradients")
def test_nothing_is_kept_on_the_module(vae_pair):
    vae, latents = vae_pair("2.1").model, vae_pair("2.1").draw_latents()
    before = [dict(module.__dict__) for module in vae.modules()]
    vae.decode_frames(latents, FeatureCache())
    assert [dict(module.__dict__) for module in vae.modules()] == before


@pytest.mark.usefixtures("no_gradients")
def test_inputs_are_not_written(vae_pair):
    pair = vae_pair("2.2-shapes")
    latents, pixels = pair.draw_latents(), pair.draw_pixels()
    copies = latents.clone(), pixels.clone()
    pair.model.decode(latents)
    pair.model.encode(pixels)
    assert torch.equal(latents, copies[0])
    assert torch.equal(pixels, copies[1])


@pytest.mark.usefixtures("no_gradients")
def test_clips_decode_together_as_they_do_alone(vae_pair):
    pair = vae_pair("2.2-shapes")
    latents = [pair.draw_latents(6, seed=1), pair.draw_latents(6, seed=2, num_rows=2)]
    caches = [
        pair.model.decode_frames(clip[:, :, :begun], FeatureCache())[1]
        for clip, begun in zip(latents, (1, 3), strict=True)
    ]
    chunks = [latents[0][:, :, 1:3], latents[1][:, :, 3:5]]
    together = pair.model.decode_many(chunks, caches)
    for chunk, cache, (pixels, after) in zip(chunks, caches, together, strict=True):
        alone, expected = pair.model.decode_frames(chunk, cache)
        assert relative_error(pixels, alone) < FAST_BOUND
        assert after.frames_done == expected.frames_done
        assert all(
            relative_error(a, b) < FAST_BOUND for a, b in zip(after.slots, expected.slots, strict=True) if b.any()
        )


@pytest.mark.usefixtures("no_gradients")
def test_clips_that_do_not_fit_together_are_refused(vae_pair):
    pair = vae_pair("2.1")
    latents = pair.draw_latents()
    _, begun = pair.model.decode_frames(latents, FeatureCache())
    with pytest.raises(StateError, match="first chunk"):
        pair.model.decode_many([latents, latents], [begun, FeatureCache()])
    with pytest.raises(ParameterError, match="do not make a batch"):
        pair.model.decode_many([latents, latents[:, :, :1]], [FeatureCache(), FeatureCache()])


@pytest.mark.usefixtures("no_gradients")
@pytest.mark.parametrize("is_exact", [False, True])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_stays_so(vae_pair, bad, is_exact):
    pair = vae_pair("2.2-shapes")
    latents, pixels = pair.draw_latents(), pair.draw_pixels()
    latents[0, 0, 0, 0, 0], pixels[0, 0, 0, 0, 0] = bad, bad
    decoded, _ = pair.model.decode_frames(latents, FeatureCache(), is_exact=is_exact)
    encoded, _ = pair.model.encode_frames(pixels, FeatureCache(), is_exact=is_exact)
    assert not decoded.isfinite().all()
    assert not encoded.isfinite().all()


@pytest.mark.parametrize("variant", ["2.1", "2.2-shapes"])
def test_latents_are_normalized_as_the_references_pipelines_do(vae_pair, variant):
    pair = vae_pair(variant)
    config, latents = pair.reference.config, pair.draw_latents()
    mean = torch.tensor(config.latents_mean).view(1, config.z_dim, 1, 1, 1)
    inverse = 1.0 / torch.tensor(config.latents_std).view(1, config.z_dim, 1, 1, 1)
    assert torch.equal(pair.model.normalize(latents), (latents - mean) * inverse)
    assert torch.equal(pair.model.denormalize(latents), latents / inverse + mean)


@pytest.mark.usefixtures("no_gradients")
def test_moments_give_the_references_mode_and_sample(vae_pair):
    pair = vae_pair("2.1-wide")
    pixels = pair.draw_pixels()
    posterior = pair.reference.encode(pixels).latent_dist
    moments, _ = pair.model.encode_frames(pixels, FeatureCache(), is_exact=True)
    noise = torch.randn(posterior.mean.shape, generator=torch.Generator().manual_seed(3))
    assert torch.equal(mean_latents(moments), posterior.mode())
    sample = posterior.sample(torch.Generator().manual_seed(3))
    assert torch.equal(sample_latents(moments, noise), sample)


@pytest.mark.parametrize("variant", ["2.1-wide", "2.2-shapes"])
def test_gradients_are_the_references(vae_pair, variant):
    pair = vae_pair(variant)
    pixels = pair.draw_pixels(num_rows=2).requires_grad_()
    noise = torch.randn(pair.model.encode(pixels.detach()).chunk(2, dim=1)[0].shape)
    pair.model.requires_grad_(True)
    pair.reference.requires_grad_(True)
    try:
        reconstruction, moments = pair.model(pixels, noise)
        loss = reconstruction.clamp(-1, 1).square().sum() + moments.sum()  # the reference clamps
        ours = torch.autograd.grad(loss, [pixels, *pair.model.parameters()])
        moments = pair.reference.encode(pixels).latent_dist.parameters
        mean, log_variance = moments.chunk(2, dim=1)
        decoded = pair.reference.decode(mean + torch.exp(0.5 * log_variance) * noise).sample
        theirs = torch.autograd.grad(decoded.square().sum() + moments.sum(), [pixels, *pair.reference.parameters()])
    finally:
        pair.model.requires_grad_(False)
        pair.reference.requires_grad_(False)
    names = ["pixels", *(name for name, _ in pair.model.named_parameters())]
    errors = {name: relative_error(a, b) for name, a, b in zip(names, ours, theirs, strict=True) if b.any()}
    assert {name: error for name, error in errors.items() if error > 1e-4} == {}


def test_training_drops_out_as_configured(vae_pair):
    config = vae_pair("2.1").model.config.model_copy(update={"dropout": 0.5})
    vae = type(vae_pair("2.1").model)(config)
    pixels = vae_pair("2.1").draw_pixels(1)
    assert not torch.equal(vae.encode(pixels), vae.encode(pixels))
    vae.eval()
    assert torch.equal(vae.encode(pixels), vae.encode(pixels))


@pytest.mark.usefixtures("no_gradients")
@pytest.mark.parametrize("variant", ["2.1-wide", "2.2-shapes"])
def test_bfloat16_is_close_to_the_reference(vae_pair, variant):
    pair = vae_pair(variant)
    vae = type(pair.model)(pair.model.config).to(torch.bfloat16)
    vae.load_state_dict(pair.model.state_dict())
    latents = pair.draw_latents().to(torch.bfloat16)
    decoded = vae.decode(latents)
    assert decoded.dtype == torch.bfloat16
    assert relative_error(decoded.float().clamp(-1, 1), pair.expected_pixels(latents.float())) < 0.1


@pytest.mark.usefixtures("no_gradients")
@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((1, 3, 4, 16, 16), "num_frames=4.*4k \\+ 1"),
        ((1, 3, 0, 16, 16), "num_frames=0"),
        ((1, 3, 5, 12, 16), "size=\\(12, 16\\).*multiples of 8"),
        ((1, 3, 5, 0, 16), "size=\\(0, 16\\)"),
        ((1, 4, 5, 16, 16), "wrong shape"),
        ((3, 5, 16, 16), "wrong shape"),
    ],
)
def test_pixels_off_the_grid_are_refused(vae_pair, shape, message):
    with pytest.raises(ParameterError, match=message):
        vae_pair("2.1").model.encode(torch.zeros(shape))


@pytest.mark.usefixtures("no_gradients")
def test_later_frames_come_in_fours(vae_pair):
    pair = vae_pair("2.1")
    pixels = pair.draw_pixels(5)
    _, cache = pair.model.encode_frames(pixels[:, :, :1], FeatureCache())
    with pytest.raises(ParameterError, match="num_frames=1.*4k frames after"):
        pair.model.encode_frames(pixels[:, :, :1], cache)


@pytest.mark.usefixtures("no_gradients")
@pytest.mark.parametrize("shape", [(1, 15, 1, 2, 2), (1, 16, 0, 2, 2), (16, 1, 2, 2)])
def test_latents_of_a_wrong_shape_are_refused(vae_pair, shape):
    with pytest.raises(ParameterError, match="latents"):
        vae_pair("2.1").model.decode(torch.zeros(shape))


def test_patches_fold_the_column_before_the_row():
    pixels = torch.arange(16.0).view(1, 1, 1, 4, 4)
    patches = patchify(pixels, 2)
    assert patches[0, :, 0, 0, 0].tolist() == [0.0, 4.0, 1.0, 5.0]
    assert torch.equal(unpatchify(patches, 2), pixels)
