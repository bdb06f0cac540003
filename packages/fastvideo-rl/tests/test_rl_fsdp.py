"""Two processes that share the weights (FSDP2 over gloo)."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

SCRIPT = Path(__file__).with_name("two_processes.py")


def write_config(folder, tmp_path):
    (tmp_path / "prompts.txt").write_text("a red circle\na blue square moving left\n")
    size = {"num_frames": 5, "height": 32, "width": 32, "num_inference_steps": 2, "guidance_scale": 1.0}
    config = {
        "card": str(folder),
        "output": "runs",
        "method": {"name": "dpo", "options": {"beta": 10.0, "min_gap": 0.0}},
        "prompts": "prompts.txt",
        "rollout": {"group_size": 2, "num_groups": 2, "parameters": size},
        "rewards": [{"name": "shapes-centre"}],
        "optimizer": {"learning_rate": 1e-3, "micro_batch": 1, "max_grad_norm": 10.0},
        "weights": {"ema_decay": 0.5},
        "result": {"model_id": "x"},
        "num_steps": 2,
        "save_every": 1,
    }
    path = tmp_path / "run.yaml"
    path.write_text(json.dumps(config))
    return path


def test_two_processes_train_one_model_and_go_on_from_their_checkpoint(folder, tmp_path):
    config, target = write_config(folder, tmp_path), tmp_path / "weights"
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    environment = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    environment |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    started = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), str(config), str(target)],
            env={**environment, "RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    errors = [process.communicate(timeout=110)[1] for process in started]
    assert all(process.returncode == 0 for process in started), errors
    whole, parts = (load_file(f"{target}-{name}.safetensors") for name in ("whole", "parts"))
    assert set(whole) == set(parts)
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    before = load_file(folder / "transformer" / "diffusion_pytorch_model.safetensors")
    moved = [name for name in whole if not torch.equal(whole[name], before[name])]
    assert len(moved) > len(whole) / 2
