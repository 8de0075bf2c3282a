"""Values as bytes and back, and everything a decoder must refuse."""

from __future__ import annotations

import math
from collections import OrderedDict, defaultdict
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Any, NamedTuple

import msgpack
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from graphlearn_dist._C import pack, unpack
from graphlearn_dist.errors import InvalidArgumentError, ProtocolError
from graphlearn_dist.rpc.wire import codec
from graphlearn_dist.rpc.wire.codec import _DTYPE_CODES, MAX_NESTING, decode, decode_blob, encode
from graphlearn_dist.rpc.wire.encoded import ALIGNMENT, MAX_HEAD_BYTES, Encoded, split_blob
from graphlearn_dist.utils import message_types
from graphlearn_dist.utils.message_types import MessageType, register_message


@register_message(name="test.Color")
class Color(Enum):
    RED = 1
    BLUE = 2


@register_message(name="test.Point")
@dataclass(frozen=True)
class Point:
    x: int
    label: Any = None

    def __post_init__(self) -> None:
        if self.x < 0:
            raise ValueError("x is negative")


@register_message(name="test.Pair")
class Pair(NamedTuple):
    left: Any
    right: Any


def payload_of(encoded: Encoded) -> bytearray:
    return bytearray(b"".join(encoded.payload_parts()))


def round_trip(value: Any) -> Any:
    encoded = encode(value)
    payload = payload_of(encoded)
    assert len(payload) == encoded.nbytes
    assert encoded.nbytes % ALIGNMENT == 0
    return decode(encoded.head, payload)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    if type(a) is not type(b):
        return False
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, Point):
        return a.x == b.x and same(a.label, b.label)
    if isinstance(a, float) and math.isnan(a):
        return math.isnan(b)
    return bool(a == b)


tensors = st.builds(
    lambda dtype, shape: torch.arange(math.prod(shape)).reshape(shape).to(dtype),
    st.sampled_from([torch.bool, torch.uint8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float64]),
    st.lists(st.integers(0, 5), max_size=3),
)
leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=20)
    | st.binary(max_size=20)
    | tensors
    | st.sampled_from(list(Color))
)
keys = st.text(max_size=5) | st.integers(-(2**31), 2**31) | st.tuples(st.text(max_size=3), st.text(max_size=3))
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(keys, inner, max_size=4)
        | st.builds(Point, st.integers(0, 9), inner)
        | st.builds(Pair, inner, inner)
    ),
    max_leaves=15,
)


@given(values)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_round_trip(value: Any) -> None:
    assert same(value, round_trip(value))


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(width=32)
    | st.text(max_size=300)
    | st.binary(max_size=300),
    lambda inner: st.lists(inner, max_size=20),
    max_leaves=40,
)


@given(plain)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_plain_values_are_what_other_msgpacks_write_and_read(value: Any) -> None:
    packed = pack(value)
    assert packed == msgpack.packb(value)
    assert same(unpack(packed), value)
    single = msgpack.packb(value, use_single_float=True)
    assert same(unpack(single), msgpack.unpackb(single))


@given(values)
@settings(max_examples=100, deadline=None, derandomize=True)
def test_heads_are_msgpack(value: Any) -> None:
    """Another reader finds a tree and a list of descriptors in it, with nothing behind them."""
    parts = msgpack.unpackb(encode([value]).head, strict_map_key=False, ext_hook=lambda code, data: None)
    assert len(parts) == 2
    assert len(parts[0]) == 1
    assert all(len(descriptor) == 3 for descriptor in parts[1])


def test_what_a_frame_says_about_itself_is_plain() -> None:
    assert unpack(pack((1, ("x",)))) == [1, ["x"]]
    for value in (object(), torch.arange(2), 2**64, "\ud800", [[1j]]):
        with pytest.raises(InvalidArgumentError, match=r"obj|meta"):
            pack(value)
    for data in (ext(3, [1]), {"a": 1}, [[{1: 2}]], [ext(2, ["test.Point", [1, None]])]):
        with pytest.raises(ProtocolError, match="unexpected"):
            unpack(msgpack.packb(data))


def test_a_list_that_changes_while_it_is_encoded() -> None:
    values: list[Any] = []

    class Shrinking(NamedTuple):
        left: Any

        @property
        def right(self) -> int:
            values.clear()
            return 1

    register_message(Shrinking, name="test.Shrinking")
    message_types.BY_TYPE[Shrinking] = MessageType(Shrinking, "test.Shrinking", ("left", "right"), is_enum=False)
    values += [Shrinking(0), 2, 3]
    with pytest.raises(InvalidArgumentError, match="changed"):
        encode(values)


@given(values)
@settings(max_examples=50, deadline=None, derandomize=True)
def test_blob_round_trip(value: Any) -> None:
    encoded = encode(value)
    blob = bytearray(b"".join(encoded.write_parts()))
    assert len(blob) == encoded.blob_bytes
    assert same(value, decode_blob(blob))
    head, payload = split_blob(blob)
    assert bytes(head) == encoded.head
    assert bytes(payload) == bytes(payload_of(encoded))


