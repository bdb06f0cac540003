"""The plugin of the training methods. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence

from fastvideo_core.extend import MethodSpec, hookimpl

HOOK_VERSIONS = ">=1.0,<2"

_HERE = "fastvideo_rl.methods"


@hookimpl
def training_methods() -> Sequence[MethodSpec]:
    """Return the methods."""
    return [
        MethodSpec(
            name="sft",
            implementation=f"{_HERE}.sft:FlowMatching",
            summary="supervised flow matching on latents with prompts",
            options=f"{_HERE}.sft:FlowMatchingOptions",
            required_level="C1",
        ),
        MethodSpec(
            name="diffusion_nft",
            implementation=f"{_HERE}.nft:DiffusionNFT",
            summary="likelihood-free reinforcement learning in prediction space",
            options=f"{_HERE}.nft:NFTOptions",
            roles=("student", "old", "reference"),
        ),
        MethodSpec(
            name="flow_grpo",
            implementation=f"{_HERE}.grpo:FlowGRPO",
            summary="policy gradients on the densities of stochastic steps",
            options=f"{_HERE}.grpo:GRPOOptions",
            roles=("student", "reference"),
        ),
        MethodSpec(
            name="mix_grpo",
            implementation=f"{_HERE}.mix_grpo:MixGRPO",
            summary="policy gradients on a window of steps; the others follow the flow",
            options=f"{_HERE}.mix_grpo:MixGRPOOptions",
            roles=("student", "reference"),
        ),
        MethodSpec(
            name="dpo",
            implementation=f"{_HERE}.dpo:DPO",
            summary="preferences between two samples of a prompt",
            options=f"{_HERE}.dpo:DPOOptions",
            roles=("student", "reference"),
        ),
        MethodSpec(
            name="dmd2",
            implementation=f"{_HERE}.dmd2:DMD2",
            summary="distillation into few steps by matching distributions",
            options=f"{_HERE}.dmd2:DMD2Options",
            roles=("student", "critic", "teacher"),
        ),
        MethodSpec(
            name="self_forcing",
            implementation=f"{_HERE}.self_forcing:SelfForcing",
            summary="distillation over whole rollouts of streams by matching distributions",
            options=f"{_HERE}.dmd2:DMD2Options",
            roles=("student", "critic", "teacher"),
        ),
    ]
