"""The modules against those of diffusers and transformers on the same weights, to the bit."""

from __future__ import annotations

import torch

from fastvideo_cosmos3.models.config import TransformerConfig
from fastvideo_cosmos3.models.packing import Layout, patchify, positions, unpatchify
from fastvideo_cosmos3.models.sound import SoundConfig, SoundDecoder
from fastvideo_cosmos3.models.transformer import Cosmos3Transformer, VisualTokens
from fastvideo_cosmos3.models.vae import VideoVAE
from fastvideo_cosmos3.models.vae_config import VideoVAEConfig

TEXT, TIMESTEP = 37, 733


def plain(config):
    return {name: value for name, value in config.items() if not name.startswith("_")}


def transformer_of(pipeline):
    model = Cosmos3Transformer(TransformerConfig.from_diffusers(plain(pipeline.transformer.config))).eval()
    model.load_state_dict(pipeline.transformer.state_dict())
    return model


def text_tables(model, count, start=0):
    return model.rotary((torch.arange(count, dtype=torch.float32) + start).expand(3, 1, -1))


@torch.no_grad()
def test_velocities_of_video_sound_and_action_are_those_of_diffusers(pipeline):
    model, torch_ids = transformer_of(pipeline), torch.arange(TEXT).unsqueeze(0)
    draw = torch.Generator().manual_seed(1)
    latents = torch.randn(1, 16, 3, 5, 7, generator=draw)
    sound, actions = torch.randn(8, 11, generator=draw), torch.randn(6, 16, generator=draw)
    layout = Layout(3, 5, 7, (0,), fps=24.0, sound_frames=11, sound_fps=25.0, num_actions=6)
    all_positions = torch.cat(
        [torch.arange(TEXT, dtype=torch.float32).expand(3, -1), positions(model.config, layout, TEXT)], dim=1
    )
    video_end = TEXT + layout.video_tokens
    sound_end, end = video_end + 11, TEXT + layout.num_tokens
    places = {"sound": torch.arange(video_end, sound_end), "action": torch.arange(sound_end, end)}
    expected = pipeline.transformer(
        input_ids=torch_ids[0],
        text_indexes=torch.arange(TEXT),
        position_ids=all_positions,
        und_len=TEXT,
        sequence_length=end,
        vision_tokens=[latents],
        vision_token_shapes=[(3, 3, 4)],
        vision_sequence_indexes=torch.arange(TEXT, video_end),
        vision_mse_loss_indexes=torch.arange(TEXT + 12, video_end),
        vision_timesteps=torch.full((24,), TIMESTEP),
        vision_noisy_frame_indexes=[torch.tensor([1, 2])],
        sound_tokens=[sound],
        sound_token_shapes=[(11, 1, 1)],
        sound_sequence_indexes=places["sound"],
        sound_mse_loss_indexes=places["sound"],
        sound_timesteps=torch.full((11,), TIMESTEP),
        sound_noisy_frame_indexes=[torch.arange(11)],
        action_tokens=[actions],
        action_token_shapes=[(6, 1, 1)],
        action_sequence_indexes=places["action"],
        action_mse_loss_indexes=places["action"],
        action_timesteps=torch.full((6,), TIMESTEP),
        action_noisy_frame_indexes=[torch.arange(6)],
        action_domain_ids=[torch.tensor([5])],
    )

    _, text = model.understand(torch_ids, text_tables(model, TEXT))
    video = model.proj_in(patchify(latents, 2))
    video[12:] += model.embed_times(TIMESTEP, 24)
    heard = model.audio_proj_in(sound.T) + model.audio_modality_embed + model.embed_times(TIMESTEP, 11)
    done = model.action_proj_in(actions, 5) + model.action_modality_embed + model.embed_times(TIMESTEP, 6)
    packed = torch.cat([video, heard, done]).unsqueeze(0)
    tables = model.rotary(positions(model.config, layout, TEXT).unsqueeze(1))
    hidden = model.generate(packed, tables, text)[0]

    assert torch.equal(unpatchify(model.proj_out(hidden[12:36]), layout), expected.sample[0])
    assert torch.equal(model.audio_proj_out(hidden[36:47]).T, expected.sound[0])
    assert torch.equal(model.action_proj_out(hidden[47:], 5), expected.action[0])
    assert expected.sample[0].abs().max() > 0.1


