"""A tiny model that is stepped by hand, and a disk on which the world ends where a test wants it to."""

from __future__ import annotations

import os
import shutil

import pytest

from fastvideo_core.loop.base import LoopContext, LoopRequest
from fastvideo_core.loop.driver import LoopRun
from fastvideo_core.loop.work import Done
from fastvideo_core.program.base import InputEdge, ModelLoopNode
from fastvideo_core.request.build import build_request
from fastvideo_core.request.cancel import CancelScope, CancelState
from fastvideo_core.runtime.durable import FinishedNode, RunningNode, SavedJob
from fastvideo_core.runtime.durable import store as store_module
from fastvideo_core.runtime.durable.disk import Disk
from fastvideo_core.runtime.loading import load_instance
from fastvideo_core.runtime.prepare import prepare_request
from fastvideo_testing.tiny import tiny_card


class ByHand:
    """A request that is stepped by hand; its nodes run one after the other.

    Args:
        instance: The model.
        prepared: The request.
        saved: Where it goes on.
    """

    def __init__(self, instance, prepared, saved=None):
        self.instance, self.prepared = instance, prepared
        self.nodes = dict(saved or {})

    @classmethod
    def resumed(cls, instance, saved):
        assert isinstance(saved, SavedJob), saved
        return cls(instance, saved.prepared, saved.nodes)

    def steps(self):
        """Make all steps; yields after each."""
        for node in self.prepared.nodes:
            if isinstance(node, ModelLoopNode) and not isinstance(self.nodes.get(node.node_id), FinishedNode):
                yield from self._run(node)

    def result(self):
        """Make all steps and return the results of every node."""
        for _ in self.steps():
            pass
        return {name: node.outputs for name, node in self.nodes.items()}

    def _run(self, node):
        loop = self.instance.loop(node.loop)
        scope = CancelScope("request", self.prepared.request.request_id).child("loop", node.node_id)
        saved = self.nodes.get(node.node_id)
        state = saved.state if saved is not None else loop.init(self._request(node, scope), LoopContext(_generator))
        run = LoopRun(loop, state, scope=scope, cancel=CancelState(), node_id=node.node_id)
        run.num_committed = 0 if saved is None else saved.num_committed
        while not isinstance(plan := run.plan(), Done):
            (result,) = self.instance.steps[node.loop](self.instance, [plan], _Silent())
            run.commit(plan, result)
            self.nodes[node.node_id] = RunningNode(node.loop, run.state, run.num_committed)
            yield
        self.nodes[node.node_id] = FinishedNode(node.loop, run.result().outputs)

    def _request(self, node, scope):
        inputs = {
            port: self.prepared.inputs.get(edge.name)
            if isinstance(edge, InputEdge)
            else self.nodes[edge.node].outputs[edge.output]
            for port, edge in node.inputs.items()
        }
        return LoopRequest(
            self.prepared.request.request_id, node.node_id, node.loop, self.prepared.parameters_of(node.node_id),
            inputs, scope, is_exact=self.prepared.request.exact,
        )  # fmt: skip


class _Silent:
    is_tapped = False

    def tap(self, name, value):
        pass


def _generator(seed):
    import torch

    return torch.Generator("cpu").manual_seed(seed)


class Killed(BaseException):
    """The end of the world."""


class DyingDisk(Disk):
    """A disk that is cut off in the middle of its n-th call; what was not brought to the disk by then is torn.

    Args:
        fatal_call: The call, from 0; None never dies.
        fails_with: Raised by that call and all after it in place of the end: a disk that refuses.
    """

    def __init__(self, fatal_call=None, fails_with=None):
        self.fatal_call, self.fails_with = fatal_call, fails_with
        self.calls = []
        self._unsynced = None
        self._is_dead = False

    def _do(self, call, *args):
        if self._is_dead:
            raise Killed
        self.calls.append(call.__name__)
        if self.fails_with is not None and self.fatal_call is not None and len(self.calls) > self.fatal_call:
            if call in (os.unlink, shutil.rmtree):  # removing always works
                return call(*args)
            raise OSError(self.fails_with, os.strerror(self.fails_with))
        if self.fails_with is None and len(self.calls) - 1 == self.fatal_call:
            self._die(call, *args)
        result = call(*args)
        if call is os.open:
            self._unsynced = args[0]
        elif call is os.fsync:
            self._unsynced = None
        return result

    def _die(self, call, *args):
        self._is_dead = True
        if call is shutil.rmtree:
            victims = sorted(path for path in args[0].rglob("*") if path.is_file())
            for path in victims[: len(victims) // 2 + 1]:
                path.unlink()
        if call is os.write:
            os.write(args[0], bytes(args[1])[: len(args[1]) // 2])
        if self._unsynced is not None and self._unsynced.exists():
            size = self._unsynced.stat().st_size
            os.truncate(self._unsynced, size // 2)
        raise Killed


class InlineWriter:
    """Writes at once."""

    def submit(self, task):
        task()

    def flush(self):
        pass

    def close(self):
        pass


@pytest.fixture(scope="session")
def instance(tiny_folder):
    return load_instance(tiny_card(tiny_folder), device="cpu", precision="float32")


@pytest.fixture
def prepare(instance):
    """Prepare a request."""

    def make(request_id="a", prompt="a red circle", **fields):
        parameters = {"seed": 7, "height": 16, "width": 24, **fields.pop("parameters", {})}
        request = build_request(instance.card, prompt, request_id=request_id, parameters=parameters, **fields)
        return prepare_request(instance.card, request)

    return make


@pytest.fixture
def write_inline(monkeypatch):
    """Let checkpoints be on the disk when `checkpoint` returns."""
    monkeypatch.setattr(store_module, "BackgroundWriter", InlineWriter)


@pytest.fixture
def by_hand():
    return ByHand


@pytest.fixture
def dying_disk():
    return DyingDisk


@pytest.fixture
def killed():
    return Killed
