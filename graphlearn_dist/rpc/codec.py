"""Typed values as bytes, without pickle: a msgpack tree, and the tensors' memory as it is.

A value is turned into a *head* (msgpack: the tree and one descriptor per segment) and *segments* (the bytes of its
tensors, not copied). Segments start at multiples of 64 in the *payload*, so that a receiver reads the payload into
one aligned buffer and makes each tensor a view into it.

Tree: None, bool, int, float, str, bytes, list, tuple, dict, ``torch.Tensor``, ``torch.dtype`` and the types named by
``register_message``. Nothing else can be built by a decoder, whatever the bytes say.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from typing import Any, NamedTuple, TypeVar, overload

import msgpack
import numpy
import torch

from ..errors import InvalidArgumentError, ProtocolError
from .encoded import MAX_HEAD_BYTES, Buffer, Encoded, padded, split_blob

MAX_NESTING = 32
_SPILL_BYTES = 32 << 10  # a larger tree travels as the last segment
_MAX_TREE_BYTES = 64 << 20  # a byte of a tree may become 64 of Python's; numbers by the million are tensors
_BYTES_AS_SEGMENT = 4 << 10  # longer `bytes` travel as a segment

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
_DTYPES = {code: dtype for dtype, code in _DTYPE_CODES.items()}

_EXT_TENSOR, _EXT_MESSAGE, _EXT_TUPLE, _EXT_PAIRS, _EXT_BYTES, _EXT_DTYPE = 1, 2, 3, 4, 5, 6

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


def _describe(cls: type, name: str) -> _Message:
    if isinstance(cls, type) and issubclass(cls, Enum):
        return _Message(cls, name, (), is_enum=True)
    if is_dataclass(cls):
        return _Message(cls, name, tuple(f.name for f in fields(cls) if f.init), is_enum=False)
    if isinstance(cls, type) and issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return _Message(cls, name, tuple(cls._fields), is_enum=False)
    raise InvalidArgumentError(f"cls: expected a dataclass, a NamedTuple or an Enum, got {cls!r}")


# --- encoding --------------------------------------------------------------------------------------------------


def encode(obj: Any, on_released: Callable[[], None] | None = None) -> Encoded:
    """Encode a value; tensors on other devices and non-contiguous ones are copied, others are not.

    Raises:
        InvalidArgumentError: something in ``obj`` is of a type that cannot travel, or is nested too deeply.
    """
    encoder = _Encoder()
    tree = encoder.walk(obj, 0)
    try:
        packed = pack(tree)
    except (OverflowError, ValueError) as error:
        raise InvalidArgumentError(f"obj: cannot be encoded: {error}") from error
    if len(packed) > _MAX_TREE_BYTES:
        raise InvalidArgumentError(f"obj: {len(packed)} bytes beside its tensors; expected at most {_MAX_TREE_BYTES}")
    spilled = len(packed) > _SPILL_BYTES
    if spilled:
        encoder.add(torch.frombuffer(bytearray(packed), dtype=torch.uint8))
    descriptors = pack(encoder.descriptors)
    # [tree, descriptors], or [descriptors] when the tree is the last segment
    head = b"\x91" + descriptors if spilled else b"\x92" + packed + descriptors
    if len(head) > MAX_HEAD_BYTES:
        raise InvalidArgumentError(f"obj: {len(encoder.descriptors)} tensors are too many for one message")
    return Encoded(head, tuple(encoder.segments), encoder.nbytes, on_released)


class _Encoder:
    def __init__(self) -> None:
        self.descriptors: list[list[Any]] = []
        self.segments: list[memoryview] = []
        self.nbytes = 0

    def walk(self, obj: Any, depth: int) -> Any:
        kind = type(obj)
        if kind in _PLAIN:
            return obj
        if depth >= MAX_NESTING:
            raise InvalidArgumentError(f"obj: nested more than {MAX_NESTING} deep")
        if kind is list:
            return [self.walk(item, depth + 1) for item in obj]
        if kind is dict:
            return self.mapping(obj, depth) if obj else obj
        if kind is tuple or kind is torch.Size:
            return self.extension(_EXT_TUPLE, [self.walk(item, depth + 1) for item in obj])
        if isinstance(obj, torch.Tensor):
            return _tensor_extension(self.add(obj))
        if isinstance(obj, (bytes, bytearray, memoryview)):
            return self.blob(bytes(obj))
        message = _BY_TYPE.get(kind)
        if message is not None:
            values = [self.walk(value, depth + 1) for value in message.take_apart(obj)]
            return self.extension(_EXT_MESSAGE, [message.name, values])
        if kind is torch.dtype:
            return self.extension(_EXT_DTYPE, _dtype_code(obj))
        raise InvalidArgumentError(
            f"obj: a {kind.__module__}.{kind.__qualname__} cannot travel; expected None, bool, int, float, str, bytes, "
            "list, tuple, dict, torch.Tensor or a type passed to register_message"
        )

    def mapping(self, obj: dict[Any, Any], depth: int) -> Any:
        if all(type(key) is str or type(key) is int for key in obj):
            return {key: self.walk(value, depth + 1) for key, value in obj.items()}
        pairs = [[self.walk(key, depth + 1), self.walk(value, depth + 1)] for key, value in obj.items()]
        return self.extension(_EXT_PAIRS, pairs)

    def blob(self, obj: bytes) -> Any:
        if len(obj) < _BYTES_AS_SEGMENT:
            return obj
        return self.extension(_EXT_BYTES, self._append(_DTYPE_CODES[torch.uint8], [len(obj)], memoryview(obj)))

    def add(self, tensor: torch.Tensor) -> int:
        if tensor.layout is not torch.strided or tensor.is_quantized:
            raise InvalidArgumentError(f"obj: expected dense tensors, got one of layout {tensor.layout}")
        code = _dtype_code(tensor.dtype)
        view = _bytes_of(_dense(tensor)) if tensor.numel() else memoryview(b"")
        return self._append(code, list(tensor.shape), view)

    def _append(self, code: int, shape: list[int], view: memoryview) -> int:
        self.descriptors.append([code, shape, view.nbytes])
        if view.nbytes:
            self.segments.append(view)
            self.nbytes += padded(view.nbytes)
        return len(self.descriptors) - 1

    @staticmethod
    def extension(code: int, content: Any) -> msgpack.ExtType:
        try:
            return msgpack.ExtType(code, pack(content))
        except (OverflowError, ValueError) as error:
            raise InvalidArgumentError(f"obj: cannot be encoded: {error}") from error


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` itself where its memory can travel as it is, else a copy."""
    is_plain = tensor.dtype in _BUFFER_DTYPES and tensor.is_cpu and not tensor.requires_grad and not tensor.is_neg()
    if is_plain and tensor.is_contiguous():
        return tensor
    return tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()


