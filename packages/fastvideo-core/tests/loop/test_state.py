from __future__ import annotations

import enum
import json
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load, save

from fastvideo_core.errors import StateError
from fastvideo_core.loop import state as codec
from fastvideo_core.loop.state import LoopState, decode_state, decode_tree, encode_state, encode_tree, state_schema
from fastvideo_core.request.cancel import CancelScope

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.float8_e4m3fn,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.bool,
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Point:
    x: float
    y: float = 0.0


@dataclass(frozen=True, slots=True)
class Marked(Point):
    mark: str = ""


@dataclass(slots=True)
class Other:
    name: str


@dataclass(slots=True)
class State(LoopState):
    """One field of everything that a state can hold."""

    tensor: torch.Tensor | None = None
    generator: torch.Generator | None = None
    flag: bool = False
    count: int = 0
    value: float = 0.0
    text: str = ""
    raw: bytes = b""
    mode: Literal["serve", "train"] = "serve"
    pair: tuple[int, str] = (0, "")
    many: tuple[float, ...] = ()
    rows: list[tuple[torch.Tensor, ...]] = field(default_factory=list)
    by_name: dict[str, torch.Tensor] = field(default_factory=dict)
    by_index: dict[int, str] = field(default_factory=dict)
    point: Point = Point(0.0)
    either: Point | Other | None = None
    scope: CancelScope | None = None
    free: dict[str, dict[str, Any]] = field(default_factory=dict)


def moved(value):
    return decode_state(encode_state(value), type(value))


def bits(tensor):
    return (tensor.dtype, tensor.shape, tensor.reshape(-1).contiguous().view(torch.uint8).tolist())


def plain(value):
    """Return a form in which `==` means the same type and the same bits everywhere."""
    if isinstance(value, torch.Tensor):
        return bits(value)
    if isinstance(value, float):
        return ("float", struct.pack("d", value))
    if isinstance(value, dict):
        return [(plain(key), plain(item)) for key, item in value.items()]
    if isinstance(value, (list, tuple)):
        return (type(value), [plain(item) for item in value])
    if hasattr(value, "__dataclass_fields__"):
        return (type(value), [plain(getattr(value, name)) for name in value.__dataclass_fields__])
    return (type(value), value)


@st.composite
def tensors(draw):
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 3), max_size=4))
    num_bytes = int(np.prod(shape, dtype=int)) * dtype.itemsize
    raw = draw(st.binary(min_size=num_bytes, max_size=num_bytes))
    if dtype is torch.bool:
        raw = bytes(byte % 2 for byte in raw)
    flat = torch.frombuffer(bytearray(raw), dtype=dtype) if raw else torch.empty(0, dtype=dtype)
    tensor = flat.reshape(shape)
    return tensor.permute(draw(st.permutations(range(len(shape)))))


KEYS = st.text(max_size=4) | st.sampled_from(["tensor", "float", "object", "dict", "fields", "state.text"])
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=5)
FREE = st.recursive(
    SCALARS | tensors(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(KEYS | st.integers(-9, 9), inner, max_size=3)
    ),
    max_leaves=4,
)
POINTS = st.builds(Point, st.floats(), st.floats()) | st.builds(Marked, st.floats(), st.floats(), st.text(max_size=3))
STATES = st.builds(
    State,
    tensor=st.none() | tensors(),
    flag=st.booleans(),
    count=st.integers(),
    value=st.floats() | st.integers(),
    text=st.text(),
    raw=st.binary(),
    mode=st.sampled_from(["serve", "train"]),
    pair=st.tuples(st.integers(), st.text(max_size=3)),
    many=st.lists(st.floats(), max_size=3).map(tuple),
    rows=st.lists(st.lists(tensors(), max_size=2).map(tuple), max_size=2),
    by_name=st.dictionaries(KEYS, tensors(), max_size=3),
    by_index=st.dictionaries(st.integers(), st.text(max_size=3), max_size=3),
    point=POINTS,
    either=st.none() | POINTS | st.builds(Other, st.text(max_size=3)),
    scope=st.none() | st.just(CancelScope("request", "a").child("loop", "b")),
    free=st.dictionaries(KEYS, st.dictionaries(KEYS, FREE, max_size=2), max_size=2),
)


