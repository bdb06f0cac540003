from __future__ import annotations

import json
from dataclasses import dataclass, field

import pytest
import torch

from fastvideo_core.errors import StateError
from fastvideo_core.loop.state import LoopState
from fastvideo_core.runtime.durable import FinishedNode, RunningNode
from fastvideo_core.runtime.durable.checkpoint import TensorLedger, capture, load_checkpoint, write_checkpoint
from fastvideo_core.runtime.durable.disk import Disk
from fastvideo_core.runtime.durable.sealed import seal, unseal

FORMAT = "fastvideo-checkpoint/1"


@dataclass(slots=True)
class State(LoopState):
    """Large and constant, small and changing, and a generator."""

    constant: torch.Tensor
    sample: torch.Tensor
    index: int = 0
    generator: torch.Generator | None = None
    more: dict[str, torch.Tensor] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Outputs:
    """Results."""

    latents: torch.Tensor
    same: torch.Tensor | None = None


@pytest.fixture
def card(instance, made_up, with_loop):
    return with_loop(
        instance.card, "denoise", state_schema=made_up("State", State), outputs_schema=made_up("Outputs", Outputs)
    )


class Job:
    """A job's folder, written to and read from by hand."""

    def __init__(self, folder, card):
        self.folder, self.card, self.ledger = folder, card, TensorLedger()

    def write(self, nodes):
        write_checkpoint(Disk(), self.folder, "job", capture(nodes, self.card, self.ledger), self.ledger)

    def load(self, device=None, job_id="job"):
        nodes, self.ledger = load_checkpoint(Disk(), self.folder, job_id, self.card, device)
        return nodes

    @property
    def packs(self):
        return {path.name: path.stat().st_size for path in sorted(self.folder.glob("tensors-*"))}

    @property
    def manifest(self):
        return unseal(FORMAT, (self.folder / "checkpoint.json").read_bytes())

    def rewrite(self, change):
        content = self.manifest
        change(content)
        (self.folder / "checkpoint.json").write_bytes(seal(FORMAT, content))


@pytest.fixture
def job(tmp_path, card):
    return Job(tmp_path, card)


def running(state, num_committed=0):
    return {"denoise": RunningNode("denoise", state, num_committed)}


def make_state(size=1000):
    return State(torch.arange(float(size)), torch.zeros(4), generator=torch.Generator().manual_seed(3))


def step(state):
    """Do as a step does: a new sample, the rest moved on."""
    state.sample = state.sample + torch.randn(4, generator=state.generator)
    state.index += 1


def test_states_and_results_come_back(job):
    state = make_state()
    step(state)
    job.write(
        running(state, 1) | {"text": FinishedNode("denoise", {"latents": state.constant, "same": state.constant})}
    )
    nodes = job.load()
    back = nodes["denoise"]
    assert (back.loop_id, back.num_committed, back.state.index) == ("denoise", 1, 1)
    assert torch.equal(back.state.constant, state.constant)
    assert torch.equal(back.state.sample, state.sample)
    assert torch.equal(torch.randn(9, generator=back.state.generator), torch.randn(9, generator=state.generator))
    # One tensor in three places is stored once, and is one tensor again.
    assert nodes["text"].outputs["latents"] is nodes["text"].outputs["same"] is back.state.constant


def test_what_has_not_changed_is_not_written_again(job):
    state = make_state(size=100_000)
    job.write(running(state))
    first = job.packs
    assert list(first) == ["tensors-0.safetensors"]
    assert first["tensors-0.safetensors"] > 400_000
    for _ in range(5):
        step(state)
        job.write(running(state))
    assert list(job.packs) == ["tensors-0.safetensors", "tensors-5.safetensors"]
    assert job.packs["tensors-5.safetensors"] < 6000  # a sample, and the generator's 5 KB
    assert torch.equal(job.load()["denoise"].state.sample, state.sample)


def test_nothing_but_the_manifest_is_written_if_no_tensor_is_new(job):
    state = State(torch.ones(3), torch.ones(2))
    job.write(running(state))
    state.index = 8
    job.write(running(state))
    assert list(job.packs) == ["tensors-0.safetensors"]
    assert job.load()["denoise"].state.index == 8


def test_a_tensor_changed_in_place_is_written_again(job):
    state = make_state()
    job.write(running(state))
    state.constant[3] = -1.0
    job.write(running(state))
    assert torch.equal(job.load()["denoise"].state.constant, state.constant)


def test_a_tensor_that_takes_the_place_of_another_in_memory_is_written(job):
    for value in range(8):
        state = State(torch.full((50,), float(value)), torch.zeros(1))
        job.write(running(state))
        assert torch.equal(job.load()["denoise"].state.constant, state.constant)
        del state


def test_a_tensor_changed_while_it_is_written_leaves_the_checkpoint_before(job):
    state = make_state()
    job.write(running(state))
    step(state)
    snapshot = capture(running(state), job.card, job.ledger)
    state.sample += 1.0
    with pytest.raises(StateError, match="1 tensors of a state were changed in place"):
        write_checkpoint(Disk(), job.folder, "job", snapshot, job.ledger)
    assert list(job.packs) == ["tensors-0.safetensors"]
    assert job.load()["denoise"].state.index == 0