def _bytes_of(dense: torch.Tensor) -> memoryview:
    if dense.dtype in _BUFFER_DTYPES:
        return dense.numpy().data.cast("B")  # in a third of the other way's time
    return dense.reshape(-1).view(torch.uint8).numpy().data


# Those that `memoryview` knows as well.
_BUFFER_DTYPES = frozenset(
    {torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float32, torch.float64, torch.bool}
)
_PLAIN = frozenset({type(None), bool, int, float, str})


def _dtype_code(dtype: torch.dtype) -> int:
    code = _DTYPE_CODES.get(dtype)
    if code is None:
        raise InvalidArgumentError(f"obj: tensors of {dtype} cannot travel")
    return code


def pack(value: Any) -> bytes:
    """``value`` in msgpack."""
    return msgpack.Packer(use_bin_type=True).pack(value)  # type: ignore[no-any-return]


@functools.lru_cache(maxsize=256)
def _tensor_extension(index: int) -> msgpack.ExtType:
    return msgpack.ExtType(_EXT_TENSOR, pack(index))


# --- decoding --------------------------------------------------------------------------------------------------


def decode(head: Buffer, payload: Buffer | None = None) -> Any:
    """The value that ``encode`` took apart.

    Args:
        head: ``Encoded.head``.
        payload: the segments, each padded to a multiple of 64, in one writable buffer. Tensors are views into it and
            keep it alive. None where there is none.

    Raises:
        ProtocolError: the bytes break a rule of the format; nothing was built from them.
    """
    view = memoryview(payload).cast("B") if payload is not None else memoryview(b"")
    if view.readonly and view.nbytes:
        payload = bytearray(view)  # torch has no read-only tensors
    decoder = _Decoder(payload, view.nbytes)
    return decoder.decode(memoryview(head).cast("B"))


