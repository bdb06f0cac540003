"""Muon's update is orthogonal and has AdamW's size; AdamW's half equals torch's."""

from __future__ import annotations

import torch
from torch import nn

from fastvideo_wan.shapes.train.muon import UPDATE_RMS, MuonAdamW, orthogonalise, split_parameters


def test_singular_values_come_near_one() -> None:
    torch.manual_seed(0)
    for shape in ((16, 48), (48, 16), (2, 16, 16)):
        values = torch.linalg.svdvals(orthogonalise(torch.randn(shape), num_iterations=10))
        assert values.min() > 0.6 and values.max() < 1.3


def test_directions_are_kept() -> None:
    torch.manual_seed(0)
    left, _, right = torch.linalg.svd(torch.randn(8, 20), full_matrices=False)
    made = orthogonalise(left @ torch.diag(torch.linspace(0.3, 1, 8)) @ right)
    core = left.T @ made @ right.T
    assert torch.allclose(core, torch.diag(core.diagonal()), atol=1e-4)


def test_a_muon_step_has_the_stated_size() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(32, 32, bias=False)
    before = layer.weight.detach().clone()
    layer.weight.grad = torch.randn(32, 32)
    MuonAdamW(split_parameters(layer), lr=0.1).step()
    size = (layer.weight - before).square().mean().sqrt().item()
    assert 0.7 * UPDATE_RMS * 0.1 < size < 1.2 * UPDATE_RMS * 0.1


def test_the_other_half_is_adamw() -> None:
    ours, theirs = nn.Parameter(torch.ones(5)), nn.Parameter(torch.ones(5))
    mine = MuonAdamW([{"kind": "adamw", "params": [ours]}], lr=0.01)
    reference = torch.optim.AdamW([theirs], lr=0.01, betas=(0.9, 0.99), weight_decay=0.0)
    for step in range(4):
        grad = torch.arange(5.0) - step
        ours.grad, theirs.grad = grad.clone(), grad.clone()
        mine.step()
        reference.step()
    assert torch.allclose(ours, theirs, atol=1e-6)


def test_parameters_are_sorted_by_shape_and_name() -> None:
    module = nn.ModuleDict({"first": nn.Linear(4, 4), "last": nn.Linear(4, 4)})
    muon, adamw = split_parameters(module, adamw_names=("last",))
    assert [p.shape for p in muon["params"]] == [(4, 4)]
    assert len(adamw["params"]) == 3