@pytest.mark.parametrize("dtype", list(_DTYPE_CODES), ids=str)
def test_every_dtype(dtype: torch.dtype) -> None:
    tensor = torch.arange(12).to(torch.float32).to(dtype) if dtype.is_floating_point else torch.arange(12).to(dtype)
    result = round_trip([tensor, tensor[3]])
    assert result[0].dtype == dtype
    assert torch.equal(result[0].view(torch.uint8), tensor.view(torch.uint8))
    assert result[1].shape == ()


def test_non_contiguous_tensors_and_gradients() -> None:
    base = torch.arange(24.0).reshape(4, 6)
    leaf = torch.ones(3, requires_grad=True)
    assert torch.equal(round_trip(base.t()), base.t())
    assert torch.equal(round_trip(base[:, ::2]), base[:, ::2])
    assert not round_trip(leaf).requires_grad


def test_tensors_are_sent_from_and_received_into_their_memory() -> None:
    tensor = torch.arange(10)
    encoded = encode({"t": tensor})
    tensor[0] = 99  # the segment is a view, so it must see this
    payload = payload_of(encoded)
    result = decode(encoded.head, payload)["t"]
    assert result[0] == 99
    payload[:8] = (7).to_bytes(8, "little")
    assert result[0] == 7


def test_a_large_tree_and_large_bytes_travel_as_segments() -> None:
    value = {"numbers": list(range(30_000)), "data": bytes(range(256)) * 100}
    encoded = encode(value)
    assert len(encoded.head) < 1000
    assert round_trip(value) == value


def test_read_only_payload_is_copied() -> None:
    encoded = encode(torch.arange(3))
    assert torch.equal(decode(encoded.head, bytes(payload_of(encoded))), torch.arange(3))


@pytest.mark.parametrize("value", [object(), {1, 2}, 1j, lambda: 0, 2**70, torch.eye(2).to_sparse(), [2**64]])
def test_values_that_cannot_travel(value: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="obj"):
        encode(value)


class Name(str):
    pass


class Level(IntEnum):
    HIGH = 3


class Shade(str, Enum):
    DARK = "dark"


class Place(NamedTuple):
    name: Name
    level: Level


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Name("a"), "a"),
        (Level.HIGH, 3),
        (Shade.DARK, "dark"),
        (np.float64(0.5), 0.5),
        (Place(Name("a"), Level.HIGH), ("a", 3)),
        ({Place(Name("a"), Level.HIGH): [OrderedDict(x=Name("b"))]}, {("a", 3): [{"x": "b"}]}),
        (defaultdict(list, {1: torch.arange(2)}), {1: torch.arange(2)}),
        (Point(1, [Name("a"), Color.RED]), Point(1, ["a", Color.RED])),
        (torch.Size([2, 3]), (2, 3)),
    ],
    ids=str,
)
def test_values_of_subclasses_arrive_as_those_of_the_class(value: Any, expected: Any) -> None:
    assert same(round_trip(value), expected)


@pytest.mark.parametrize(
    "value", [[Name("a"), object()], (Name("a"), {1}), {Name("a"): np.int64(1)}], ids=["list", "tuple", "dict"]
)
def test_values_beside_those_of_subclasses_that_cannot_travel(value: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"obj: a (builtins\.|numpy\.)\w+ cannot travel"):
        encode(value)


def test_encoding_too_deep_a_nesting() -> None:
    value: Any = 0
    for _ in range(MAX_NESTING + 1):
        value = [value]
    with pytest.raises(InvalidArgumentError, match="nested"):
        encode(value)
    assert round_trip(value[0]) == value[0]
    endless: list[Any] = [Name("a")]
    endless += [endless, endless]
    with pytest.raises(InvalidArgumentError, match="nested"):
        encode(endless)


def test_register_message_checks() -> None:
    with pytest.raises(InvalidArgumentError, match="dataclass"):
        register_message(int)
    with pytest.raises(InvalidArgumentError, match=r"test\.Point"):
        register_message(Pair, name="test.Point")


# --- malformed input -------------------------------------------------------------------------------------------


def head(tree: Any, descriptors: Any) -> bytes:
    result: bytes = msgpack.packb([tree, descriptors])
    return result


def ext(code: int, content: Any) -> msgpack.ExtType:
    return msgpack.ExtType(code, msgpack.packb(content))


def nested(depth: int) -> list[Any]:
    tree: list[Any] = []
    for _ in range(depth):
        tree = [tree]
    return tree


INT64, UINT8 = _DTYPE_CODES[torch.int64], _DTYPE_CODES[torch.uint8]

