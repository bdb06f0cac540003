"""Rung C0: the parts of a Cosmos3 model one by one against those of diffusers and transformers, on random inputs.

Shape letters: C channels; T, H, W latent frames, rows, columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fastvideo_core.loop.samplers import ScheduleSpec, get_sampler
from fastvideo_core.parity import CheckContext, Measurement, compare_tensors, load_reference
from fastvideo_core.runtime.catalog import read_json
from fastvideo_core.runtime.run import make_generator
from fastvideo_cosmos3.models.packing import Layout, patchify, positions, unpatchify
from fastvideo_cosmos3.models.transformer import Cosmos3Transformer, VisualTokens
from fastvideo_cosmos3.models.vision import text_positions
from fastvideo_cosmos3.parity.reference import decode_latents, load_part, load_reasoner

__all__ = [
    "check_reasoner",
    "check_sampler_step",
    "check_sound_decode",
    "check_transformer",
    "check_vae_decode",
    "check_vae_encode",
    "check_vision",
]

_SEED = 11
_NUM_TEXT = 37
_TIMESTEP = 733
_DOMAIN = 5
_GRID = (4, 6)
"""Patches of the image that the vision check shows."""


def check_transformer(context: CheckContext) -> Sequence[Measurement]:
    """C0: velocities of video, and of sound and actions where there are heads for them, from one packed sequence."""
    model: Cosmos3Transformer = context.instance.component("transformer")
    config, draw = model.config, _drawer()
    layout = Layout(
        3, 5, 7, (0,), fps=24.0, sound_fps=25.0,
        sound_frames=11 if config.sound_gen else 0, num_actions=6 if config.action_gen else 0,
        patch=config.latent_patch_size,
    )  # fmt: skip
    latents = draw(1, config.latent_channel, layout.frames, layout.rows, layout.columns)
    sound = draw(config.sound_dim, layout.sound_frames) if layout.sound_frames else None
    actions = draw(layout.num_actions, config.action_dim) if layout.num_actions else None
    with torch.no_grad():
        found = _velocities(model, layout, latents, sound, actions)
        reference = load_part(context.folder, "Cosmos3OmniTransformer", "transformer")
        expected = _reference_velocities(reference, model, layout, latents, sound, actions)
    return [Measurement(f"velocity of {name}", "exact", compare_tensors(found[name], expected[name])) for name in found]


def _velocities(
    model: Cosmos3Transformer, layout: Layout, latents: Tensor, sound: Tensor | None, actions: Tensor | None
) -> dict[str, Tensor]:
    """Return the velocities of what is packed, as the denoise step makes them of a text of the first tokens."""
    text_tables = model.rotary(torch.arange(_NUM_TEXT, dtype=torch.float32).expand(3, 1, -1))
    _, text = model.understand(torch.arange(_NUM_TEXT).unsqueeze(0), text_tables)
    first = layout.patches_a_frame
    video = model.proj_in(patchify(latents, layout.patch))
    video[first:] += model.embed_times(_TIMESTEP, layout.video_tokens - first)
    parts = [video]
    if sound is not None:
        times = model.embed_times(_TIMESTEP, layout.sound_frames)
        parts.append(model.audio_proj_in(sound.T.contiguous()) + model.audio_modality_embed + times)
    if actions is not None:
        times = model.embed_times(_TIMESTEP, layout.num_actions)
        parts.append(model.action_proj_in(actions, _DOMAIN) + model.action_modality_embed + times)
    tables = model.rotary(positions(model.config, layout, _NUM_TEXT).unsqueeze(1))
    hidden = model.generate(torch.cat(parts).unsqueeze(0), tables, text)[0]
    sound_end = layout.video_tokens + layout.sound_frames
    found = {"video": unpatchify(model.proj_out(hidden[first : layout.video_tokens]), layout)}
    if sound is not None:
        found["sound"] = model.audio_proj_out(hidden[layout.video_tokens : sound_end]).T
    if actions is not None:
        found["actions"] = model.action_proj_out(hidden[sound_end:], _DOMAIN)
    return found


def _reference_velocities(
    reference: Any,
    model: Cosmos3Transformer,
    layout: Layout,
    latents: Tensor,
    sound: Tensor | None,
    actions: Tensor | None,
) -> dict[str, Tensor]:
    text = torch.arange(_NUM_TEXT, dtype=torch.float32).expand(3, -1)
    video_end = _NUM_TEXT + layout.video_tokens
    end = _NUM_TEXT + layout.num_tokens
    noisy = torch.arange(_NUM_TEXT + layout.patches_a_frame, video_end)
    rows, columns = -(-layout.rows // layout.patch), -(-layout.columns // layout.patch)
    call: dict[str, Any] = {
        "input_ids": torch.arange(_NUM_TEXT),
        "text_indexes": torch.arange(_NUM_TEXT),
        "position_ids": torch.cat([text, positions(model.config, layout, _NUM_TEXT)], dim=1),
        "und_len": _NUM_TEXT,
        "sequence_length": end,
        "vision_tokens": [latents],
        "vision_token_shapes": [(layout.frames, rows, columns)],
        "vision_sequence_indexes": torch.arange(_NUM_TEXT, video_end),
        "vision_mse_loss_indexes": noisy,
        "vision_timesteps": torch.full((len(noisy),), _TIMESTEP),
        "vision_noisy_frame_indexes": [torch.arange(1, layout.frames)],
    }
    if sound is not None:
        call |= _modality("sound", sound, torch.arange(video_end, video_end + layout.sound_frames))
    if actions is not None:
        call |= _modality("action", actions, torch.arange(end - layout.num_actions, end))
        call["action_domain_ids"] = [torch.tensor([_DOMAIN])]
    made = reference(**call)
    parts = {"video": made.sample, "sound": made.sound, "actions": made.action}
    return {name: part[0] for name, part in parts.items() if part is not None}


def _modality(name: str, tokens: Tensor, places: Tensor) -> dict[str, Any]:
    """Return how the reference is given sound or actions, all of them noisy."""
    return {
        f"{name}_tokens": [tokens],
        f"{name}_token_shapes": [(len(places), 1, 1)],
        f"{name}_sequence_indexes": places,
        f"{name}_mse_loss_indexes": places,
        f"{name}_timesteps": torch.full((len(places),), _TIMESTEP),
        f"{name}_noisy_frame_indexes": [torch.arange(len(places))],
    }


def check_vae_encode(context: CheckContext) -> Sequence[Measurement]:
    """C0: normalized latents of a random clip."""
    vae, reference = context.instance.component("vae"), load_part(context.folder, "AutoencoderKLWan", "vae")
    grid, factor = vae.config.spatial_factor, 4
    pixels = _drawer()(1, 3, 1 + 2 * factor, 2 * grid, 3 * grid).clamp(-1, 1)
    features, memory = [], ()
    with torch.no_grad():
        for group in pixels.split([1, factor, factor], dim=2):
            part, memory = vae.encode_group(group, memory)
            features.append(part)
        found = vae.mean_latents(torch.cat(features, dim=2))
        mean, inverse_std = _statistics(vae)
        expected = (reference.encode(pixels).latent_dist.mode() - mean) * inverse_std
    return [Measurement("latents", "exact", compare_tensors(found, expected))]


def check_vae_decode(context: CheckContext) -> Sequence[Measurement]:
    """C0: pixels of random latents, after the clamp with which the reference ends."""
    vae, reference = context.instance.component("vae"), load_part(context.folder, "AutoencoderKLWan", "vae")
    latents = _drawer()(1, vae.config.z_dim, 3, 2, 3)
    frames, memory = [], ()
    with torch.no_grad():
        for mixed in vae.mix(latents).split(1, dim=2):
            part, memory = vae.decode_frame(mixed, memory)
            frames.append(part)
        expected = decode_latents(reference, latents)
    return [Measurement("pixels", "exact", compare_tensors(torch.cat(frames, dim=2).clamp(-1, 1), expected))]


def check_sound_decode(context: CheckContext) -> Sequence[Measurement]:
    """C0: the waveform of random latents."""
    decoder = context.instance.component("sound_tokenizer")
    reference = load_part(context.folder, "Cosmos3AVAEAudioTokenizer", "sound_tokenizer")
    latents = _drawer()(2, decoder.config.vocoder_input_dim, 13)
    with torch.no_grad():
        return [Measurement("samples", "exact", compare_tensors(decoder(latents), reference.decode(latents)))]


def check_sampler_step(context: CheckContext) -> Sequence[Measurement]:
    """C0: two steps of the card's sampler on random velocities, against the checkpoint's own scheduler."""
    diffusers, sampler = load_reference("diffusers"), get_sampler(context.spec.subject)
    shift = context.card.task(context.card.capabilities.default_task).parameters["flow_shift"].default
    options = context.card.loops["diffusion_denoise"].options["sampler_options"].get(sampler.name, {})
    schedule = sampler.make_schedule(ScheduleSpec(num_steps=4, shift=float(shift), options=options))  # type: ignore[arg-type]
    name = str(read_json(context.folder / "scheduler" / "scheduler_config.json")["_class_name"])
    scheduler = getattr(diffusers, name).from_pretrained(str(context.folder), subfolder="scheduler")
    if options.get("grid") == "native":
        # What the pipeline sets where the checkpoint asks for its own schedule.
        count = scheduler.config.num_train_timesteps
        scheduler.set_timesteps(sigmas=torch.linspace(1 - 1 / count, 0, 5, dtype=torch.float64)[:-1].numpy())
    else:
        scheduler.set_timesteps(4)
    draw, measured = _drawer(), []
    value = expected = draw(1, 4, 2, 3, 3)
    state = sampler.init_state(schedule)
    for index in range(2):
        velocity = draw(1, 4, 2, 3, 3)
        value, state = sampler.step(schedule, state, velocity, value, index)
        expected = scheduler.step(velocity, scheduler.timesteps[index], expected, return_dict=False)[0]
        measured.append(Measurement(f"sample after step {index + 1}", "exact", compare_tensors(value, expected)))
    return measured


def check_reasoner(context: CheckContext) -> Sequence[Measurement]:
    """C0: logits of a text, and the keys and values that generating goes on from."""
    model: Cosmos3Transformer = context.instance.component("transformer")
    ids = torch.arange(7, 7 + _NUM_TEXT).unsqueeze(0)
    with torch.no_grad():
        expected = load_reasoner(context.folder)(input_ids=ids, use_cache=True)
        hidden, kept = model.understand(ids, model.rotary(torch.arange(_NUM_TEXT).float().expand(3, 1, -1)))
        logits = model.lm_head(hidden)
    layers = expected.past_key_values.layers
    keys, values = (torch.stack([getattr(one, name).transpose(1, 2) for one in layers]) for name in ("keys", "values"))
    return [
        Measurement("logits", "exact", compare_tensors(logits, expected.logits)),
        Measurement("keys", "exact", compare_tensors(kept[:, 0], keys)),
        Measurement("values", "exact", compare_tensors(kept[:, 1], values)),
    ]


def check_vision(context: CheckContext) -> Sequence[Measurement]:
    """C0: logits of a text with an image in it, from random patches."""
    model: Cosmos3Transformer = context.instance.component("transformer")
    encoder, reasoner = context.instance.component("vision_encoder"), load_reasoner(context.folder)
    config, image_id = encoder.config, reasoner.config.image_token_id
    rows, columns = (edge // config.spatial_merge_size for edge in _GRID)
    ids = torch.tensor([[5, 6, *[image_id] * rows * columns, 9, 10, 11]])
    width = config.in_channels * config.temporal_patch_size * config.patch_size**2
    patches, grid = _drawer()(_GRID[0] * _GRID[1], width), torch.tensor([[1, *_GRID]])
    with torch.no_grad():
        expected = reasoner(
            input_ids=ids, pixel_values=patches, image_grid_thw=grid, mm_token_type_ids=(ids == image_id).int()
        ).logits
        seen = encoder(patches, grid_thw=grid, return_dict=True)
        visual = VisualTokens(torch.arange(2, 2 + rows * columns), seen.pooler_output, seen.deepstack_features)
        tables = model.rotary(text_positions(ids[0].tolist(), (image_id,), [(rows, columns)]).unsqueeze(1))
        logits = model.lm_head(model.understand(ids, tables, visual=visual)[0])
    return [Measurement("logits", "exact", compare_tensors(logits, expected))]


def _statistics(vae: Any) -> tuple[Tensor, Tensor]:
    """Return the mean of each latent channel, and one over its standard deviation."""
    shape = (1, -1, 1, 1, 1)
    return torch.tensor(vae.config.latents_mean).view(shape), 1.0 / torch.tensor(vae.config.latents_std).view(shape)


def _drawer() -> Callable[..., Tensor]:
    """Return a function that draws standard normal tensors from one seeded generator."""
    generator = make_generator(_SEED)
    return lambda *shape: torch.randn(*shape, generator=generator)
