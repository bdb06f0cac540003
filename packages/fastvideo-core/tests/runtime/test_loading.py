from __future__ import annotations

import gc
import threading
import weakref
from pathlib import Path

import pytest
import torch

from fastvideo_core.card import CheckpointSource
from fastvideo_core.errors import (
    CardError,
    CheckpointError,
    InputError,
    LoopMismatchError,
    ParameterError,
    PrecisionMismatchError,
    ResourceError,
    UnknownTaskError,
)
from fastvideo_core.program import ModelLoopNode
from fastvideo_core.runtime.engine import Engine
from fastvideo_core.runtime.instance import needed_components
from fastvideo_core.runtime.loading import load_instance, resolve_device, resolve_precision
from fastvideo_core.runtime.prepare import prepare_request
from fastvideo_testing.tiny import tiny_card
from fastvideo_testing.tiny.programs import TEXT_TO_VIDEO

NOWHERE = tiny_card(Path("/there/are/no/weights/here"))
CPU = torch.device("cpu")


def with_recipe(card, **fields):
    return card.model_copy(update={"recipe": card.recipe.model_copy(update=fields)})


def with_component(card, name, **fields):
    component = card.components[name].model_copy(update=fields)
    return card.model_copy(update={"components": {**card.components, name: component}})


def test_a_precision_that_the_weights_do_not_assume_is_found_before_any_weight_is_read():
    card = with_recipe(NOWHERE, assumes_precision="bfloat16")
    for precision in ("float32", None):
        with pytest.raises(PrecisionMismatchError, match="precision='float32': .*allowed: bfloat16"):
            load_instance(card, precision=precision)
    with pytest.raises(PrecisionMismatchError, match="precision='fp4'.*allowed: float32, bfloat16"):
        Engine.open(NOWHERE, precision="fp4")


def test_a_loop_that_the_weights_do_not_assume_is_found_before_any_weight_is_read(made_up, with_loop, with_task):
    rest = [node for node in TEXT_TO_VIDEO.nodes if node.node_id != "denoise"]
    nodes = (ModelLoopNode(node_id="denoise", loop="fifty_steps"), *rest)
    program = made_up("PROGRAM", TEXT_TO_VIDEO.model_copy(update={"nodes": nodes}))
    card = with_task(with_loop(NOWHERE, "fifty_steps"), program=program)
    for tasks in (None, ("text_to_video",)):
        with pytest.raises(LoopMismatchError, match="loop='fifty_steps': .*allowed: denoise"):
            load_instance(card, tasks=tasks)
    with pytest.raises(LoopMismatchError, match="loop='fifty_steps'"):
        Engine.open(card)
    with pytest.raises(CheckpointError, match="no/weights"):
        load_instance(card, tasks=("image_to_video",))


def test_defaults_other_than_what_the_weights_were_trained_for_are_found_before_any_weight_is_read(with_loop):
    with pytest.raises(LoopMismatchError, match="num_inference_steps=4: .*nearest: 3"):
        Engine.open(with_loop(NOWHERE, "denoise", pinned={"num_inference_steps": 3}))


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"tasks": ["text2video"]}, UnknownTaskError, "nearest: text_to_video"),
        ({"device": "abacus"}, ParameterError, "device='abacus': not a device; allowed: auto, cpu, cuda"),
        ({"device": "meta"}, ParameterError, "device='meta'"),
        ({}, CheckpointError, "/there/are/no/weights/here"),
    ],
)
def test_what_is_wrong_is_told_by_kind(options, error, text):
    with pytest.raises(error, match=text):
        load_instance(NOWHERE, **options)


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without an accelerator")
def test_a_device_that_is_not_there():
    assert resolve_device("auto") == CPU == resolve_device("cpu")
    for name in ("cuda", "cuda:3"):
        with pytest.raises(ResourceError, match=f"device '{name}' is not there: .*use cpu"):
            resolve_device(name)


def test_the_precision_follows_the_device():
    assert resolve_precision(NOWHERE, None, CPU) == "float32"
    assert resolve_precision(NOWHERE, "bfloat16", CPU) == "bfloat16"
    card = NOWHERE.model_copy(update={"precision": NOWHERE.precision.model_copy(update={"default": "bfloat16"})})
    assert resolve_precision(card, None, torch.device("cuda")) == "bfloat16"


def test_a_loaded_model_has_all_that_its_loops_need(tiny_folder):
    instance = load_instance(tiny_card(tiny_folder))
    assert set(instance.loops) == set(instance.steps) == {"text", "image", "denoise", "decode"}
    assert (instance.precision, instance.device) == ("float32", CPU)
    assert instance.has_component("vae")
    assert instance.config("vae").latent_channels == 4
    modules = [instance.component(name) for name in ("text_encoder", "transformer", "vae")]
    parameters = [p for module in modules for p in module.parameters()]
    assert not any(p.requires_grad for p in parameters)
    assert not any(module.training for module in modules)
    assert instance.num_bytes == sum(p.numel() * p.element_size() for p in parameters)
    assert instance.weights_version.count("+") == 2
    assert instance.loop("decode") is instance.loops["decode"]


