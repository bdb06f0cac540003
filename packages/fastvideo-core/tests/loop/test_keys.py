from __future__ import annotations

from types import SimpleNamespace

from fastvideo_core.loop.keys import EXACT, batch_key
from fastvideo_core.loop.work import BatchKey, ShapeSignature

MODEL = SimpleNamespace(instance_id="m", precision="float32", weights_version="w1")
SHAPE = ShapeSignature.of(frames=3)


def make(model=MODEL, **changed):
    fields = {"component": "dit", "loop_kind": "denoise", "shape": SHAPE, "is_exact": False, **changed}
    return batch_key(model, **fields)


def test_a_key_says_what_runs_on_what():
    assert make() == BatchKey("m", "dit", "denoise", SHAPE, "float32", weights_version="w1", variant="fast")
    exact = make(is_exact=True, profile="rollout")
    assert (exact.variant, exact.profile) == (EXACT, "rollout") == ("exact", "rollout")


def test_equal_keys_are_one_object_and_others_are_not():
    assert make() is make(SimpleNamespace(**vars(MODEL)))
    models = [SimpleNamespace(**{**vars(MODEL), name: "other"}) for name in vars(MODEL)]
    others = [
        make(component="vae"), make(loop_kind="decode"), make(shape=ShapeSignature.of(frames=4)), make(is_exact=True),
        make(profile="train"), *map(make, models),
    ]  # fmt: skip
    assert len({make(), *others}) == len(others) + 1