def test_later_steps_do_not_change_a_snapshot(job):
    state = make_state()
    snapshot = capture(running(state), job.card, job.ledger)
    step(state)
    state.more["x"] = torch.ones(1)
    write_checkpoint(Disk(), job.folder, "job", snapshot, job.ledger)
    back = job.load()["denoise"].state
    assert (back.index, back.more) == (0, {})
    assert torch.equal(back.sample, torch.zeros(4))


def test_after_loading_only_what_is_new_is_written(job):
    job.write(running(make_state(size=100_000)))
    state = job.load()["denoise"].state
    step(state)
    job.write(running(state))
    assert list(job.packs) == ["tensors-0.safetensors", "tensors-1.safetensors"]
    assert job.packs["tensors-1.safetensors"] < 6000


def test_the_disk_holds_little_more_than_what_is_of_use(job):
    """Each step drops most of what the step before wrote, but not all of it."""
    state = State(torch.zeros(1), torch.zeros(1))
    for index in range(40):
        state.more[f"kept-{index}"] = torch.full((50,), float(index))
        state.sample = torch.full((5000,), float(index))
        job.write(running(state))
    live = 40 * 50 * 4 + 5000 * 4
    assert sum(job.packs.values()) < 2 * live + 5000 * 4 + 4096 * len(job.packs)
    back = job.load()["denoise"].state
    assert [int(back.more[f"kept-{index}"][7]) for index in range(40)] == list(range(40))


def test_files_that_no_checkpoint_names_are_removed(job):
    (job.folder / "tensors-4.safetensors").write_bytes(b"left by a crash")
    assert job.load() == {}
    assert job.packs == {}
    job.write(running(make_state()))
    (job.folder / "tensors-9.safetensors").write_bytes(b"left by a crash")
    state = job.load()["denoise"].state
    assert list(job.packs) == ["tensors-5.safetensors"]
    step(state)
    job.write(running(state))
    assert list(job.packs) == ["tensors-10.safetensors", "tensors-5.safetensors"]


def test_tensors_go_back_to_a_device(job, monkeypatch):
    from fastvideo_core.loop import state as codec

    state = make_state()
    monkeypatch.setattr(codec, "_is_on_device", lambda tensor: tensor is state.sample)
    job.write(running(state))
    back = job.load(torch.device("meta"))["denoise"].state
    assert (back.sample.is_meta, back.constant.is_meta) == (True, False)


@pytest.mark.gpu
def test_tensors_of_an_accelerator_come_back_to_it(job):
    state = make_state()
    state.sample = torch.randn(4, 5, device="cuda").t()
    job.write(running(state))
    back = job.load(torch.device("cuda"))["denoise"].state
    assert (back.sample.device.type, back.constant.device.type) == ("cuda", "cpu")
    assert back.sample.stride() == state.sample.stride()
    assert torch.equal(back.sample, state.sample)


def test_a_node_that_has_no_results_or_cannot_store_them(job, card, with_loop):
    job.card = with_loop(card, "text", outputs_schema=None)
    job.write({"image": FinishedNode("image", None), "text": FinishedNode("text", {"embeds": object()})})
    assert job.load() == {"image": FinishedNode("image", None)}


def test_a_state_that_cannot_be_stored(job):
    with pytest.raises(StateError, match=r"state.sample holds a str"):
        capture(running(State(torch.zeros(1), "text")), job.card, job.ledger)
    with pytest.raises(StateError, match="the results of loop denoise do not fit"):
        capture({"denoise": FinishedNode("denoise", {"frames": 3})}, job.card, job.ledger)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda c: c.update(job_id="other"), "is of another job, 'other'"),
        (lambda c: c["nodes"]["denoise"].update(loop="dream"), "runs loop 'dream', which card tiny does not have"),
        (lambda c: c["nodes"]["denoise"].update(schema="m:State/2"), "holds a 'm:State/2'; this version reads '"),
        (lambda c: c["nodes"]["denoise"].pop("num_committed"), "does not fit: KeyError: 'num_committed'"),
        (lambda c: c["nodes"]["denoise"].update(tree=None), "state holds a NoneType; its schema allows State"),
        (lambda c: c["tensors"].pop("t1"), "the saved state does not fit '.*State/1': KeyError: 't1'"),
        (lambda c: c["tensors"]["t1"].update(sha256="0"), "the digest of tensor t1 differs"),
        (lambda c: c["tensors"]["t1"].update(pack="../../x"), "is no name of a file"),
        (lambda c: c.pop("tensors"), "KeyError: 'tensors'"),
    ],
)
def test_a_manifest_that_does_not_fit_is_refused(change, text, job):
    job.write(running(make_state()))
    job.rewrite(change)
    with pytest.raises(StateError, match=text) as caught:
        job.load()
    assert str(job.folder / "checkpoint.json") in str(caught.value)


@pytest.mark.parametrize("name", ["checkpoint.json", "tensors-0.safetensors"])
def test_a_file_that_is_cut_gone_or_damaged_is_refused(name, job):
    job.write(running(make_state()))
    path = job.folder / name
    data = path.read_bytes()
    for size in (0, 7, len(data) // 2, len(data) - 2):
        path.write_bytes(data[:size])
        with pytest.raises(StateError, match=name):
            job.load()
    path.write_bytes(data[:-9] + b"x" + data[-8:])
    with pytest.raises(StateError, match=name):
        job.load()
    if name != "checkpoint.json":
        path.unlink()
        with pytest.raises(StateError, match=name):
            job.load()


def test_a_manifest_is_small(job):
    job.write(running(make_state(size=100_000)))
    assert len(json.dumps(job.manifest)) < 1500