@settings(max_examples=30)
@given(STATES)
def test_every_state_comes_back_to_the_bit(state):
    data = encode_state(state)
    again = decode_state(data, State)
    assert plain(again) == plain(state)
    assert encode_state(again) == data


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.arange(24).reshape(2, 3, 4).permute(2, 0, 1),
        torch.empty_strided((1, 3), (7, 1)).fill_(1),
        torch.arange(12.0).reshape(3, 4).t(),
    ],
    ids=["channels last", "permuted", "odd stride of one", "transposed"],
)
def test_the_order_in_memory_is_kept(tensor):
    again = moved(State(tensor=tensor)).tensor
    assert again.stride() == tensor.stride()
    assert torch.equal(again, tensor)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(24).reshape(4, 6)[::2, 1:4],
        torch.ones(1).expand(3, 2),
        torch.tensor([1 + 2j, 3 - 4j]).conj(),
        torch.tensor([1 + 2j, 3 - 4j]).conj().imag,
        torch.nn.Parameter(torch.ones(2)),
        torch.tensor(float("nan")),
        torch.empty(0, 3),
    ],
    ids=["slice", "expanded", "conjugate", "negative", "parameter", "scalar", "empty"],
)
def test_views_come_back_as_tensors_of_their_own(tensor):
    again = moved(State(tensor=tensor)).tensor
    assert bits(again) == bits(tensor.detach().resolve_conj().resolve_neg())
    assert not again.requires_grad
    assert again.untyped_storage().nbytes() == again.numel() * again.element_size()
    assert type(again) is torch.Tensor


def test_a_large_base_is_not_dragged_along():
    assert len(encode_state(State(tensor=torch.zeros(1 << 20)[3:5]))) < 4096


def test_tensors_that_share_memory_come_back_apart():
    shared = torch.arange(4.0)
    state = State(tensor=shared, by_name={"whole": shared, "part": shared[1:3]})
    again = moved(state)
    again.tensor[1] = 9
    assert again.by_name["whole"].tolist() == [0, 1, 2, 3]
    assert again.by_name["part"].tolist() == [1, 2]
    assert shared.tolist() == [0, 1, 2, 3]


def test_keys_that_look_alike_are_told_apart():
    free = {"a": {"b": {1: torch.ones(1), "1": torch.zeros(1)}}, "a.b": {"c": torch.ones(2)}, "c": {"": torch.ones(3)}}
    again = moved(State(free=free)).free
    assert plain(again) == plain(free)


def test_a_generator_goes_on_where_it_was():
    generator = torch.Generator("cpu").manual_seed(7)
    torch.randn(5, generator=generator)
    again = moved(State(generator=generator)).generator
    assert torch.equal(torch.randn(9, generator=again), torch.randn(9, generator=generator))


def test_encoding_changes_nothing_and_shares_nothing():
    state = State(tensor=torch.ones(2))
    data = encode_state(state)
    again = decode_state(data, State)
    again.tensor.zero_()
    assert state.tensor.tolist() == [1, 1]
    assert decode_state(data, State).tensor.tolist() == [1, 1]


@dataclass
class Loose(LoopState):
    x: int = 0


class Colour(enum.StrEnum):
    RED = "red"


class Named(tuple):
    __slots__ = ()


