from __future__ import annotations

import dataclasses

import psutil
import pytest
import torch

from fastvideo_core.runtime.machine import Device, inspect_machine, judge_card
from fastvideo_testing.tiny import tiny_card, write_tiny_checkpoint

NUM_WEIGHTS = (
    256 * 8  # text encoder
    + (4 * 16 + 16) + (8 * 16 + 16) + (16 + 16) + (16 * 4 + 4)  # transformer
    + (8 * 4 + 4) + (4 * 768 + 768) + (192 * 4 + 4)  # VAE
)  # fmt: skip


@pytest.fixture(scope="module")
def machine():
    return inspect_machine()


@pytest.fixture
def card(tmp_path):
    return write_tiny_checkpoint(tmp_path)


def with_memory(machine, **available_bytes):
    devices = tuple(Device(name, "", 10**9, number) for name, number in available_bytes.items())
    return dataclasses.replace(machine, devices=devices)


def test_what_is_found_agrees_with_its_sources(machine):
    cpu = machine.devices[0]
    assert cpu.name == "cpu"
    assert cpu.total_bytes == psutil.virtual_memory().total
    assert 0 < cpu.available_bytes <= cpu.total_bytes
    assert machine.num_threads == torch.get_num_threads()
    assert 1 <= machine.num_cores <= psutil.cpu_count()
    assert (machine.no_gpu_reason is None) == torch.cuda.is_available()
    assert set(machine.disks) == {"results", "downloads"}


def test_a_card_needs_its_weights_in_each_format(machine, card):
    verdict = judge_card(card, with_memory(machine, cpu=10**6))
    assert verdict.need_bytes == {"float32": 4 * NUM_WEIGHTS, "bfloat16": 2 * NUM_WEIGHTS}
    assert verdict.runs_in == {"cpu": ("float32", "bfloat16")}
    assert verdict.can_run
    assert verdict.reasons == ()


def test_each_device_is_weighed_alone(machine, card):
    verdict = judge_card(card, with_memory(machine, cpu=NUM_WEIGHTS, cuda=3 * NUM_WEIGHTS))
    assert verdict.runs_in == {"cpu": (), "cuda": ("bfloat16",)}
    assert verdict.can_run
    assert len(verdict.reasons) == 1
    assert verdict.reasons[0].startswith("cpu: at least ")


def test_a_recipe_that_assumes_a_format_leaves_no_other(machine, card):
    recipe = card.recipe.model_copy(update={"assumes_precision": "bfloat16"})
    verdict = judge_card(card.model_copy(update={"recipe": recipe}), with_memory(machine, cpu=10**6))
    assert list(verdict.need_bytes) == ["bfloat16"]


def test_what_has_to_be_downloaded_is_said(machine, card):
    source = card.checkpoint.source.model_copy(
        update={"kind": "hub", "location": "org/name", "revision": "0" * 40, "download_bytes": 3 * 10**9}
    )
    hub = card.model_copy(update={"checkpoint": card.checkpoint.model_copy(update={"source": source})})
    verdict = judge_card(hub, machine)
    assert verdict.weights == "not on this machine (org/name, 3 GB to download)"
    assert not verdict.can_run


def test_broken_files_are_the_reason(machine, tmp_path):
    verdict = judge_card(tiny_card(tmp_path / "gone"), machine)
    assert not verdict.can_run
    assert "no folder" in verdict.reasons[0]