@torch.no_grad()
def test_logits_and_keys_of_text_are_those_of_transformers(pipeline, reasoner):
    model, ids = transformer_of(pipeline), torch.arange(7, 7 + TEXT).unsqueeze(0)
    expected = reasoner(input_ids=ids, use_cache=True)
    hidden, kept = model.understand(ids, text_tables(model, TEXT))
    assert torch.equal(model.lm_head(hidden), expected.logits)
    for index, layer in enumerate(expected.past_key_values.layers):
        assert torch.equal(kept[index, 0].transpose(1, 2), layer.keys)
        assert torch.equal(kept[index, 1].transpose(1, 2), layer.values)


@torch.no_grad()
def test_text_may_come_in_parts(pipeline):
    model, ids = transformer_of(pipeline), torch.arange(7, 7 + TEXT).unsqueeze(0)
    whole, kept = model.understand(ids, text_tables(model, TEXT))
    first, past = model.understand(ids[:, :20], text_tables(model, 20))
    mask = torch.ones(17, TEXT, dtype=torch.bool).tril(20).view(1, 1, 17, TEXT)
    with_room = torch.nn.functional.pad(past, (0, 0, 0, 0, 0, 17))
    second, more = model.understand(ids[:, 20:], text_tables(model, 17, 20), past_NZBSHD=with_room, mask=mask)
    torch.testing.assert_close(torch.cat([first, second], dim=1), whole, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(torch.cat([past, more], dim=3), kept, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_images_enter_the_text_as_in_transformers(pipeline, reasoner):
    model = transformer_of(pipeline)
    draw = torch.Generator().manual_seed(2)
    image_id = reasoner.config.image_token_id
    ids = torch.tensor([[5, 6, *[image_id] * 6, 9, 10, 11]])
    patches, grid = torch.randn(24, 3 * 2 * 8 * 8, generator=draw), torch.tensor([[1, 4, 6]])
    seen = reasoner.model.visual(patches, grid_thw=grid)
    kinds = (ids == image_id).int()
    expected = reasoner(input_ids=ids, pixel_values=patches, image_grid_thw=grid, mm_token_type_ids=kinds)

    from fastvideo_cosmos3.models.vision import text_positions

    places = torch.arange(2, 8)
    tables = model.rotary(text_positions(ids[0].tolist(), (image_id,), [(2, 3)]).unsqueeze(1))
    visual = VisualTokens(places, seen.pooler_output, seen.deepstack_features)
    hidden, _ = model.understand(ids, tables, visual=visual)
    assert torch.equal(model.lm_head(hidden), expected.logits)


@torch.no_grad()
def test_video_is_encoded_and_decoded_as_in_diffusers(pipeline):
    vae = VideoVAE(VideoVAEConfig.from_diffusers(plain(pipeline.vae.config))).eval()
    vae.load_state_dict(pipeline.vae.state_dict())
    draw = torch.Generator().manual_seed(3)
    pixels = torch.rand(1, 3, 9, 32, 48, generator=draw) * 2 - 1
    expected = pipeline._encode_video(pixels)
    features, memory = [], ()
    for group in pixels.split([1, 4, 4], dim=2):
        part, memory = vae.encode_group(group, memory)
        features.append(part)
    assert torch.equal(vae.mean_latents(torch.cat(features, dim=2)), expected)

    latents = torch.randn(1, 16, 3, 2, 3, generator=draw)
    decoded, memory = [], ()
    mixed = vae.mix(latents)
    for frame in mixed.split(1, dim=2):
        part, memory = vae.decode_frame(frame, memory)
        decoded.append(part)
    expected = pipeline.vae.decode(latents).sample
    assert torch.equal(torch.cat(decoded, dim=2).clamp(-1, 1), expected)


@torch.no_grad()
def test_sound_is_decoded_as_in_diffusers(pipeline):
    decoder = SoundDecoder(SoundConfig.from_diffusers(plain(pipeline.sound_tokenizer.config))).eval()
    decoder.load_state_dict(pipeline.sound_tokenizer.state_dict())
    latents = torch.randn(2, 8, 13, generator=torch.Generator().manual_seed(4))
    assert torch.equal(decoder(latents), pipeline.sound_tokenizer.decode(latents))


def test_latents_that_fill_no_patch_come_back_whole():
    latents = torch.randn(1, 4, 2, 3, 5)
    layout = Layout(2, 3, 5, (), fps=24.0)
    patches = patchify(latents, 2)
    assert patches.shape == (layout.video_tokens, 16)
    assert torch.equal(unpatchify(patches, layout), latents)