class Special(torch.Tensor):
    pass


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"count": 1.5}, "state.count holds a float; its schema allows int"),
        ({"text": None}, "state.text holds a NoneType; its schema allows str"),
        ({"text": Colour.RED}, "state.text holds a Colour"),
        ({"value": np.float64(1)}, "state.value holds a float64"),
        ({"mode": "rollout"}, r"state.mode holds 'rollout'; its schema allows Literal\['serve', 'train'\]"),
        ({"pair": (1, "a", 2)}, r"state.pair holds a tuple; its schema allows tuple\[int, str\]"),
        ({"pair": ("a", 1)}, "state.pair.0 holds a str; its schema allows int"),
        ({"many": [1.0]}, "state.many holds a list"),
        ({"many": (1.0, "x")}, "state.many.1 holds a str; its schema allows float"),
        ({"many": Named((1.0,))}, "state.many holds a Named"),
        ({"rows": [(torch.ones(1), 3)]}, "state.rows.0.1 holds a int; its schema allows Tensor"),
        ({"by_index": {"a": "b"}}, r"state.by_index.a \(key\) holds a str; its schema allows int"),
        ({"by_name": {"a": 1}}, "state.by_name.a holds a int"),
        ({"free": {"a": {1.5: 1}}}, "state.free.a has a key of type float; allowed: str, int"),
        ({"free": {"a": {"b": {1, 2}}}}, "state.free.a.b holds a set, which a state cannot hold"),
        ({"free": {"a": {"b": Point(1)}}}, "state.free.a.b holds a Point; its schema allows Any"),
        ({"free": {"a": {"b": lambda: 1}}}, "state.free.a.b holds a function, which a state cannot hold"),
        ({"point": Other("x")}, "state.point holds a Other; its schema allows Point"),
        ({"tensor": torch.ones(2).to_sparse()}, "state.tensor holds a tensor of a kind that is not stored"),
        ({"tensor": torch.ones(2, device="meta")}, "state.tensor holds a tensor of a kind that is not stored"),
        ({"tensor": torch.ones(2, dtype=torch.complex128)}, "a tensor that safetensors does not"),
        ({"tensor": torch.ones(2).as_subclass(Special)}, "state.tensor holds a Special"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_does_not_fit_is_refused_when_it_is_written(fields, text):
    with pytest.raises(StateError, match=text):
        encode_state(State(**fields))


def test_attributes_besides_the_fields_are_refused():
    state = Loose()
    state.hidden = torch.ones(1)
    with pytest.raises(StateError, match=r"state holds \['hidden'\] besides the fields of Loose"):
        encode_state(state)


@dataclass(slots=True)
class Unresolved(LoopState):
    rows: Sequence[Mapping[str, int]] = ()


def test_annotations_that_exist_for_type_checkers_only_are_named():
    with pytest.raises(StateError, match="the annotations of Unresolved cannot be resolved: .*Sequence"):
        encode_state(Unresolved())


def retold(data, change):
    """Return a state's bytes with its document changed and the digest right again: a forgery."""
    size = int.from_bytes(data[:8], "little")
    stored = json.loads(data[8 : 8 + size])["__metadata__"]["fastvideo"]
    document, parts = json.loads(stored[64:]), load(data)
    change(document, parts)
    text = json.dumps(document)
    return save(parts, metadata={"fastvideo": codec._digest(text, parts) + text})


def fields_of(document):
    return document["tree"]["fields"]


EXAMPLE = State(
    tensor=torch.arange(6.0).reshape(2, 3).t(), generator=torch.Generator("cpu").manual_seed(1), raw=b"abc",
    value=float("nan"), pair=(1, "a"), by_index={1: "x"}, point=Marked(1.0, 2.0, "m"), free={"a": {"b": [1]}},
)  # fmt: skip


def test_a_forgery_that_fits_is_read():
    again = decode_state(retold(encode_state(EXAMPLE), lambda d, t: fields_of(d).update(count=5)), State)
    assert again.count == 5


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda d, t: d.update(format="other/1"), "not of format 'fastvideo-state/1'"),
        (lambda d, t: d.update(schema="x:Y/1"), "is of schema 'x:Y/1'; this loop reads '.*test_state:State/1'"),
        (lambda d, t: d.update(schema=state_schema(State)[:-1] + "2"), "is of schema '.*State/2'"),
        (lambda d, t: d.pop("tree"), "state holds a NoneType; its schema allows State"),
        (lambda d, t: d.update(tree=3), "state holds a int; its schema allows State"),
        (lambda d, t: fields_of(d).pop("count"), r"other fields than the schema: \['count'\]"),
        (lambda d, t: fields_of(d).update(extra=1), r"other fields than the schema: \['extra'\]"),
        (lambda d, t: fields_of(d).update(count="5"), "state.count holds a str; its schema allows int"),
        (lambda d, t: fields_of(d).update(count=[5]), "state.count holds a list; its schema allows int"),
        (lambda d, t: fields_of(d).update(free={"dict": [["a", ["b"]]]}), "state.free.a holds a list"),
        (lambda d, t: fields_of(d).update(mode="other"), "state.mode holds 'other'"),
        (lambda d, t: fields_of(d).update(value={"float": "one"}), "does not fit .*ValueError"),
        (lambda d, t: fields_of(d).update(value={"number": 1}), r"a node without a known tag: \['number'\]"),
        (lambda d, t: fields_of(d).update(raw={"bytes": "*"}), "does not fit"),
        (lambda d, t: fields_of(d).update(pair={"tuple": [1]}), "state.pair holds a tuple"),
        (lambda d, t: fields_of(d).update(pair={"tuple": 3}), "does not fit .*TypeError"),
        (lambda d, t: fields_of(d).update(by_index={"dict": [[1]]}), "does not fit .*IndexError"),
        (lambda d, t: fields_of(d).update(by_index={"dict": [[{"list": []}, "x"]]}), "holds a list"),
        (lambda d, t: fields_of(d).update(tensor={"tensor": "9"}), "KeyError: '9'"),
        (lambda d, t: fields_of(d)["tensor"].update(stride=[1 << 40, 1]), r"shape \(3, 2\) with stride \(10995"),
        (lambda d, t: fields_of(d)["tensor"].update(stride=[0, 5]), "does not fit .*RuntimeError"),
        (lambda d, t: fields_of(d)["tensor"].update(stride=[3]), "does not fit .*ValueError"),
        (lambda d, t: t.update({"1": torch.zeros(7, dtype=torch.uint8)}), "does not fit .*RuntimeError"),
        (lambda d, t: fields_of(d)["point"].update(object="os:system"), "state.point holds a 'os:system'; the schema"),
        (lambda d, t: fields_of(d)["point"].update(object=state_schema(Other)), "state.point holds a '.*:Other/1'"),
    ],
)
def test_a_forgery_that_does_not_fit_is_refused(change, text):
    with pytest.raises(StateError, match=text) as caught:
        decode_state(retold(encode_state(EXAMPLE), change), State)
    assert "\n" not in str(caught.value)


