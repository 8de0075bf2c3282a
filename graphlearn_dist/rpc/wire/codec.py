"""Typed values as bytes, without pickle: a msgpack tree, and the tensors' memory as it is.

A value is turned into a *head* (msgpack: the tree and one descriptor per segment) and *segments* (the bytes of its
tensors, not copied). Segments start at multiples of 64 in the *payload*, so that a receiver reads the payload into
one aligned buffer and makes each tensor a view into it.

Tree: None, bool, int, float, str, bytes, list, tuple, dict, ``torch.Tensor``, ``torch.dtype`` and the types named by
``register_message``. Nothing else can be built by a decoder, whatever the bytes say.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from typing import Any, NamedTuple, TypeVar, overload

import numpy
import torch

from ... import _C
from ...errors import InvalidArgumentError, ProtocolError
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

_MessageType = TypeVar("_MessageType", bound=type)


# --- registered types ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Message:
    cls: type
    name: str
    field_names: tuple[str, ...]
    is_enum: bool

    def take_apart(self, value: Any) -> list[Any]:
        if self.is_enum:
            return [value.name]
        return [getattr(value, name) for name in self.field_names]

    def put_together(self, values: list[Any]) -> Any:
        if self.is_enum:
            if len(values) != 1 or not isinstance(values[0], str) or values[0] not in self.cls.__members__:  # type: ignore[attr-defined]
                raise ProtocolError(f"{self.name} has no member {values!r:.100}")
            return self.cls[values[0]]  # type: ignore[index]
        if len(values) != len(self.field_names):
            raise ProtocolError(f"{self.name}: expected {len(self.field_names)} fields, got {len(values)}")
        try:
            return self.cls(**dict(zip(self.field_names, values, strict=True)))
        except Exception as error:  # whatever its checks stumble over: the fields are a stranger's
            raise ProtocolError(f"{self.name} refuses its fields: {type(error).__name__}: {error!s:.400}") from error


_BY_NAME: dict[str, _Message] = {}
_BY_TYPE: dict[type, _Message] = {}


@overload
def register_message(cls: _MessageType, name: str | None = None) -> _MessageType: ...
@overload
def register_message(cls: None = None, name: str | None = None) -> Callable[[_MessageType], _MessageType]: ...
def register_message(cls: Any = None, name: str | None = None) -> Any:
    """Let values of ``cls`` travel. Usable as ``@register_message`` or ``@register_message(name="...")``.

    Args:
        cls: a dataclass, a NamedTuple or an Enum. Its fields travel in order; they must be encodable themselves.
        name: the name on the wire; the class's qualified name by default. Both sides must agree.

    Returns:
        ``cls`` itself, or a decorator when called without it.

    Raises:
        InvalidArgumentError: ``cls`` is of another kind, or the name belongs to another class.
    """
    if cls is None:
        return lambda decorated: register_message(decorated, name)
    message = _describe(cls, name or cls.__qualname__)
    known = _BY_NAME.get(message.name)
    if known is not None and (known.cls.__module__, known.cls.__qualname__) != (cls.__module__, cls.__qualname__):
        raise InvalidArgumentError(f"name: {message.name!r} is the name of {known.cls!r} already, got {cls!r}")
    _BY_NAME[message.name] = message
    _BY_TYPE[cls] = message
    return cls


def register_as_base(cls: _MessageType) -> _MessageType:
    """Let values of a class that only has other defaults travel as its base class, which is what receivers get.

    Raises:
        InvalidArgumentError: no base class of it was registered.
    """
    base = next((base for base in cls.__mro__[1:] if base in _BY_TYPE), None)
    if base is None:
        raise InvalidArgumentError(f"cls: expected a subclass of a registered message, got {cls!r}")
    _BY_TYPE[cls] = _BY_TYPE[base]
    return cls


def _describe(cls: type, name: str) -> _Message:
    if isinstance(cls, type) and issubclass(cls, Enum):
        return _Message(cls, name, (), is_enum=True)
    if is_dataclass(cls):
        return _Message(cls, name, tuple(f.name for f in fields(cls) if f.init), is_enum=False)
    if isinstance(cls, type) and issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return _Message(cls, name, tuple(cls._fields), is_enum=False)
    raise InvalidArgumentError(f"cls: expected a dataclass, a NamedTuple or an Enum, got {cls!r}")


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
    by_type=_BY_TYPE,
    by_name=_BY_NAME,
    tensor_bytes=_tensor_bytes,
    frombuffer=torch.frombuffer,
    empty=torch.empty,
)


def encode(obj: Any, on_released: Callable[[], None] | None = None) -> Encoded:
    """Encode a value; tensors on other devices and non-contiguous ones are copied, others are not.

    Raises:
        InvalidArgumentError: something in ``obj`` is of a type that cannot travel, or is nested too deeply.
    """
    return Encoded(*_NATIVE.encode(obj, _MAX_TREE_BYTES), on_released)


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
    """An encoded value as it arrived."""

    head: Buffer
    payload: Buffer | None

    def decode(self) -> Any:
        """The value; ``ProtocolError`` where its bytes break a rule."""
        return _NATIVE.decode(self.head, self.payload, _MAX_TREE_BYTES)


def decode_blob(blob: Buffer) -> Any:
    """The value whose ``Encoded.write_parts`` filled ``blob``; tensors are views into it where it is writable."""
    head, payload = split_blob(blob)
    return decode(head, payload if payload.nbytes else None)


def byte_array(view: Buffer) -> Any:
    """``view`` as a numpy array of bytes; copies between two of these release the GIL."""
    return numpy.frombuffer(view, dtype=numpy.uint8)
