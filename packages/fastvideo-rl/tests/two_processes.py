"""What each of two processes of `test_rl_fsdp.py` does: a run at once, and the same run in two parts."""

from __future__ import annotations

import sys
from pathlib import Path


def main(config_path: str, target: str) -> None:
    import torch
    import torch.distributed as dist
    from safetensors.torch import save_file

    from fastvideo_rl.train.assemble import make_plan
    from fastvideo_rl.train.config import read_config
    from fastvideo_rl.train.processes import Processes
    from fastvideo_rl.train.trainer import Trainer

    torch.set_num_threads(1)
    config = read_config(Path(config_path))
    processes = Processes.join("cpu")

    def train(output, num_steps, *, is_resumed=False):
        chosen = config.model_copy(update={"output": f"{config.output}/{output}", "num_steps": num_steps})
        with Trainer(make_plan(chosen, world_size=processes.size), processes) as trainer:
            if is_resumed:
                trainer.resume()
            trainer.run()
            student = trainer.roles.roles["student"].modules["transformer"]
            assert {type(one).__name__ for one in student.parameters()} == {"DTensor"}
            weights = trainer.roles.weights("student")["transformer"]
            return {name: one.contiguous() for name, one in weights.items()}

    whole = train("whole", 2)
    train("parts", 1)
    parts = train("parts", 2, is_resumed=True)
    if processes.is_first:
        save_file(whole, f"{target}-whole.safetensors")
        save_file(parts, f"{target}-parts.safetensors")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
