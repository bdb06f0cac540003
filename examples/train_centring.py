"""A few steps of Flow-GRPO on wan-shapes with a reward for objects in the middle, from Python.

    python examples/train_centring.py

Prints a line a step, and the folder of the card that comes out. A real run has larger groups and hundreds of steps.
"""

from __future__ import annotations

from pathlib import Path

from fastvideo_rl.evaluation import ship_run
from fastvideo_rl.train.assemble import make_plan
from fastvideo_rl.train.config import TrainConfig
from fastvideo_rl.train.trainer import Trainer

CONFIG = {
    "card": "wan-shapes",
    "output": "runs/centred",
    "method": {"name": "flow_grpo", "options": {"kind": "sde", "noise_level": 0.5}},
    "prompts": "prompts.txt",
    "rollout": {
        "group_size": 4,
        "num_groups": 1,
        "parameters": {
            "num_frames": 13, "height": 48, "width": 48, "num_inference_steps": 3, "guidance_scale": 1.0,
        },
    },
    "rewards": [{"name": "shapes-centre"}],
    "result": {"model_id": "centred"},
    "num_steps": 2,
}  # fmt: skip


def main() -> None:
    """Train two steps and write the card."""
    Path("prompts.txt").write_text("a red circle moving right\na green triangle at rest\n")
    with Trainer(make_plan(TrainConfig.model_validate(CONFIG))) as trainer:
        trainer.run(lambda report: print(f"step {report.step}: reward {report.numbers['reward']:.3f}"))
        print(trainer.gate)
        print(ship_run(trainer))


if __name__ == "__main__":
    main()