@settings(max_examples=150)
@given(st.data())
def test_damage_is_found_wherever_it_is(data):
    good = encode_state(EXAMPLE)
    size = int.from_bytes(good[:8], "little")
    part = data.draw(st.sampled_from([(0, 8), (8, 8 + size), (8 + size, len(good))]))
    at = data.draw(st.integers(part[0], part[1] - 1))
    byte = data.draw(st.integers(0, 255))
    damaged = good[:at] + bytes([byte]) + good[at + 1 :]
    try:
        again = decode_state(damaged, State)
    except StateError:
        return
    assert encode_state(again) == good


@settings(max_examples=30)
@given(st.integers(0, len(encode_state(EXAMPLE)) - 1), st.binary(max_size=9))
def test_a_cut_or_foreign_file_is_refused(length, garbage):
    with pytest.raises(StateError, match="corrupt or no state at all"):
        decode_state(encode_state(EXAMPLE)[:length], State)
    with pytest.raises(StateError, match="corrupt or no state at all"):
        decode_state(garbage, State)


def test_more_bytes_at_the_end_are_refused():
    with pytest.raises(StateError):
        decode_state(encode_state(EXAMPLE) + b"\0", State)


def test_a_document_nested_without_end_is_refused():
    deep = "[" * 100_000
    data = save({}, metadata={"fastvideo": codec._digest(deep, {}) + deep})
    with pytest.raises(StateError, match="corrupt or no state at all"):
        decode_state(data, State)


def test_other_safetensors_files_are_refused():
    with pytest.raises(StateError, match="corrupt or no state at all"):
        decode_state(save({"x": torch.ones(2)}), State)


@dataclass(slots=True)
class Versioned(LoopState):
    schema_version: ClassVar[int] = 1
    inner: Inner | None = None


@dataclass(slots=True)
class Inner:
    schema_version: ClassVar[int] = 1
    x: int = 0


@pytest.mark.parametrize("cls", [Versioned, Inner], ids=["the state", "a part of it"])
def test_another_version_is_refused(cls, monkeypatch):
    data = encode_state(Versioned(Inner(3)))
    monkeypatch.setattr(cls, "schema_version", 2)
    with pytest.raises(StateError, match=f"{cls.__name__}/1.*{cls.__name__}/2"):
        decode_state(data, Versioned)


def test_a_state_of_another_class_is_refused():
    with pytest.raises(StateError, match="is of schema '.*Loose/1'; this loop reads '.*State/1'"):
        decode_state(encode_state(Loose()), State)


@dataclass(slots=True)
class Loud(LoopState):
    x: int
    derived: int = field(init=False, default=0)

    def __post_init__(self):
        if self.x < 0:
            raise AssertionError("code of the state was run")
        self.derived = self.x + 1


def test_reading_runs_no_code_of_the_state():
    state = Loud(1)
    state.x, state.derived = -5, 7
    again = moved(state)
    assert (again.x, again.derived) == (-5, 7)


def test_a_tensor_of_a_device_goes_back_to_one_and_others_stay(monkeypatch):
    on_device, on_host = torch.ones(2, 3).t(), torch.ones(4)
    monkeypatch.setattr(codec, "_is_on_device", lambda tensor: tensor is on_device)
    data = encode_state(State(tensor=on_device, by_name={"host": on_host}))
    moved_there = decode_state(data, State, device=torch.device("meta"))
    assert moved_there.tensor.is_meta
    assert (moved_there.tensor.shape, moved_there.tensor.stride()) == ((3, 2), (1, 3))
    assert bits(moved_there.by_name["host"]) == bits(on_host)
    left_here = decode_state(data, State)
    assert bits(left_here.tensor) == bits(on_device)


def test_a_tree_refers_to_the_tensors_themselves_and_outlives_a_change_of_the_state():
    tensor, later = torch.arange(3.0), torch.zeros(1)
    state = State(tensor=tensor, rows=[(tensor, later)], by_name={"a": later}, count=1)
    seen = []

    def put(value):
        seen.append(value)
        return {"tensor": str(len(seen) - 1)}

    tree = encode_tree(state, put)
    text = json.dumps(tree)
    state.count, state.tensor = 2, later
    state.rows.append((later,))
    state.by_name["b"] = later
    assert json.dumps(tree) == text
    assert [value is tensor for value in seen] == [True, True, False, False]
    back = decode_tree(json.loads(text), State, lambda node: seen[int(node["tensor"])])
    assert back.tensor is tensor
    assert back.rows[0][1] is later
    assert (back.count, back.by_name) == (1, {"a": later})
