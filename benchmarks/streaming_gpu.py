"""Frames a second of one session of LongLive's 1.3B configuration at 480x832, with random weights, on a GPU.

    fps_480p              frames a second of one session, the median of the chunks after the window is full
    fps_480p_over_paper   the same over 20.7, which the LongLive paper has on one H100

Time does not depend on the weights: transformer and VAE have the sizes of the release and weights that are drawn. The
text encoder is that of `wan-shapes-causal`, which runs once a prompt. `--small` is a model of a few thousand weights
on the CPU, to see that it runs.

Source of 20.7: LongLive, arXiv:2509.22622.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from _common import make_parser, positive, report
from fastvideo_core import Engine
from fastvideo_core.runtime.sessions import SessionOptions
from fastvideo_wan import data
from fastvideo_wan.models.causal import CausalWanTransformer
from fastvideo_wan.models.config import WanTransformerConfig
from fastvideo_wan.models.vae import WanVAE
from fastvideo_wan.models.vae_config import WanVAEConfig

PAPER_FPS = 20.7
TIMEOUT_S = 600.0
_WEIGHTS = "diffusion_pytorch_model.safetensors"
_SHIPPED = Path(data.__path__[0]) / "wan-shapes-causal"
_RULE = {"local_attn_size": 12, "sink_size": 3, "num_frames_per_block": 3}
_TEXT_DIM = 128
"""Width of the shipped text encoder."""


@dataclass(frozen=True, slots=True)
class Size:
    """A configuration.

    Attributes:
        transformer: Fields of the transformer's configuration.
        vae: Fields of the VAE's.
        height: Pixels.
        width: Pixels.
    """

    transformer: dict[str, Any]
    vae: dict[str, Any]
    height: int
    width: int


LONGLIVE = Size({"num_attention_heads": 12, "ffn_dim": 8960, "num_layers": 30}, {}, 480, 832)
SMALL = Size(
    {"num_attention_heads": 2, "attention_head_dim": 16, "ffn_dim": 32, "num_layers": 2}, {"base_dim": 8}, 32, 48
)


def write_checkpoint(folder: Path, size: Size, dtype: torch.dtype) -> None:
    """Write a causal folder in diffusers layout with drawn weights."""
    torch.manual_seed(0)
    shutil.copytree(_SHIPPED, folder, ignore=shutil.ignore_patterns("transformer", "vae", "card.json", "recipe.json"))
    transformer = {"text_dim": _TEXT_DIM, **size.transformer}
    config = WanTransformerConfig(**transformer)
    fields = {**config.model_dump(mode="json"), "_class_name": "CausalWanTransformer3DModel", **_RULE}
    _write(folder / "transformer", fields, CausalWanTransformer(config), dtype)
    vae = WanVAEConfig(**size.vae)
    _write(folder / "vae", {**vae.model_dump(mode="json"), "_class_name": "AutoencoderKLWan"}, WanVAE(vae), dtype)


def _write(folder: Path, config: dict[str, Any], module: torch.nn.Module, dtype: torch.dtype) -> None:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: one.to(dtype).contiguous() for name, one in module.state_dict().items()}, folder / _WEIGHTS)


def measure(size: Size, device: str, num_chunks: int) -> dict[str, Any]:
    """Return all figures."""
    dtype = torch.bfloat16 if device != "cpu" else torch.float32
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "longlive"
        write_checkpoint(folder, size, dtype)
        with Engine.open(folder, device=device) as engine:
            options = SessionOptions(num_chunks=num_chunks, buffer_s=1e9)
            arrivals, frames = [], 0
            with engine.session(
                "a red circle moving right", options=options, height=size.height, width=size.width
            ) as session:
                for chunk in session.chunks(TIMEOUT_S):
                    arrivals.append(time.perf_counter())
                    frames = len(chunk.data)
    full = _RULE["local_attn_size"] // _RULE["num_frames_per_block"]
    chunk_s = statistics.median([later - sooner for sooner, later in itertools.pairwise(arrivals)][full:])
    fps = frames / chunk_s
    name = torch.cuda.get_device_name() if device != "cpu" else "cpu"
    return {"fps_480p": fps, "fps_480p_over_paper": fps / PAPER_FPS, "chunk_s": chunk_s, "device": name}


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = make_parser(__doc__.splitlines()[0], num_rounds=1)
    parser.add_argument("--chunks", type=positive, default=20, help="chunks, at least 7 (default: %(default)s)")
    parser.add_argument("--small", action="store_true", help="a small model on the CPU, to see that it runs")
    args: argparse.Namespace = parser.parse_args(argv)
    if args.chunks < 7:
        parser.error(f"--chunks: {args.chunks}; allowed: 7 or more, as the window has to be full")
    if not args.small and not torch.cuda.is_available():
        parser.error("there is no GPU here; --small runs on the CPU")
    report(measure(*((SMALL, "cpu") if args.small else (LONGLIVE, "cuda")), args.chunks), as_json=args.json)


if __name__ == "__main__":
    main()
