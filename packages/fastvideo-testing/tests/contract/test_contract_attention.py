"""Each promise of an attention backend, kept by torch's own, and broken on purpose."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from fastvideo_core.extend import AttentionBackendSpec, ProgramTemplate, RewardSpec
from fastvideo_testing.contract import AttentionContract, ContractError
from fastvideo_testing.contract.attention import check_attention, check_references

HERE = "fastvideo_made_up_attention"
SPEC = AttentionBackendSpec("made-up", f"{HERE}:attend", devices=("cpu",))


def sdpa(query, key, value, scale=None):
    parts = (part.transpose(1, 2) for part in (query, key, value))
    return F.scaled_dot_product_attention(*parts, scale=scale).transpose(1, 2)


@pytest.fixture
def backend(monkeypatch):
    """Put a function where the description says that it is."""
    import sys
    import types

    module = types.ModuleType(HERE)
    monkeypatch.setitem(sys.modules, HERE, module)

    def put(function):
        module.attend = function
        return SPEC

    return put


class TestTorchsOwn(AttentionContract):
    @pytest.fixture
    def spec(self, backend):
        return backend(sdpa)


def spoil(query, key, value):
    mixed = sdpa(query, key, value)
    key.zero_()
    return mixed


def tremble(query, key, value):
    mixed = sdpa(query, key, value)
    return mixed + torch.rand(()).to(mixed.dtype) * 1e-6 if mixed.dtype is torch.float32 else mixed


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda q, k, v: sdpa(q, k, v, scale=1.0), "is off by"),
        (lambda q, k, v: F.scaled_dot_product_attention(q, q, q), "is off by"),
        (lambda q, k, v: sdpa(q, k, v).flatten(2), r"gives \(1, 16, 128\) in torch.float32; allowed: the query's"),
        (lambda q, k, v: sdpa(q, k, v).double(), "in torch.float64; allowed: the query's"),
        (lambda q, k, v: sdpa(q, k, v) * float("nan"), "is off by nan"),
        (spoil, "changes what it reads"),
        (tremble, "gives other bits when it is asked again"),
    ],
)
def test_a_broken_backend_is_caught(function, why, backend):
    with pytest.raises(ContractError, match=why):
        check_attention(backend(function))


def test_one_that_runs_nowhere_here_is_caught(backend, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ContractError, match="says that it can run here, and runs on cuda alone"):
        check_attention(replace(backend(sdpa), devices=("cuda",)))


@pytest.mark.parametrize(
    "spec",
    [
        RewardSpec("judge", "os:getcwd", options="os:no_such_options"),
        ProgramTemplate("upscale", "os:getcwd", parameters="no_such_module:Parameters"),
        AttentionBackendSpec("fast", "os:no_such_function"),
    ],
)
def test_a_description_that_names_nothing_is_caught(spec):
    check_references(RewardSpec("judge", "os:getcwd"))
    with pytest.raises(ContractError, match="is not there: "):
        check_references(spec)