class Value(NamedTuple):
    """An encoded value as it arrived."""

    head: Buffer
    payload: Buffer | None

    def decode(self) -> Any:
        """The value; ``ProtocolError`` where its bytes break a rule."""
        return decode(self.head, self.payload)


def decode_blob(blob: Buffer) -> Any:
    """The value whose ``Encoded.write_parts`` filled ``blob``; tensors are views into it where it is writable."""
    head, payload = split_blob(blob)
    return decode(head, payload if payload.nbytes else None)


class _Decoder:
    def __init__(self, payload: Buffer, nbytes: int) -> None:
        self.payload = payload
        self.nbytes = nbytes
        self.segments: list[tuple[torch.dtype, list[int], int, int]] = []  # dtype, shape, nbytes, offset
        self.copied: set[int] = set()  # segments that became `bytes`

    def decode(self, head: memoryview) -> Any:
        if head.nbytes > MAX_HEAD_BYTES:
            raise ProtocolError(f"head: expected at most {MAX_HEAD_BYTES} bytes, got {head.nbytes}")
        parts = unpack(head)
        if not isinstance(parts, list) or len(parts) not in (1, 2):
            raise ProtocolError("head: expected a tree and segment descriptors")
        self.read_descriptors(parts[-1])
        if len(parts) == 2:
            return self.walk(parts[0], 0)
        if not self.segments:
            raise ProtocolError("head: the tree is missing")
        tree = self.bytes_of(len(self.segments) - 1)
        if tree.nbytes > _MAX_TREE_BYTES:
            raise ProtocolError(f"tree: expected at most {_MAX_TREE_BYTES} bytes, got {tree.nbytes}")
        return self.walk(unpack(tree), 0)

    def read_descriptors(self, descriptors: Any) -> None:
        if not isinstance(descriptors, list):
            raise ProtocolError("head: expected a list of segment descriptors")
        offset = 0
        for descriptor in descriptors:
            dtype, shape, nbytes = _check_descriptor(descriptor)
            self.segments.append((dtype, shape, nbytes, offset))
            offset += padded(nbytes)
        if offset != self.nbytes:
            raise ProtocolError(f"payload: the segments need {offset} bytes, got {self.nbytes}")

    def walk(self, node: Any, depth: int) -> Any:
        kind = type(node)
        if kind in _PLAIN or kind is bytes:
            return node
        if depth >= MAX_NESTING:
            raise ProtocolError(f"tree: nested more than {MAX_NESTING} deep")
        if kind is list:
            return [self.walk(item, depth + 1) for item in node]
        if kind is dict:
            if not node:
                return node
            if not all(type(key) is str or type(key) is int for key in node):
                raise ProtocolError("tree: expected str or int as keys of a map")
            return {key: self.walk(value, depth + 1) for key, value in node.items()}
        if kind is tuple:  # an extension, see `unpack`
            code, data = node
            return self.extension(code, unpack(data), depth)
        raise ProtocolError(f"tree: unexpected {kind.__name__}")

    def extension(self, code: int, content: Any, depth: int) -> Any:
        if code == _EXT_TENSOR:
            return self.tensor(content)
        if code == _EXT_BYTES:
            data = self.bytes_of(content)
            if content in self.copied:  # a few bytes of head must not become gigabytes
                raise ProtocolError(f"tree: segment {content} is taken twice")
            self.copied.add(content)
            return bytes(data)
        if code == _EXT_DTYPE:
            return _lookup_dtype(content)
        if not isinstance(content, list):
            raise ProtocolError(f"tree: expected a list in extension {code}, got {type(content).__name__}")
        if code == _EXT_TUPLE:
            return tuple(self.walk(item, depth + 1) for item in content)
        if code == _EXT_MESSAGE:
            return self.message(content, depth)
        if code == _EXT_PAIRS:
            return self.pairs(content, depth)
        raise ProtocolError(f"tree: unknown extension {code}")

    def message(self, content: list[Any], depth: int) -> Any:
        if len(content) != 2 or not isinstance(content[0], str) or not isinstance(content[1], list):
            raise ProtocolError("tree: expected the name and the fields of a message")
        message = _BY_NAME.get(content[0])
        if message is None:
            raise ProtocolError(f"tree: unknown message type {content[0]!r:.100}; it is not registered here")
        return message.put_together([self.walk(value, depth + 1) for value in content[1]])

    def pairs(self, content: list[Any], depth: int) -> dict[Any, Any]:
        if not all(isinstance(pair, list) and len(pair) == 2 for pair in content):
            raise ProtocolError("tree: expected pairs of key and value")
        try:
            return {self.walk(key, depth + 1): self.walk(value, depth + 1) for key, value in content}
        except TypeError as error:
            raise ProtocolError(f"tree: {error}") from error

    def tensor(self, index: Any) -> torch.Tensor:
        dtype, shape, nbytes, offset = self.segment(index)
        if nbytes == 0:
            return torch.empty(shape, dtype=dtype)
        flat = torch.frombuffer(self.payload, dtype=dtype, count=nbytes // dtype.itemsize, offset=offset)
        return flat if len(shape) == 1 else flat.reshape(shape)

    def bytes_of(self, index: Any) -> memoryview:
        _, _, nbytes, offset = self.segment(index)
        return memoryview(self.payload).cast("B")[offset : offset + nbytes] if nbytes else memoryview(b"")

    def segment(self, index: Any) -> tuple[torch.dtype, list[int], int, int]:
        if type(index) is not int or not 0 <= index < len(self.segments):
            raise ProtocolError(f"tree: expected the index of one of {len(self.segments)} segments, got {index!r:.100}")
        return self.segments[index]


def unpack(data: Buffer) -> Any:
    """One msgpack object, an extension as a tuple of its code and bytes; ``ProtocolError`` where it is malformed."""
    try:
        return msgpack.unpackb(data, raw=False, strict_map_key=False, ext_hook=_as_tuple)
    except (ValueError, TypeError, OverflowError, msgpack.UnpackException) as error:  # ValueError: also bad UTF-8
        raise ProtocolError(f"malformed msgpack: {type(error).__name__}: {error!s:.200}") from error


def _as_tuple(code: int, data: bytes) -> tuple[int, bytes]:
    return code, data


def _lookup_dtype(code: Any) -> torch.dtype:
    dtype = _DTYPES.get(code) if type(code) is int else None
    if dtype is None:
        raise ProtocolError(f"segment: unknown dtype code {code!r:.100}")
    return dtype


def _check_descriptor(descriptor: Any) -> tuple[torch.dtype, list[int], int]:
    if not isinstance(descriptor, list) or len(descriptor) != 3:
        raise ProtocolError("segment: expected [dtype, shape, nbytes]")
    code, shape, nbytes = descriptor
    dtype = _lookup_dtype(code)
    if not _is_shape(shape) or type(nbytes) is not int:
        raise ProtocolError(f"segment: expected a shape and a size, got {shape!r:.100} and {nbytes!r:.100}")
    count = strides = 1
    for extent in shape:
        count *= extent
        strides *= max(extent, 1)
    if strides * dtype.itemsize >= 1 << 63:
        raise ProtocolError(f"segment: {dtype} cannot have the shape {shape}")
    if count * dtype.itemsize != nbytes:
        raise ProtocolError(f"segment: {dtype} of shape {shape} takes {count * dtype.itemsize} bytes, not {nbytes}")
    return dtype, shape, nbytes


def _is_shape(shape: Any) -> bool:
    if not isinstance(shape, list) or len(shape) > 64:
        return False
    for extent in shape:  # noqa: SIM110 in half of the time of `all`
        if type(extent) is not int or not 0 <= extent < 1 << 62:
            return False
    return True


def byte_array(view: Buffer) -> Any:
    """``view`` as a numpy array of bytes; copies between two of these release the GIL."""
    return numpy.frombuffer(view, dtype=numpy.uint8)
