from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fastvideo_core.errors import ParameterError, PluginError
from fastvideo_core.extend import AttentionBackendSpec
from fastvideo_core.extend.extensions import NO_EXTENSIONS
from fastvideo_core.runtime.attention import AttentionBackend, attention_takers, choose_attention, takes_attention
from fastvideo_core.runtime.engine import Engine
from fastvideo_testing.tiny import model, tiny_card

FAST = AttentionBackendSpec("fast", "fastvideo_made_up:fast", devices=("cpu",), precisions=("float32",))


@pytest.fixture
def chosen(made_up):
    """Return extensions in which a backend is chosen."""
    made_up("fast", lambda query, key, value: query)

    def choose(spec=FAST, name="fast"):
        return replace(NO_EXTENSIONS, attention_backends={"fast": spec}, attention=name)

    return choose


@pytest.fixture
def taking(tiny_folder, made_up):
    """Return the tiny card with a transformer that takes a backend, and what it was given."""
    given = []

    @takes_attention
    def load(source):
        given.append(source.attention)
        return model.load_transformer(source)

    card = tiny_card(tiny_folder)
    spec = card.components["transformer"].model_copy(update={"factory": made_up("load", load)})
    return card.model_copy(update={"components": {**card.components, "transformer": spec}}), given


def test_torchs_own_needs_nothing(tiny_folder):
    card = tiny_card(tiny_folder)
    assert choose_attention(None, card) is None
    assert choose_attention(NO_EXTENSIONS, card) is None
    assert attention_takers(card) == ()


def test_a_factory_that_takes_it_is_given_it(taking, chosen):
    card, given = taking
    assert attention_takers(card) == ("transformer",)
    with Engine.open(card, extensions=chosen()):
        pass
    (function,) = given
    assert function(1, 2, 3) == 1
    with Engine.open(card):
        pass
    assert given[1] is None


@pytest.mark.parametrize(
    ("spec", "name", "error", "why"),
    [
        (FAST, "slow", ParameterError, "no plugin that is on brings such a backend; allowed: sdpa, fast"),
        (replace(FAST, available="fastvideo_made_up:why"), "fast", ParameterError, "cannot run here: no kernels"),
        (replace(FAST, implementation="os:nothing"), "fast", PluginError, "implementation of 'fast', 'os:nothing'"),
    ],
)
def test_what_cannot_be_chosen_is_refused(spec, name, error, why, taking, chosen, made_up):
    made_up("why", lambda: "no kernels")
    with pytest.raises(error, match=why):
        Engine.open(taking[0], extensions=chosen(spec, name))


def test_a_card_that_takes_none_is_refused(tiny_folder, chosen):
    with pytest.raises(ParameterError, match="no component of card tiny takes another backend"):
        Engine.open(tiny_card(tiny_folder), extensions=chosen())


@pytest.mark.parametrize(
    ("device", "precision", "field"), [("cuda", "float32", "device"), ("cpu", "bfloat16", "precision")]
)
def test_where_it_does_not_run_is_refused(device, precision, field):
    backend = AttentionBackend(FAST, lambda *_: torch.zeros(1))
    backend.check(torch.device("cpu"), "float32")
    with pytest.raises(ParameterError, match=f"{field}=.*does not run in it; allowed"):
        backend.check(torch.device(device), precision)
