from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastvideo_core.errors import CardError, CheckpointError
from fastvideo_core.runtime.weights.keys import names_matching, rename_all, rename_by_rules


def test_rules_apply_in_turn():
    rename = rename_by_rules([(r"^model\.", ""), (r"\.q$", ".to_q"), (r"blocks\.(\d+)", r"layer\1")])
    assert rename("model.blocks.3.q") == "layer3.to_q"
    assert rename("other") == "other"
    assert rename_by_rules([])("name") == "name"


@pytest.mark.parametrize("rule", [("(", ""), ("a", r"\1"), ("a", r"\g<none>")])
def test_rules_that_are_not_expressions(rule):
    with pytest.raises(CardError, match="not a valid rule") as caught:
        rename_by_rules([rule])
    assert caught.value.field == "key_map"


def test_a_rename_is_kept_by_the_names_that_the_module_sees():
    assert rename_all(["a.x", "a.y"], rename_by_rules([("^a", "b")])) == {"b.x": "a.x", "b.y": "a.y"}


def test_two_names_that_become_one():
    with pytest.raises(CheckpointError, match="sends both 'a1' and 'a2' to 'a'"):
        rename_all(["a1", "b", "a2"], rename_by_rules([(r"\d", "")]))


@given(st.sets(st.text(max_size=5)), st.dictionaries(st.text(max_size=5), st.text(max_size=5)))
def test_nothing_gets_lost(names, table):
    """Either every name has one of its own afterwards, or it is an error."""

    def rename(name):
        return table.get(name, name)

    targets = [rename(name) for name in names]
    if len(set(targets)) < len(targets):
        with pytest.raises(CheckpointError):
            rename_all(names, rename)
    else:
        assert rename_all(names, rename) == dict(zip(targets, names, strict=True))


def test_names_are_searched():
    is_norm = names_matching([r"norm\d", "^head"])
    assert is_norm("block.norm2.weight")
    assert is_norm("head.bias")
    assert not is_norm("block.head")
    assert not names_matching([])("anything")
