"""Typed values as bytes, without pickle: a msgpack tree, and the tensors' memory as it is.

A value is turned into a *head* (msgpack: the tree and one descriptor per segment) and *segments* (the bytes of its
tensors, not copied). Segments start at multiples of 64 in the *payload*, so that a receiver reads the payload into
one aligned buffer and makes each tensor a view into it.

Tree: None, bool, int, float, str, bytes, list, tuple, dict, ``torch.Tensor``, ``torch.dtype`` and the types named by
``register_message``. Nothing else can be built by a decoder, whatever the bytes say. A value of a subclass of str, int,
float, tuple, list or dict (a NamedTuple as edge type, an ``IntEnum``, ``numpy.float64``) arrives as one of that class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy
import torch

from ... import _C
from ...errors import InvalidArgumentError
from ...utils.message_types import BY_NAME, BY_TYPE
from .encoded import Buffer, Encoded, split_blob

MAX_NESTING = _C.Codec.MAX_NESTING
_MAX_TREE_BYTES = 64 << 20  # a byte of a tree may become 64 of Python's; numbers by the million are tensors

# The numbers are part of the format: append, never renumber.
_DTYPE_CODES: dict[torch.dtype, int] = {
    torch.bool: 0,
    torch.uint8: 1,
    torch.int8: 2,
    torch.int16: 3,
    torch.int32: 4,
    torch.int64: 5,
    torch.float16: 6,
    torch.bfloat16: 7,
    torch.float32: 8,
    torch.float64: 9,
    torch.complex64: 10,
    torch.complex128: 11,
    torch.uint16: 12,
    torch.uint32: 13,
    torch.uint64: 14,
    torch.float8_e4m3fn: 15,
    torch.float8_e5m2: 16,
}

# --- values ----------------------------------------------------------------------------------------------------


def _tensor_bytes(tensor: torch.Tensor) -> memoryview:
    """The bytes of a tensor whose memory cannot travel as it is, copied where they have to be."""
    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise InvalidArgumentError(f"obj: expected dense tensors, got one of layout {tensor.layout}")
    if not tensor.numel():
        return memoryview(b"")
    dense = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    return dense.reshape(-1).view(torch.uint8).numpy().data


# Those that `memoryview` knows as well.
_BUFFER_DTYPES = frozenset(
    {torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float32, torch.float64, torch.bool}
)

# The walk over the values, which is native (csrc/codec/codec.h).
_NATIVE = _C.Codec(
    dtypes=[(dtype, dtype.itemsize, dtype in _BUFFER_DTYPES) for dtype in _DTYPE_CODES],
    tensor_type=torch.Tensor,
    size_type=torch.Size,
    by_type=BY_TYPE,
    by_name=BY_NAME,
    tensor_bytes=_tensor_bytes,
    frombuffer=torch.frombuffer,
    empty=torch.empty,
)


def _without_subclasses(value: Any, depth: int = 0) -> Any:
    """The value with those of subclasses as values of the class itself; it itself where there are none.

    What cannot travel stays as it is.
    """
    if depth > MAX_NESTING:
        raise InvalidArgumentError(f"obj: nested more than {MAX_NESTING} deep")
    message = BY_TYPE.get(type(value))
    if message is not None and message.is_enum:
        return value
    if message is not None:
        given = message.take_apart(value)
        found = [_without_subclasses(one, depth + 1) for one in given]
        return value if _same_all(given, found) else message.put_together(found)
    if isinstance(value, (list, tuple)):
        found = [_without_subclasses(one, depth + 1) for one in value]
        kind = list if isinstance(value, list) else tuple
        return value if type(value) is kind and _same_all(value, found) else kind(found)
    if isinstance(value, dict):
        given = [part for pair in value.items() for part in pair]
        found = [_without_subclasses(one, depth + 1) for one in given]
        is_plain = type(value) is dict and _same_all(given, found)
        return value if is_plain else dict(zip(found[::2], found[1::2], strict=True))
    match value:  # an Enum's own `__str__` is another text
        case str() if type(value) is not str:
            return str.__str__(value)
        case int() if type(value) not in (int, bool):
            return int.__pos__(value)
        case float() if type(value) is not float:
            return float.__pos__(value)
    return value


def _same_all(first: Iterable[Any], second: Iterable[Any]) -> bool:
    return all(one is other for one, other in zip(first, second, strict=True))


def encode(obj: Any, on_released: Callable[[], None] | None = None) -> Encoded:
    """Encode a value; tensors on other devices and non-contiguous ones are copied, others are not.

    Raises:
        InvalidArgumentError: something in ``obj`` is of a type that cannot travel, or is nested too deeply.
    """
    try:
        parts = _NATIVE.encode(obj, _MAX_TREE_BYTES)
    except InvalidArgumentError:  # rarely: the walk over what is plain already has no second look at it
        plain = _without_subclasses(obj)
        if plain is obj:
            raise
        parts = _NATIVE.encode(plain, _MAX_TREE_BYTES)
    return Encoded(*parts, on_released)


def decode(head: Buffer, payload: Buffer | None = None) -> Any:
    """The value that ``encode`` took apart.

    Args:
        head: ``Encoded.head``.
        payload: the segments, each padded to a multiple of 64, in one writable buffer. Tensors are views into it and
            keep it alive. None where there is none.

    Raises:
        ProtocolError: the bytes break a rule of the format; nothing was built from them.
    """
    return _NATIVE.decode(head, payload, _MAX_TREE_BYTES)


class Value(NamedTuple):
    """An encoded value as it arrived; see ``decode``."""

    head: Buffer
    payload: Buffer | None


def decode_blob(blob: Buffer) -> Any:
    """The value whose ``Encoded.write_parts`` filled ``blob``; tensors are views into it where it is writable."""
    head, payload = split_blob(blob)
    return decode(head, payload if payload.nbytes else None)


def byte_array(view: Buffer) -> Any:
    """``view`` as a numpy array of bytes; copies between two of these release the GIL."""
    return numpy.frombuffer(view, dtype=numpy.uint8)
