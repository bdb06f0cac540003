"""Reference models that diffusers built and saved from a seed, and the same checkpoints loaded here."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from safetensors.torch import load_file

from fastvideo_wan.models.config import WanTransformerConfig
from fastvideo_wan.models.transformer import WanTransformer
from fastvideo_wan.models.vae import WanVAE
from fastvideo_wan.models.vae_config import WanVAEConfig

SMALL = {
    "patch_size": (1, 2, 2),
    "num_attention_heads": 2,
    "attention_head_dim": 12,
    "in_channels": 16,
    "out_channels": 16,
    "text_dim": 32,
    "freq_dim": 256,
    "ffn_dim": 32,
    "num_layers": 2,
}

IMAGE = {"in_channels": 36, "image_dim": 20, "added_kv_proj_dim": 24}

VARIANTS = {
    "2.1-t2v": {},
    "2.1-i2v": IMAGE,
    "2.1-flf2v": {**IMAGE, "pos_embed_seq_len": 10},
    "2.2-ti2v-5b": {"in_channels": 48, "out_channels": 48},
    "2.2-t2v-a14b": {"num_layers": 3},
    "2.2-i2v-a14b": {"in_channels": 36},
    "wide-heads": {"attention_head_dim": 96},
    "plain-cross-attention": {"cross_attn_norm": False},
}


@dataclass
class Call:
    """Inputs of one forward pass."""

    latents: torch.Tensor
    timesteps: torch.Tensor
    text: torch.Tensor
    image: torch.Tensor | None


@dataclass
class Pair:
    """A reference transformer and ours with the same weights."""

    reference: torch.nn.Module
    model: WanTransformer

    def draw(self, num_rows=1, *, grid=(3, 4, 5), num_text=(20, 9, 512, 1), per_token=False, seed=0):
        """Draw inputs; row i has `num_text[i]` tokens of text, zero-padded to 512."""
        config, generator = self.model.config, torch.Generator().manual_seed(seed)
        sides = [axis * patch for axis, patch in zip(grid, config.patch_size, strict=True)]
        text = torch.randn(num_rows, 512, config.text_dim, generator=generator)
        for row in range(num_rows):
            text[row, num_text[row] :] = 0
        image = None
        if config.image_dim is not None:
            num_images = num_rows * (1 if config.pos_embed_seq_len is None else 2)
            image = torch.randn(num_images, 5, config.image_dim, generator=generator)
        shape = (num_rows, grid[0] * grid[1] * grid[2]) if per_token else (num_rows,)
        return Call(
            latents=torch.randn(num_rows, config.in_channels, *sides, generator=generator),
            timesteps=torch.randint(0, 1000, shape, generator=generator),
            text=text,
            image=image,
        )

    def expected(self, call):
        """Run the reference."""
        return self.reference(call.latents, call.timesteps, call.text, call.image, return_dict=False)[0]

    def run(self, call, *, exact=False, **options):
        """Run ours."""
        context = self.model.prepare_context(call.text, call.image, exact=exact)
        return self.model(call.latents, call.timesteps, context, exact=exact, **options)


@pytest.fixture(scope="session")
def pair(tmp_path_factory):
    """Return a function that gives the pair of a variant; tests must leave its weights as they are."""
    made = {}

    def get(variant):
        if variant not in made:
            made[variant] = make_pair(VARIANTS[variant], tmp_path_factory.mktemp("dit"))
        return made[variant]

    return get


def make_pair(overrides, folder):
    from diffusers import WanTransformer3DModel

    torch.manual_seed(5)
    reference = WanTransformer3DModel(**{**SMALL, **overrides}).eval().requires_grad_(False)
    # Fresh norms have weight one and bias zero, which would hide a norm that is left out.
    for parameter in reference.parameters():
        parameter.add_(0.1 * torch.randn_like(parameter))
    reference.save_pretrained(folder)
    model = WanTransformer(WanTransformerConfig.from_folder(folder)).requires_grad_(False)
    model.load_state_dict(load_file(folder / "diffusion_pytorch_model.safetensors"), strict=True)
    return Pair(reference, model)


VAE_SMALL = {"base_dim": 3, "dim_mult": [1, 1, 1, 1], "num_res_blocks": 1, "temperal_downsample": [False, True, True]}
VAE_PATCHED = {"is_residual": True, "patch_size": 2, "in_channels": 12, "out_channels": 12}

VAE_VARIANTS = {
    "2.1": VAE_SMALL,
    "2.1-wide": {
        **VAE_SMALL,
        "base_dim": 8,
        "decoder_base_dim": 12,
        "dim_mult": [1, 1, 2, 2],
        "num_res_blocks": 2,
    },
    "2.2": {
        **VAE_SMALL,
        **VAE_PATCHED,
        "z_dim": 48,
        "scale_factor_spatial": 16,
        "latents_mean": [0.01 * index - 0.2 for index in range(48)],
        "latents_std": [0.5 + 0.03 * index for index in range(48)],
    },
    "2.2-shapes": {
        **VAE_PATCHED,
        "base_dim": 8,
        "z_dim": 4,
        "dim_mult": [1, 2, 2],
        "num_res_blocks": 2,
        "temperal_downsample": [True, True],
        "latents_mean": [0.1, 0.2, -0.3, 0.4],
        "latents_std": [1.0, 2.0, 0.5, 1.5],
    },
    "2.2-steep": {
        **VAE_PATCHED,
        "base_dim": 4,
        "z_dim": 4,
        "dim_mult": [1, 4, 4],
        "num_res_blocks": 1,
        "temperal_downsample": [False, True],
        "scale_factor_temporal": 2,
        "latents_mean": [0.0] * 4,
        "latents_std": [1.0] * 4,
    },
}


@dataclass
class VAEPair:
    """A reference autoencoder and ours with the same weights."""

    reference: torch.nn.Module
    model: WanVAE

    def draw_pixels(self, num_frames=9, *, num_rows=1, grid=(3, 2), seed=0):
        """Draw pixels of a grid of latent rows and columns."""
        config, generator = self.model.config, torch.Generator().manual_seed(seed)
        sides = [side * config.spatial_factor for side in grid]
        return torch.rand(num_rows, config.pixel_channels, num_frames, *sides, generator=generator) * 2 - 1

    def draw_latents(self, num_frames=3, *, num_rows=1, grid=(3, 2), seed=0):
        """Draw latents."""
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(num_rows, self.model.config.z_dim, num_frames, *grid, generator=generator)

    def expected_moments(self, pixels):
        """Run the reference's encoder."""
        return self.reference.encode(pixels).latent_dist.parameters

    def expected_pixels(self, latents):
        """Run the reference's decoder, which clamps."""
        return self.reference.decode(latents).sample


@pytest.fixture(scope="session")
def vae_pair(tmp_path_factory):
    """Return a function that gives the autoencoders of a variant; tests must leave their weights as they are."""
    made = {}

    def get(variant):
        if variant not in made:
            made[variant] = make_vae_pair(VAE_VARIANTS[variant], tmp_path_factory.mktemp("vae"))
        return made[variant]

    return get


def make_vae_pair(config, folder):
    from diffusers import AutoencoderKLWan

    torch.manual_seed(5)
    reference = AutoencoderKLWan(**config).eval().requires_grad_(False)
    # Fresh norms have gain one, which would hide a norm that is left out.
    for name, parameter in reference.named_parameters():
        if name.endswith("gamma"):
            parameter.add_(0.2 * torch.randn_like(parameter))
    reference.save_pretrained(folder)
    model = WanVAE(WanVAEConfig.from_folder(folder)).eval().requires_grad_(False)
    model.load_state_dict(load_file(folder / "diffusion_pytorch_model.safetensors"), strict=True)
    return VAEPair(reference, model)
