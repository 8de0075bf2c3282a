"""The classes whose values may cross a process, by name; each is registered where it is declared.

A decoder builds nothing else, whatever the bytes say (``rpc.wire.codec``).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from operator import attrgetter
from typing import Any, TypeVar, overload

from ..errors import InvalidArgumentError, ProtocolError

_MessageType = TypeVar("_MessageType", bound=type)


@dataclass(frozen=True)
class MessageType:
    """How values of a class travel: by its name, with these fields in order."""

    cls: type
    name: str
    field_names: tuple[str, ...]
    is_enum: bool

    @functools.cached_property
    def take_apart(self) -> Callable[[Any], Sequence[Any]]:
        """Gives what travels of a value."""
        if self.is_enum:
            return lambda value: (value.name,)
        names = self.field_names
        # It calls nothing of Python's; of a single attribute it gives no tuple.
        return attrgetter(*names) if len(names) > 1 else lambda value: [getattr(value, name) for name in names]

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


BY_NAME: dict[str, MessageType] = {}
BY_TYPE: dict[type, MessageType] = {}


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
    known = BY_NAME.get(message.name)
    if known is not None and (known.cls.__module__, known.cls.__qualname__) != (cls.__module__, cls.__qualname__):
        raise InvalidArgumentError(f"name: {message.name!r} is the name of {known.cls!r} already, got {cls!r}")
    BY_NAME[message.name] = message
    BY_TYPE[cls] = message
    return cls


def register_as_base(cls: _MessageType) -> _MessageType:
    """Let values of a class that only has other defaults travel as its base class, which is what receivers get.

    Raises:
        InvalidArgumentError: no base class of it was registered.
    """
    base = next((base for base in cls.__mro__[1:] if base in BY_TYPE), None)
    if base is None:
        raise InvalidArgumentError(f"cls: expected a subclass of a registered message, got {cls!r}")
    BY_TYPE[cls] = BY_TYPE[base]
    return cls


def _describe(cls: type, name: str) -> MessageType:
    if isinstance(cls, type) and issubclass(cls, Enum):
        return MessageType(cls, name, (), is_enum=True)
    if is_dataclass(cls):
        return MessageType(cls, name, tuple(f.name for f in fields(cls) if f.init), is_enum=False)
    if isinstance(cls, type) and issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return MessageType(cls, name, tuple(cls._fields), is_enum=False)
    raise InvalidArgumentError(f"cls: expected a dataclass, a NamedTuple or an Enum, got {cls!r}")