MALFORMED = {
    "head too long": (b"\xc0" * (MAX_HEAD_BYTES + 1), b"", "head"),
    "empty": (b"", b"", "msgpack"),
    "not msgpack": (b"\xc1", b"", "msgpack"),
    "truncated": (head([1, 2, 3], [])[:-2], b"", "msgpack"),
    "trailing bytes": (head(1, []) + b"\x00", b"", "msgpack"),
    "no pair": (msgpack.packb(5), b"", "tree"),
    "bad utf-8": (b"\x92\xa1\xff\x90", b"", "msgpack"),
    "descriptors missing": (head(1, None), b"", "descriptors"),
    "tree missing": (msgpack.packb([[]]), b"", "missing"),
    "nesting": (head(nested(MAX_NESTING + 1), []), b"", "nested"),
    "nesting beyond the unpacker": (b"\x91" * 5000 + b"\xc0", b"", "msgpack"),
    "segments shorter than payload": (head(1, [[INT64, [8], 64]]), bytes(128), "need 64"),
    "segments longer than payload": (head(1, [[INT64, [8], 64]]), b"", "need 64"),
    "unknown dtype": (head(1, [[250, [8], 64]]), bytes(64), "dtype"),
    "dtype of a wrong type": (head(1, [["x", [8], 64]]), bytes(64), "dtype"),
    "shape does not match": (head(1, [[INT64, [7], 64]]), bytes(64), "56 bytes"),
    "negative extents": (head(1, [[INT64, [-2, -4], 64]]), bytes(64), "shape"),
    "huge extents": (head(1, [[INT64, [1 << 62, 0], 0]]), b"", "shape"),
    "boolean extent": (head(1, [[INT64, [True], 8]]), bytes(64), "shape"),
    "too many dimensions": (head(1, [[INT64, [1] * 65, 8]]), bytes(64), "shape"),
    "negative size": (head(1, [[INT64, [0], -8]]), b"", "takes 0"),
    "descriptor of a wrong form": (head(1, [[INT64, [8]]]), bytes(64), "segment"),
    "segment index outside": (head(ext(1, 1), [[INT64, [8], 64]]), bytes(64), "index"),
    "segment index negative": (head(ext(1, -1), [[INT64, [8], 64]]), bytes(64), "index"),
    "segment index no number": (head(ext(1, "0"), [[INT64, [8], 64]]), bytes(64), "index"),
    "bytes taken twice": (head([ext(5, 0), ext(5, 0)], [[UINT8, [64], 64]]), bytes(64), "twice"),
    "strides that overflow": (head(1, [[INT64, [1 << 61, 1 << 61, 0], 0]]), b"", "cannot have the shape"),
    "unknown message type": (head(ext(2, ["os.system", ["true"]]), []), b"", "not registered"),
    "message without name": (head(ext(2, [1, []]), []), b"", "name"),
    "wrong number of fields": (head(ext(2, ["test.Point", [1]]), []), b"", "2 fields"),
    "fields refused": (head(ext(2, ["test.Point", [-1, None]]), []), b"", "negative"),
    "fields that checks stumble over": (head(ext(2, ["test.Point", [[], None]]), []), b"", "refuses its fields"),
    "unknown enum member": (head(ext(2, ["test.Color", ["GREEN"]]), []), b"", "no member"),
    "unknown extension": (head(ext(77, []), []), b"", "extension 77"),
    "timestamp extension": (head(msgpack.ExtType(127, b"\x00"), []), b"", "extension"),
    "unhashable key": (head(ext(4, [[[1], 2]]), []), b"", "unhashable"),
    "pairs that are none": (head(ext(4, [[1, 2, 3]]), []), b"", "pairs"),
    "float key": (msgpack.packb([{1.5: 2}, []]), b"", "keys"),
    "unhashable map key": (b"\x92\x81\x90\x01\x90", b"", "msgpack"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed(case: str) -> None:
    bad_head, payload, message = MALFORMED[case]
    with pytest.raises(ProtocolError, match=message):
        decode(bad_head, bytearray(payload) if payload else None)


def test_a_tree_beyond_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded = encode(list(range(30_000)))
    monkeypatch.setattr(codec, "_MAX_TREE_BYTES", 1 << 16)
    with pytest.raises(ProtocolError, match="tree: expected at most 65536 bytes"):
        decode(encoded.head, payload_of(encoded))
    with pytest.raises(InvalidArgumentError, match="beside its tensors"):
        encode(list(range(30_000)))


@given(st.binary(max_size=200), st.integers(0, 3))
@settings(max_examples=300, deadline=None, derandomize=True)
def test_random_bytes_never_break_the_decoder(data: bytes, blocks: int) -> None:
    try:
        decode(data, bytearray(64 * blocks) if blocks else None)
    except ProtocolError:
        return


@given(values, st.data())
@settings(max_examples=150, deadline=None, derandomize=True)
def test_flipped_bytes_never_break_the_decoder(value: Any, data: st.DataObject) -> None:
    encoded = encode(value)
    damaged = bytearray(encoded.head)
    damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= data.draw(st.integers(1, 255))
    payload = payload_of(encoded)
    try:
        decode(damaged, payload if payload else None)
    except ProtocolError:
        return


@pytest.mark.parametrize("blob", [b"", b"x" * 16, b"GLDB" + b"\xff" * 60, bytes(64)])
def test_malformed_blob(blob: bytes) -> None:
    with pytest.raises(ProtocolError, match="blob"):
        split_blob(blob)
