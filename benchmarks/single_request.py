"""One request at a time: this engine against diffusers' `WanPipeline`, on the same checkpoints, in turn.

    ratio_shapes         this engine's time over diffusers', on the shipped wan-shapes model
    ratio_100m           the same on a transformer of about 100 million random parameters and 1,152 video tokens
    ratio_shapes_exact   the same on wan-shapes, in the mode whose result has the reference's bits
    ratio_100m_exact     the same for the large one

Both sides get the same prompt, seed, size, steps and guidance, and end with frames in memory; loading is not timed.
Freed memory is kept for both, as the command does it: what the system takes to give memory back and fetch it again
differs from run to run, and is neither side's work. Before anything is timed, the exact mode must give the reference's
latents to the bit and the default mode must keep 1e-5; otherwise the benchmark fails.
"""

from __future__ import annotations

import gc
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from diffusers import WanPipeline

from _common import interleaved, make_parser, ratio, report
from fastvideo_core import Engine
from fastvideo_core.parity import compare_tensors
from fastvideo_core.runtime.allocator import keep_freed_memory
from fastvideo_core.runtime.catalog import Catalog
from fastvideo_core.runtime.weights.locate import locate_components
from fastvideo_testing.wan_checkpoints import build_wan_checkpoint

PROMPT = "a red circle moving right"
SEED = 7
SIZES_100M: dict[str, Any] = {
    "transformer": {
        "num_attention_heads": 12, "attention_head_dim": 64, "ffn_dim": 3072, "num_layers": 10, "text_dim": 512,
    },
    "text_encoder": {"d_model": 512, "d_kv": 64, "d_ff": 1024, "num_layers": 4, "num_heads": 8},
    "vae": {"base_dim": 32, "dim_mult": [1, 2, 4, 4], "num_res_blocks": 1},
}  # fmt: skip


@dataclass(frozen=True)
class Scenario:
    """A checkpoint and the request that is made of it."""

    name: str
    folder: Path
    parameters: dict[str, Any]
    text_length: int


def scenarios(scratch: Path) -> list[Scenario]:
    """Return what is measured: the shipped model with its defaults, and the large one with few steps."""
    card = Catalog.installed().find("wan-shapes")
    task = card.task("text_to_video")
    names = ("num_frames", "height", "width", "num_inference_steps", "guidance_scale", "negative_prompt")
    shapes = {name: task.parameters[name].default for name in names}
    length = card.loops["text_encode"].options["text_length"]
    large = build_wan_checkpoint(scratch / "100m", "t2v", **SIZES_100M)
    size = {"num_frames": 33, "height": 128, "width": 256, "num_inference_steps": 4}
    return [
        Scenario("shapes", locate_components(card.checkpoint)["transformer"], shapes, length),
        Scenario("100m", large, {**size, "guidance_scale": 5.0, "negative_prompt": ""}, 512),
    ]


class Sides:
    """Both implementations with one scenario loaded."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.engine = Engine.open(scenario.folder)
        self.pipeline = WanPipeline.from_pretrained(str(scenario.folder), dtype=torch.float32)
        self.pipeline.set_progress_bar_config(disable=True)

    def ours(self, *, exact: bool = False, outputs: tuple[str, ...] = ("video",)) -> Any:
        """Make a video with the engine."""
        return self.engine.generate(PROMPT, seed=SEED, exact=exact, outputs=outputs, **self.scenario.parameters)

    def theirs(self, output_type: str = "np") -> Any:
        """Make a video with diffusers."""
        return self.pipeline(
            PROMPT,
            generator=torch.Generator("cpu").manual_seed(SEED),
            output_type=output_type,
            max_sequence_length=self.scenario.text_length,
            **self.scenario.parameters,
        ).frames

    def check(self) -> dict[str, float]:
        """Compare the latents; raise if a side does other work than it says."""
        expected = self.theirs("latent")
        exact = torch.from_numpy(self.ours(exact=True, outputs=("latents",)).latents.latents).unsqueeze(0)
        default = torch.from_numpy(self.ours(outputs=("latents",)).latents.latents).unsqueeze(0)
        distance = compare_tensors(default, expected)
        if not torch.equal(exact, expected) or not distance.is_within(1e-5):
            exact_distance = compare_tensors(exact, expected)
            raise SystemExit(f"{self.scenario.name} differs: exact {exact_distance}, default {distance}")
        return {f"error_{self.scenario.name}": distance.max_relative}

    def measure(self, num_rounds: int) -> dict[str, float]:
        """Time both sides and the exact mode in turn."""
        cases = {"default": self.ours, "exact": lambda: self.ours(exact=True), "diffusers": self.theirs}
        times = interleaved(cases, num_rounds=num_rounds)
        name = self.scenario.name
        return {
            f"ratio_{name}": ratio(times, "default", "diffusers"),
            f"ratio_{name}_exact": ratio(times, "exact", "diffusers"),
            f"diffusers_{name}_s": statistics.median(times["diffusers"]),
        }


def main() -> None:
    """Measure and print."""
    parser = make_parser(__doc__.splitlines()[0], num_rounds=11)
    parser.add_argument("--only", choices=("shapes", "100m"), help="one of the two models")
    args = parser.parse_args()
    keep_freed_memory()
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for scenario in scenarios(Path(scratch)):
            if args.only in (None, scenario.name):
                sides = Sides(scenario)
                figures |= {**sides.check(), **sides.measure(args.rounds)}
                sides.engine.close()
                del sides
                gc.collect()
    figures["num_threads"] = torch.get_num_threads()
    report(figures, as_json=args.json)


if __name__ == "__main__":
    main()
