"""Second stage: normalise the autoencoder's latents, then write the latents of many drawn clips.

Shape letters: N clips, C latent channels, T latent frames, H rows, W columns.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from fastvideo_wan.models.vae import WanVAE, mean_latents
from fastvideo_wan.models.vae_config import WanVAEConfig
from fastvideo_wan.shapes.render import render_clips
from fastvideo_wan.shapes.scenes import Scene, as_json, draw_scene, from_json
from fastvideo_wan.shapes.train.checkpoint import load_average
from fastvideo_wan.shapes.train.config import Bucket, TrainConfig
from fastvideo_wan.shapes.train.vae_stage import CHECKPOINT, vae_config
from fastvideo_wan.shapes.train.workers import Worker

VAE_FOLDER = "vae"
LATENTS_FOLDER = "latents"
NUM_STATISTICS_CLIPS = 192
ENCODE_PIXELS = 8 * 17 * 64 * 64  # encoded at a time
# A channel that hardly varies carries noise; dividing it by its own deviation would ask the transformer to model that.
MIN_LATENT_STD = 0.5


@torch.no_grad()
def rotate_latents(vae: WanVAE, latents_NCTHW: Tensor) -> WanVAE:
    """Return a model with the same reconstructions whose latent channels are uncorrelated, largest variance first.

    The rotation goes into the two 1 by 1 convolutions at the latents' sides; mean and deviation of each channel go into
    the config, where the format keeps them.

    Args:
        vae: The trained model; not changed.
        latents_NCTHW: Its latent means over many clips.
    """
    channels = latents_NCTHW.shape[1]
    flat = latents_NCTHW.transpose(0, 1).reshape(channels, -1).double()
    mean = flat.mean(1)
    _, vectors = torch.linalg.eigh(torch.cov(flat))
    rotation = vectors.flip(1).T  # rows are the new axes
    std = (rotation @ (flat - mean[:, None])).std(1).clamp(min=MIN_LATENT_STD)
    config = vae.config.model_copy(
        update={"latents_mean": tuple((rotation @ mean).tolist()), "latents_std": tuple(std.tolist())}
    )
    rotated = WanVAE(config)
    rotated.load_state_dict(vae.state_dict())
    quant, post = rotated.quant_conv, rotated.post_quant_conv
    assert quant.bias is not None
    weight, bias = quant.weight[:channels, :, 0, 0, 0].double(), quant.bias[:channels].double()
    quant.weight[:channels, :, 0, 0, 0] = (rotation @ weight).float()
    quant.bias[:channels] = (rotation @ bias).float()
    post.weight[:, :, 0, 0, 0] = (post.weight[:, :, 0, 0, 0].double() @ rotation.T).float()
    return rotated


def prepare_vae(config: TrainConfig) -> WanVAE:
    """Write the model's folder: the base's, or the averaged weights of stage one with rotated latents."""
    from fastvideo_wan.shapes.train.base import read_base  # which reads with `load_vae`

    base = read_base(config)
    if base is not None:
        vae = base.load_vae()
        save_vae(vae, config.folder / VAE_FOLDER)
        return vae
    vae = WanVAE(vae_config(config.vae))
    vae.load_state_dict(load_average(config.folder / CHECKPOINT))
    scenes = draw_scenes(config, NUM_STATISTICS_CLIPS, config.buckets[0], name="statistics")
    rotated = rotate_latents(vae, encode_scenes(vae, scenes, config.buckets[0], device=config.device))
    save_vae(rotated, config.folder / VAE_FOLDER)
    return rotated


def save_vae(vae: WanVAE, folder: Path, dtype: torch.dtype = torch.float32) -> None:
    """Write an autoencoder's folder in diffusers' layout."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: tensor.to(dtype).contiguous() for name, tensor in vae.state_dict().items()}
    save_file(weights, folder / "diffusion_pytorch_model.safetensors", {"format": "pt"})
    settings = {"_class_name": "AutoencoderKLWan", **vae.config.model_dump(mode="json")}
    (folder / "config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def load_vae(folder: Path) -> WanVAE:
    """Read what `save_vae` wrote, in float32."""
    raw = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    vae = WanVAE(WanVAEConfig.model_validate({key: value for key, value in raw.items() if key[0] != "_"}))
    weights = load_file(folder / "diffusion_pytorch_model.safetensors")
    vae.load_state_dict({name: tensor.float() for name, tensor in weights.items()})
    return vae


def draw_scenes(config: TrainConfig, num_scenes: int, bucket: Bucket, *, name: str) -> list[Scene]:
    """Return scenes for a bucket's clips that follow from the run's seed and `name`."""
    rng, world = random.Random(f"{config.seed}/scenes/{name}"), config.world.at(bucket.height, bucket.width)
    return [draw_scene(rng, config.latents.ranges.to_scene_ranges(), world) for _ in range(num_scenes)]


@torch.no_grad()
def encode_scenes(vae: WanVAE, scenes: list[Scene], bucket: Bucket, *, device: str = "cpu") -> Tensor:
    """Return the latent means of scenes drawn at a bucket's size, not normalised, on the CPU, shape (N, C, T, H, W)."""
    vae = vae.to(device).eval()
    size = batch_of(bucket, ENCODE_PIXELS)
    batches = [scenes[i : i + size] for i in range(0, len(scenes), size)]
    return torch.cat([mean_latents(vae.encode(draw_pixels(batch, bucket).to(device))).cpu() for batch in batches])


def draw_pixels(scenes: list[Scene], bucket: Bucket) -> Tensor:
    """Return scenes drawn at a bucket's size, values -1 to 1, shape (N, C, T, H, W)."""
    clips = render_clips(scenes, num_frames=bucket.num_frames, height=bucket.height, width=bucket.width)
    return clips * 2 - 1


def batch_of(bucket: Bucket, max_pixels: int) -> int:
    """Return how many of a bucket's clips have about as many pixels as `max_pixels`, at least one."""
    return max(1, max_pixels // (bucket.num_frames * bucket.height * bucket.width))


def write_latents(worker: Worker, config: TrainConfig) -> None:
    """Write the files that are not there yet; each process takes every n-th."""
    if worker.is_first and not (config.folder / VAE_FOLDER / "config.json").exists():
        prepare_vae(config)
    worker.sum(torch.zeros(1))  # wait for the first process
    vae = load_vae(config.folder / VAE_FOLDER)
    wanted = wanted_files(config)
    for number, (bucket, index) in enumerate(wanted[worker.rank :: worker.num_workers]):
        path = latents_path(config, bucket, index)
        if not path.exists():
            _write_file(path, vae, file_scenes(config, bucket, index), bucket, config.device)
            print(f"latents {number * worker.num_workers + worker.rank + 1}/{len(wanted)}", flush=True)


def wanted_files(config: TrainConfig) -> list[tuple[Bucket, int]]:
    """Return all files, the same part of each bucket at a time, as a transformer that learns meanwhile needs them."""
    files = [(bucket, index) for bucket in config.buckets for index in range(num_files(config, bucket))]
    return sorted(files, key=lambda file: file[1] / num_files(config, file[0]))


def num_files(config: TrainConfig, bucket: Bucket) -> int:
    """Return how many files hold a bucket's latents."""
    return -(-bucket.num_clips // config.latents.clips_per_file)


def file_scenes(config: TrainConfig, bucket: Bucket, index: int) -> list[Scene]:
    """Return the scenes of a file."""
    return draw_scenes(config, config.latents.clips_per_file, bucket, name=f"{bucket.name}/{index}")


def latents_path(config: TrainConfig, bucket: Bucket, index: int) -> Path:
    """Return the name of a file of latents."""
    return config.folder / LATENTS_FOLDER / bucket.name / f"{index:05d}.safetensors"


def _write_file(path: Path, vae: WanVAE, scenes: list[Scene], bucket: Bucket, device: str) -> None:
    latents = vae.normalize(encode_scenes(vae, scenes, bucket, device=device)).half()
    described = json.dumps([as_json(scene) for scene in scenes])
    partial = path.with_suffix(".partial")
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({"latents": latents.contiguous()}, partial, {"scenes": described})
    partial.replace(path)


def read_latents(path: Path) -> tuple[Tensor, list[Scene]]:
    """Return normalised latents, float16, shape (N, C, T, H, W), and what they show."""
    with safe_open(path, framework="pt") as file:
        described: list[dict[str, Any]] = json.loads(file.metadata()["scenes"])
        return file.get_tensor("latents"), [from_json(scene) for scene in described]