def test_a_component_may_keep_a_precision_of_its_own(tiny_folder):
    policy = NOWHERE.components["vae"].precision_policy.model_copy(update={"compute": "float32"})
    card = with_component(tiny_card(tiny_folder), "vae", precision_policy=policy)
    instance = load_instance(card, precision="bfloat16")
    dtypes = {name: next(instance.component(name).parameters()).dtype for name in ("transformer", "vae")}
    assert dtypes == {"transformer": torch.bfloat16, "vae": torch.float32}


def test_only_what_the_tasks_need_is_loaded(tiny_folder):
    card = with_component(tiny_card(tiny_folder), "vae", required_for=("image_to_video",))
    assert [spec.component_id for spec in needed_components(card, ["text_to_video"])] == [
        "tokenizer", "text_encoder", "transformer",
    ]  # fmt: skip
    instance = load_instance(card, tasks=["text_to_video"])
    assert set(instance.loops) == {"text"}
    with pytest.raises(CheckpointError, match="loop decode of tiny needs components that are not loaded: vae; open"):
        instance.loop("decode")
    with pytest.raises(
        CheckpointError, match="component 'vae' of tiny is not loaded; loaded: tokenizer, text_encoder,"
    ):
        instance.component("vae")


def test_a_request_for_what_is_not_loaded_is_refused_before_any_step(tiny_folder):
    card = with_component(tiny_card(tiny_folder), "vae", required_for=("image_to_video",))
    steps = []
    with Engine.open(card, tasks=["text_to_video"], tap=lambda *args: steps.append(args)) as engine:
        with pytest.raises(CheckpointError, match="needs components that are not loaded: vae"):
            engine.submit(engine.make_request("x"))
        assert engine.make_request("x").task == "text_to_video"
    assert steps == []


def broken(error):
    def factory(source):
        raise error

    return factory


@pytest.mark.parametrize(
    ("factory", "error", "text"),
    [
        (broken(KeyError("dim")), CheckpointError, "vae of tiny cannot be built: KeyError: 'dim'"),
        (broken(CheckpointError("a key is missing")), CheckpointError, "^a key is missing$"),
        (broken(MemoryError("full")), ResourceError, "no memory for vae of tiny: MemoryError: full"),
        (broken(RuntimeError("can't allocate memory: 9 GB")), ResourceError, "no memory for vae of tiny"),
        (lambda source: "vae", CardError, "fastvideo_made_up:factory' returned a str; allowed: a LoadedComponent"),
    ],
)
def test_a_factory_that_fails_is_named_and_leaves_nothing_running(factory, error, text, tiny_folder, made_up):
    before = set(threading.enumerate())
    card = with_component(tiny_card(tiny_folder), "vae", factory=made_up("factory", factory))
    with pytest.raises(error, match=text):
        Engine.open(card)
    assert set(threading.enumerate()) <= before


def test_a_loop_that_cannot_be_made_is_named(tiny_folder, made_up, with_loop):
    def make(spec, model):
        return spec.options["missing"]

    with pytest.raises(CardError, match="loop decode of tiny: KeyError: 'missing'"):
        load_instance(with_loop(tiny_card(tiny_folder), "decode", loop=made_up("make", make)))


def test_a_request_of_another_card_is_refused(tiny_folder):
    with Engine.open(tiny_card(tiny_folder)) as engine:
        prepared = prepare_request(NOWHERE, engine.make_request("x"))
        with pytest.raises(InputError, match="card='tiny': the request was prepared for another card"):
            engine.submit_prepared(prepared)
        same = tiny_card(CheckpointSource(kind="folder", location=str(tiny_folder)))
        assert engine.submit_prepared(prepare_request(same, engine.make_request("x"))).result(60).video


def test_loops_see_no_weights_and_keep_none_alive(tiny_folder):
    instance = load_instance(tiny_card(tiny_folder))
    loops, alive = list(instance.loops.values()), weakref.ref(instance.component("transformer"))
    view = instance.view
    assert all(loop._model is view for loop in loops)
    assert (view.card, view.instance_id, view.precision) == (instance.card, "tiny", "float32")
    assert view.weights_version == instance.weights_version
    assert view.config("vae") is instance.config("vae")
    assert view.component("tokenizer") is instance.component("tokenizer")
    with pytest.raises(CardError, match="a loop asks for 'vae' of tiny; weights are for step bodies"):
        view.component("vae")
    for ask in (view.component, view.config):
        with pytest.raises(CheckpointError, match="component 'vea' of tiny is not loaded; loaded: tokenizer, text_"):
            ask("vea")
    gc.disable()
    try:
        del instance
        assert alive() is None
    finally:
        gc.enable()
    assert loops
